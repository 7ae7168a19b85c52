"""What the training widgets have in common: a sweep in a thread, its live picture, and the buttons around it.

Works with ipywidgets 7.7 and 8. Pictures are PNG files in an HTML widget, drawn without pyplot; training runs in a
thread, so that Stop is heard. The widget knows the sweep, the sweep knows no widget.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from typing import ClassVar

import ipywidgets
from traitlets import TraitError

from dgc_lab.errors import LabError
from dgc_lab.pictures import Curves, image_tag
from dgc_lab.sweep import RowEnded, RowFailed, RowStarted, parse_ratios, sweep, table
from dgc_lab.widget_html import framed, message_line

SHORTEST_REDRAW = 0.25  # seconds; four frames a second are enough for the eye
MESSAGE_EVERY = 0.5  # seconds between two readings of the progress bar
REDRAW_SHARE = 0.012  # of the time goes into drawing frames
EXPECTED_ERRORS = (ValueError, LabError, OSError)
AS_TYPED = "as typed"
WIDE = {"style": {"description_width": "7em"}}


def wide(kind, **options):
    """A control with room for its label."""
    return kind(**WIDE, layout=ipywidgets.Layout(width="21em"), **options)


class LiveSweep(ipywidgets.VBox):
    """A widget that trains at one or several ratios and shows it live; the base of `dgc_lab.widgets`.

    Run trains every ratio in the list that has no row yet, Stop ends the training within a step and keeps the
    finished rows, Clear empties picture and table. ``run()`` does what Run does and waits for the end.

    A subclass says what can be set (`_columns`, `settings`) and who trains (`_trainer`).

    Args:
        out: file that keeps finished rows (`dgc_lab.sweep`); a restarted kernel goes on with it.
        settings: first values of the controls, by their names in ``controls``.

    Attributes:
        rows: the finished rows, in the order in which they were made.
        controls: by name, the widgets that make the settings, and ``ratios``.

    Raises:
        ValueError: a keyword is not the name of a control, or its value is none that the control takes.
    """

    presets: ClassVar[dict[str, str]] = {}  # lists of ratios to choose from, by name
    beside_settings: ClassVar[tuple[str, ...]] = ()  # names of a subclass's controls that are no settings

    def __init__(self, out=None, **settings):
        self.out = out
        self.rows = []
        self._lock = threading.Lock()
        self._thread = None
        self._stopping = threading.Event()
        self._build_controls()
        columns = self._columns()
        others = ("ratio", "preset", *self.beside_settings)
        shown = [control for column in columns for control in column]
        self.controls = {name: c for name, c in vars(self).items() if c in shown and name not in others}
        for name, value in settings.items():
            if name not in self.controls:
                raise ValueError(f"settings must be among {', '.join(self.controls)}, got {name!r}")
            try:
                self.controls[name].value = value
            except TraitError:
                allowed = getattr(self.controls[name], "_options_values", None) or "a value of another type"
                raise ValueError(f"{name} must be {allowed}, got {value!r}") from None
        self.clear()
        super().__init__(self._layout(columns))

    # What the user sees ------------------------------------------------------------------------------------------

    def _columns(self) -> list[list]:
        """The controls, column by column; a subclass adds its own."""
        raise NotImplementedError

    def _build_controls(self):
        self.dataset = wide(ipywidgets.Dropdown, options=["digits", "mnist"], description="Data set")
        self.ratio = wide(
            ipywidgets.FloatLogSlider,
            **{"value": 0.01, "base": 10, "min": -4, "max": 0, "step": 0.1, "readout_format": ".2g"},
            description="Ratio",
        )
        self.ratios = wide(ipywidgets.Text, value="0.01", description="Ratios", placeholder="0.01 or 1, 10%, 1%")
        self.preset = wide(ipywidgets.Dropdown, options=[AS_TYPED, *self.presets], description="Sweep")
        self.learning_rate = wide(ipywidgets.FloatText, value=0.05, description="Learning rate")
        self.momentum = wide(ipywidgets.FloatText, value=0.9, description="Momentum")
        self.batch = wide(ipywidgets.IntText, value=64, description="Batch")
        self.steps = wide(ipywidgets.IntText, value=300, description="Steps")
        self.seed = wide(ipywidgets.IntText, value=0, description="Seed")
        self.run_button = ipywidgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = ipywidgets.Button(description="Stop", icon="stop", disabled=True)
        self.clear_button = ipywidgets.Button(description="Clear", icon="trash")
        self.progress = wide(ipywidgets.FloatProgress, value=0, min=0, max=1, description="Progress")
        self.message = ipywidgets.HTML()
        self.image = ipywidgets.HTML()
        self.table = ipywidgets.HTML()
        self.ratio.observe(self._slider_moved, "value")
        self.ratios.observe(self._text_changed, "value")
        self.preset.observe(self._preset_chosen, "value")
        self.run_button.on_click(lambda _: self.start())
        self.stop_button.on_click(lambda _: self.stop())
        self.clear_button.on_click(lambda _: self.clear())

    def _layout(self, columns):
        controls = ipywidgets.HBox(
            [ipywidgets.VBox(column) for column in columns], layout=ipywidgets.Layout(flex_flow="row wrap")
        )
        buttons = ipywidgets.HBox([self.run_button, self.stop_button, self.clear_button, self.progress])
        return [controls, buttons, self.message, self.image, self.table]

    def _slider_moved(self, change):
        if self._single_ratio() != change["new"]:
            self.ratios.value = f"{change['new']:.2g}"

    def _text_changed(self, change):
        if change["new"] != self.presets.get(self.preset.value):
            self.preset.value = AS_TYPED
        single = self._single_ratio()
        if single is not None and 10**self.ratio.min <= single <= 1:
            self.ratio.value = single

    def _single_ratio(self):
        """The ratio in the text field, when it holds one number and no list."""
        try:
            ratios = parse_ratios(self.ratios.value)
        except ValueError:
            return None
        return ratios[0] if len(ratios) == 1 else None

    def _preset_chosen(self, change):
        if change["new"] in self.presets:
            self.ratios.value = self.presets[change["new"]]

    def _say(self, text: str, error: bool = False):
        self.message.value = message_line(text, error)

    def _draw(self):
        self.image.value = image_tag(self.curves.frame(), self.curves.alt())

    def _show_table(self):
        looks = {"index": False, "na_rep": "", "float_format": "{:.4g}".format}
        self.table.value = (framed(self.frame().to_html(**looks)) + self._below_table()) if self.rows else ""

    def _below_table(self) -> str:
        """HTML under the table."""
        return ""

    # What the buttons do -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run: train in a thread. Nothing happens while a run is under way."""
        job = self._prepare()
        if job:
            self._thread = threading.Thread(target=self._work, args=job, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop: end the training after the step that it is in. Finished rows stay; a second call changes nothing."""
        self._stopping.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until a run that `start` began has ended; False when it has not within ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def clear(self) -> None:
        """Clear: forget rows and curves (a file of rows is left as it is). Ignored while a run is under way."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self.rows = []
            self.curves = Curves(max(1, self.steps.value))
            self._first = None
            self.progress.value = 0
            self._draw()
            self._show_table()
            self._say("Press Run to train.")
        finally:
            self._lock.release()

    def run(self) -> None:
        """Train as Run does, wait for the end, and show figure and table as ordinary output.

        For scripts, nbval, and notebooks that are read without a kernel. An interrupt keeps the finished rows.

        Raises:
            RuntimeError: a run is under way already.
            TrainingDiverged: a ratio's training diverged; raised after the other ratios, whose rows are kept.
            ValueError, DataError: what the widget would show in its message line.
        """
        from IPython.display import display

        job = self._prepare(raise_errors=True)
        if job:
            self._work(*job, raise_errors=True)
        display(self.curves.picture(), self.frame())

    def frame(self):
        """The rows as a table."""
        return table(self.rows)

    # The work ----------------------------------------------------------------------------------------------------

    def settings(self):
        """The controls as settings of a training; a ValueError names what is wrong."""
        raise NotImplementedError

    def _values(self) -> dict:
        """The controls' values, but for the ratios."""
        return {name: control.value for name, control in self.controls.items() if name != "ratios"}

    def _trainer(self, settings):
        """The trainer for these settings; a LabError, OSError or ValueError says why there is none."""
        raise NotImplementedError

    def _saw_step(self, step) -> None:
        """Called now and then with the latest step, to show what a subclass has to show of it."""

    def _prepare(self, raise_errors=False):
        """Check the controls and take the lock: the job to do, or None when there is none (the message says why)."""
        if not self._lock.acquire(blocking=False):
            if raise_errors:
                raise RuntimeError("a run is under way: press Stop, or call stop(), first")
            return None
        job = None
        try:
            job = self._job()
        except EXPECTED_ERRORS as error:
            self._say(str(error), error=True)
            if raise_errors:
                raise
        finally:
            if job is None:
                self._lock.release()
        return job

    def _job(self):
        """Settings and ratios that have no row yet, with the buttons set for a run; None when all rows are there."""
        settings, ratios = self.settings(), parse_ratios(self.ratios.value)
        settings.check_ratios(ratios)
        ratios = [ratio for ratio in ratios if not self._has_row(settings, ratio)]
        if not ratios:
            self._say("The table has these rows already. Change a control, or press Clear to make them again.")
            return None
        self._stopping.clear()
        self.run_button.disabled = self.clear_button.disabled = True
        self.stop_button.disabled = False
        source = (
            "MNIST (DGC_LAB_DATA, Keras's cache, or an 11 MB download)" if settings.dataset == "mnist" else "digits"
        )
        self._say(f"Starting: loading {source} and tracing the training step.")
        return settings, ratios

    def _has_row(self, settings, ratio):
        wanted = {**dataclasses.asdict(settings), "ratio": ratio}
        return any(all(row.get(name) == value for name, value in wanted.items()) for row in self.rows)

    def _work(self, settings, ratios, raise_errors=False):
        """Train and show it; whatever happens, the buttons work again afterwards."""
        said, failures = "", []
        try:
            try:
                self.curves.fit(settings.steps)
                events = sweep(settings, ratios, self.out, trainer=self._trainer(settings))
                with contextlib.closing(events):
                    said = self._follow(events, settings, ratios, failures)
            except KeyboardInterrupt:
                said = "Interrupted. The finished rows are kept."
                raise
            except Exception as problem:
                expected = isinstance(problem, EXPECTED_ERRORS)
                failures.append(str(problem) if expected else f"{type(problem).__name__}: {problem}")
                if raise_errors or not expected:
                    raise
            finally:
                self._draw()
                self._show_table()
                self._say(" ".join([*failures, said]).strip(), error=bool(failures))
        finally:
            self.run_button.disabled = self.clear_button.disabled = False
            self.stop_button.disabled = True
            self._lock.release()
        if failures and raise_errors:
            from dgc_lab.training import TrainingDiverged

            raise TrainingDiverged(" ".join(failures))

    def _follow(self, events, settings, ratios, failures) -> str:
        """Show the events of a sweep as they come, until they end or Stop is pressed; returns the last message.

        What failed is added to ``failures``.
        """
        from dgc_lab.training import Evaluation, Step

        done, total, start = 0, len(ratios) * settings.steps, time.monotonic()
        next_message, next_redraw, drawing = start, start, 0.0
        for event in events:
            if isinstance(event, RowStarted):
                ratio = event.ratio
                self.curves.begin(self._label(settings, ratio))
            elif isinstance(event, Step):
                done += 1
                last = event
                self.curves.add_loss(event.step, event.loss)
            elif isinstance(event, Evaluation):
                self.curves.add_accuracy(event.step, event.accuracy)
            elif isinstance(event, RowFailed):
                failures.append(event.reason + ".")
            elif isinstance(event, RowEnded):
                self.rows.append(event.row)
                self._show_table()
                if event.from_file:
                    total -= settings.steps
                    self.curves.add_accuracy(settings.steps, event.row["accuracy"])
            now = time.monotonic()
            if done and now >= next_message:
                self.progress.value = done / total
                left = (now - start) * (total - done) / done
                self._say(f"Ratio {ratio:g}: step {done} of {total}, about {left:.0f} s left.")
                self._saw_step(last)
                next_message = now + MESSAGE_EVERY
            if done and now >= next_redraw:
                whole = self.curves.background is None  # the first frame of a run draws axes and legend too
                self._draw()
                drawing = drawing if whole else time.monotonic() - now
                next_redraw = time.monotonic() + max(SHORTEST_REDRAW, drawing / REDRAW_SHARE)
            if self._stopping.is_set() and not isinstance(event, RowEnded):
                self.curves.rename(f"{self.curves.runs[-1]['label']} (stopped)")
                return f"Stopped at step {done} of {total}. The finished rows are kept; Run goes on with the others."
        self.progress.value = 1.0
        made = len(ratios) - len(failures)
        return f"Done: {made} {'row' if made == 1 else 'rows'} in {time.monotonic() - start:.1f} s."

    def _label(self, settings, ratio):
        """Name of a run in the legend: its ratio, and where its settings differ from the first run's."""
        self._first = self._first or settings
        now, first = dataclasses.asdict(settings), dataclasses.asdict(self._first)
        return ", ".join([f"ratio {ratio:g}", *(f"{name} {now[name]}" for name in now if now[name] != first[name])])
