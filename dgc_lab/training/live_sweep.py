"""What the widgets of lessons 4 and 5 have in common: ratios to choose, and a sweep over them that is shown live."""

from __future__ import annotations

import contextlib
import time
from typing import ClassVar

from ipywidgets import Dropdown, FloatLogSlider, FloatText, IntText, Text

from dgc_lab.training.live_figure import Curves
from dgc_lab.training.published_tables import beside_published
from dgc_lab.training.sweeps import RowEnded, RowFailed, RowStarted, is_of, parse_ratios, sweep, table
from dgc_lab.ui.live_run import LiveRun
from dgc_lab.ui.widget import wide
from dgc_lab.workloads.data import load

AS_TYPED = "as typed"


class LiveSweep(LiveRun):
    """A widget that trains at one or several ratios and shows it live; the base of those of lessons 4 and 5.

    A subclass says what can be set (``_columns()``, ``settings()``, which raises a ValueError) and who trains with
    ``_data`` (``_trainer(settings)``), and shows what it has to show of the latest step now and then
    (``_saw_step(step)``).
    """

    presets: ClassVar[dict[str, str]]  # lists of ratios to choose from, by name
    published: ClassVar[dict]  # what MNIST's rows are shown beside
    beside_settings: ClassVar = ("ratio", "preset")
    redraw_share: ClassVar = 0.012

    def __init__(self, out=None, **settings):
        self.out, self._data = out, None
        ratios = {"value": 0.01, "base": 10, "min": -4, "max": 0, "step": 0.1, "readout_format": ".2g"}
        self.dataset = wide(Dropdown, "Data set", options=["digits", "mnist"])
        self.ratio = wide(FloatLogSlider, "Ratio", **ratios)
        self.ratios = wide(Text, "Ratios", value="0.01", placeholder="0.01 or 1, 10%, 1%")
        self.preset = wide(Dropdown, "Sweep", options=[AS_TYPED, *self.presets])
        self.learning_rate = wide(FloatText, "Learning rate", value=0.05)
        self.momentum = wide(FloatText, "Momentum", value=0.9)
        self.batch = wide(IntText, "Batch", value=64)
        self.steps = wide(IntText, "Steps", value=300)
        self.seed = wide(IntText, "Seed", value=0)
        self.ratio.observe(self._slider_moved, "value")
        self.ratios.observe(self._text_changed, "value")
        self.preset.observe(self._preset_chosen, "value")
        super().__init__(**settings)

    # What the user sees ------------------------------------------------------------------------------------------

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

    def _new_curves(self):
        self._first = None
        return Curves(max(1, self.steps.value))

    def frame(self):
        """The rows as a table; on MNIST with the published accuracy and loss beside the measured ones."""
        return beside_published(self.rows, self.published) if self._on_mnist() else table(self.rows)

    def _on_mnist(self):
        return any(row["dataset"] == "mnist" for row in self.rows)

    # The work ----------------------------------------------------------------------------------------------------

    def _values(self) -> dict:
        """The controls' values, but for the ratios."""
        return {name: value for name, value in super()._values().items() if name != "ratios"}

    def _saw_step(self, step) -> None:
        pass

    def _job(self):
        """Settings and ratios that have no row yet, with the buttons set for a run; None when all rows are there."""
        settings, ratios = self.settings(), parse_ratios(self.ratios.value)
        settings.check_ratios(ratios)
        ratios = [ratio for ratio in ratios if not self._has_row(settings, ratio)]
        if not ratios:
            self._say("The table has these rows already. Change a control, or press Clear to make them again.")
            return None
        mnist = "MNIST (DGC_LAB_DATA, Keras's cache, or an 11 MB download)"
        source = mnist if settings.dataset == "mnist" else "digits"
        self._say(f"Starting: loading {source} and tracing the training step.")
        return settings, ratios

    def _has_row(self, settings, ratio):
        return any(is_of(row, {**settings.facts(), "ratio": ratio}) for row in self.rows)

    def _work(self, *job, raise_errors=False):
        failures = super()._work(*job, raise_errors=raise_errors)
        if failures and raise_errors:
            from dgc_lab.training.events import TrainingDiverged

            raise TrainingDiverged(" ".join(failures))

    def _train(self, failures, settings, ratios):
        self.curves.fit(settings.steps)
        if self._data is None or self._data.name != settings.dataset:
            self._data = load(settings.dataset)
        events = sweep(settings, ratios, self.out, trainer=self._trainer(settings))
        with contextlib.closing(events):
            return self._follow(events, settings, ratios, failures)

    def _follow(self, events, settings, ratios, failures) -> str:
        """Show the events of a sweep as they come, until they end or Stop is pressed; returns the last message."""
        from dgc_lab.training.events import Evaluation, Step

        done, total, start = 0, len(ratios) * settings.steps, time.monotonic()

        def tell():
            if not done:
                return ""
            self.progress.value = done / total
            self._saw_step(last)
            left = (time.monotonic() - start) * (total - done) / done
            return f"Ratio {ratio:g}: step {done} of {total}, about {left:.0f} s left."

        for event in self._live(events, tell):
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
            if self._stopping.is_set() and not isinstance(event, RowEnded):
                self.curves.rename(f"{self.curves.runs[-1]['label']} (stopped)")
                return f"Stopped at step {done} of {total}. The finished rows are kept; Run goes on with the others."
        self.progress.value = 1.0
        made = len(ratios) - len(failures)
        return f"Done: {made} {'row' if made == 1 else 'rows'} in {time.monotonic() - start:.1f} s."

    def _label(self, settings, ratio):
        """Name of a run in the legend: its ratio, and where its settings differ from the first run's."""
        self._first = self._first or settings
        now, first = settings.facts(), self._first.facts()
        return ", ".join([f"ratio {ratio:g}", *(f"{name} {now[name]}" for name in now if now[name] != first[name])])
