"""What the training widgets have in common: a run in a thread, its live picture, and the buttons around it.

Works with ipywidgets 7.7 and 8. Pictures are PNG files in an HTML widget, drawn without pyplot; training runs in a
thread, so that Stop is heard. A widget knows its training, the training knows no widget.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar

import ipywidgets

from dgc_lab.common import LabError
from dgc_lab.ui.charts import image_tag
from dgc_lab.ui.explorer import set_control
from dgc_lab.ui.widget_html import framed, message_line, with_tooltips

SHORTEST_REDRAW = 0.25  # seconds; four frames a second are enough for the eye
MESSAGE_EVERY = 0.5  # seconds between two readings of the progress bar
EXPECTED_ERRORS = (ValueError, LabError, OSError)
WIDE = {"style": {"description_width": "7em"}}


def wide(kind, **options):
    """A control with room for its label."""
    return kind(**WIDE, layout=ipywidgets.Layout(width="21em"), **options)


class LiveRun(ipywidgets.VBox):
    """Controls, the buttons Run, Stop and Clear, and what a training shows while it runs; a base class.

    A subclass makes its controls (`_columns`) and the live picture (`_new_curves`), checks what is asked for (`_job`),
    does it (`_train`), and says what the table shows (`frame`).

    Args:
        settings: first values of the controls, by their names in ``controls``.

    Attributes:
        rows: the finished rows, in the order in which they were made.
        controls: by name, the widgets that make the settings.
        curves: the live picture, with the methods ``frame``, ``alt`` and ``picture`` of `dgc_lab.ui.charts.Curves`.

    Raises:
        ValueError: a keyword is not the name of a control, or its value is none that the control takes.
    """

    beside_settings: ClassVar[tuple[str, ...]] = ()  # names of controls that are no settings

    def __init__(self, **settings):
        self.rows = []
        self._lock = threading.Lock()
        self._thread = None
        self._output = None  # of the cell that has called `run`: its picture is brought up to date there
        self._stopping = threading.Event()
        self._build_buttons()
        columns = self._columns()
        shown = [control for column in columns for control in column]
        with_tooltips([*shown, self.progress])
        self.controls = {n: c for n, c in vars(self).items() if c in shown and n not in self.beside_settings}
        for name, value in settings.items():
            if name not in self.controls:
                raise ValueError(f"settings must be among {', '.join(self.controls)}, got {name!r}")
            set_control(name, self.controls[name], value)
        self.clear()
        super().__init__(self._layout(columns))

    # What the user sees ------------------------------------------------------------------------------------------

    def _columns(self) -> list[list]:
        """The controls, column by column, each an attribute too."""
        raise NotImplementedError

    def _new_curves(self):
        """An empty live picture."""
        raise NotImplementedError

    def frame(self):
        """The rows as a table."""
        raise NotImplementedError

    def _build_buttons(self):
        self.run_button = ipywidgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = ipywidgets.Button(description="Stop", icon="stop", disabled=True)
        self.clear_button = ipywidgets.Button(description="Clear", icon="trash")
        self.progress = wide(ipywidgets.FloatProgress, value=0, min=0, max=1, description="Progress")
        self.message = ipywidgets.HTML()
        self.image = ipywidgets.HTML()
        self.table = ipywidgets.HTML()
        self.run_button.on_click(lambda _: self.start())
        self.stop_button.on_click(lambda _: self.stop())
        self.clear_button.on_click(lambda _: self.clear())

    def _layout(self, columns):
        controls = ipywidgets.HBox(
            [ipywidgets.VBox(column) for column in columns], layout=ipywidgets.Layout(flex_flow="row wrap")
        )
        buttons = ipywidgets.HBox([self.run_button, self.stop_button, self.clear_button, self.progress])
        return [controls, buttons, self.message, self.image, self.table]

    def _say(self, text: str, error: bool = False):
        self.message.value = message_line(text, error)

    def _draw(self):
        from IPython.display import HTML

        self.image.value = image_tag(self.curves.frame(), self.curves.alt())
        if self._output:
            self._output.update(HTML(self.image.value))

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
        """Stop: end the training soon. Finished rows stay; a second call changes nothing."""
        self._stopping.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until a run that `start` began has ended; False when it has not within ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def clear(self) -> None:
        """Clear: forget rows and curves. Ignored while a run is under way."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self.rows = []
            self.curves = self._new_curves()
            self.progress.value = 0
            self._draw()
            self._show_table()
            self._say("Press Run to train.")
        finally:
            self._lock.release()

    def run(self) -> None:
        """Train as Run does, in the cell: a live picture in its output, and at the end an ordinary figure and table.

        For notebooks that are read without a kernel, nbval, and scripts, which get figure and table alone. An interrupt
        keeps the finished rows.

        Raises:
            RuntimeError: a run is under way already.
            ValueError, LabError, OSError: what the widget would show in its message line.
        """
        from IPython import get_ipython
        from IPython.display import HTML, display

        job = self._prepare(raise_errors=True)
        output = None
        if job:
            if hasattr(get_ipython(), "kernel"):  # a terminal would print every frame
                output = self._output = display(HTML(self.image.value), display_id=True)
            try:
                self._work(*job, raise_errors=True)
            finally:
                self._output = None
        if output:
            output.update(self.curves.picture())
        else:
            display(self.curves.picture())
        display(self.frame())

    # The work ----------------------------------------------------------------------------------------------------

    def _job(self) -> tuple | None:
        """Check the controls and say that it starts: arguments of `_train`; None when there is nothing to do.

        A ValueError, LabError or OSError says what is wrong.
        """
        raise NotImplementedError

    def _train(self, failures: list[str], *job) -> str:
        """Do the job and show it until it ends or Stop is pressed; returns the last message.

        What failed without ending the job is added to ``failures``.
        """
        raise NotImplementedError

    def _prepare(self, raise_errors=False) -> tuple | None:
        """Check the controls and take the lock: the job to do, or None when there is none (the message says why)."""
        if not self._lock.acquire(blocking=False):
            if raise_errors:
                raise RuntimeError("a run is under way: press Stop, or call stop(), first")
            return None
        job = None
        try:
            self._stopping.clear()
            job = self._job()
            if job:
                self.run_button.disabled = self.clear_button.disabled = True
                self.stop_button.disabled = False
        except EXPECTED_ERRORS as error:
            self._say(str(error), error=True)
            if raise_errors:
                raise
        finally:
            if job is None:
                self._lock.release()
        return job

    def _work(self, *job, raise_errors=False) -> list[str]:
        """Train and show it; whatever happens, the buttons work again afterwards. Returns what failed."""
        said, failures = "", []
        try:
            try:
                said = self._train(failures, *job)
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
        return failures


class Redraws:
    """Draws a live picture as often as the eye wants and the training can spare.

    Args:
        curves: the picture; its ``background`` is None when the next frame draws axes and legend too.
        draw: draws it.
        shortest: seconds between two frames, at least.
        share: of one core's time, how much may go into drawing frames.
    """

    def __init__(self, curves, draw: Callable[[], None], shortest: float, share: float):
        self._curves, self._draw, self._shortest, self._share = curves, draw, shortest, share
        self._next = self._seconds = 0.0

    def draw_if_due(self) -> None:
        """Draw, unless the last time was a short while ago."""
        if time.monotonic() < self._next:
            return
        whole = self._curves.background is None  # rare, and no measure of the frames to come
        began = time.thread_time()  # what it takes from the training, not how long it had to wait for its turn
        self._draw()
        if not whole:
            self._seconds = time.thread_time() - began
        self._next = time.monotonic() + max(self._shortest, self._seconds / self._share)
