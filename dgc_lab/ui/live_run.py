"""The base of the widgets that train: a run in a thread, its live picture, and the buttons around it.

Training runs in a thread, so that Stop is heard. A widget knows its training, the training knows no widget.
"""

from __future__ import annotations

import atexit
import html
import io
import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import ipywidgets

from dgc_lab.common import LabError
from dgc_lab.ui.widget import EXPECTED_ERRORS, SHORTEST_REDRAW, WRAP, Panel, save_link, side_by_side, wide

MESSAGE_EVERY = 0.5  # seconds between two readings of the progress bar
SECONDS_TO_STOP = 10  # at the program's end


class LiveRun(Panel):
    """Controls, the buttons Run, Stop, Clear and Save, and what a training shows while it runs; a base class.

    A subclass defines

    - ``_columns()``: the controls, column by column, each an attribute too;
    - ``_new_curves()``: an empty `dgc_lab.ui.live_figure.LiveFigure`;
    - ``_job()``: checks the controls, says that it starts and gives the arguments of ``_train``, or None when there is
      nothing to do; a ValueError, LabError or OSError says what is wrong;
    - ``_train(failures, *job)``: does the job and shows it until it ends or Stop is pressed; returns the last message,
      and adds to ``failures`` what failed without ending the job;
    - ``frame()``: as a table ``rows``, the finished ones in the order in which they were made.
    """

    beside_settings: ClassVar[tuple[str, ...]] = ()  # names of controls that are no settings
    _running: ClassVar[set[LiveRun]] = set()  # those that train in a thread now
    redraw_share: ClassVar[float]  # of one core's time, how much may go into drawing frames
    curves = None  # before they are made, and in a closed widget
    _started: ClassVar = None  # by widgets of one kind: processes for two are too much for small machines

    def __init__(self, **settings):
        self._cell, self._execution = this_cell()
        for other in list(self._running):
            # Its cell was run again, and its picture and buttons are gone.
            if other._cell == self._cell is not None and other._execution != self._execution:
                other.stop()
        self.rows = []
        self._lock = threading.Lock()
        self._output = None  # of the cell that has called `run`: its picture is brought up to date there
        self._stopping = threading.Event()
        self.run_button = ipywidgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = ipywidgets.Button(description="Stop", icon="stop", disabled=True)
        self.clear_button = ipywidgets.Button(description="Clear", icon="trash")
        self.save_button = ipywidgets.Button(description="Save", icon="download", tooltip="Links to table and picture")
        self.progress = wide(ipywidgets.FloatProgress, "Progress", value=0, min=0, max=1)
        self.run_button.on_click(lambda _: self.start())
        self.stop_button.on_click(lambda _: self.stop())
        self.clear_button.on_click(lambda _: self.clear())
        self.save_button.on_click(lambda _: self.save())
        buttons = [self.run_button, self.stop_button, self.clear_button, self.save_button, self.progress]
        columns = self._columns()
        names = {id(part): name for name, part in vars(self).items()}
        shown = {names[id(control)]: control for column in columns for control in column}
        controls = {name: control for name, control in shown.items() if name not in self.beside_settings}
        super().__init__(controls, [side_by_side(columns), ipywidgets.HBox(buttons, layout=WRAP)], settings)
        self.saves = ipywidgets.HTML()
        self.children = [*self.children, self.saves]
        self.clear()

    # What the user sees ------------------------------------------------------------------------------------------

    def _draw(self):
        from IPython.display import HTML

        self._show_image(self.curves.frame(), self.curves.alt())
        if self._output:
            self._output.update(HTML(self.image.value))

    def _show_table(self):
        if self.rows:
            self._show_frame(self.frame(), self._below_table())
        else:
            self.table.value = ""

    def _below_table(self) -> str:
        """HTML under the table."""
        return ""

    # What the buttons do -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run: train in a thread. Nothing happens while a run is under way."""
        job = self._prepare()
        if job:
            thread = threading.Thread(target=self._work, args=job, daemon=True)
            try:
                self._running.add(self)
                thread.start()
            except BaseException:  # no thread to be had, or an interrupt
                if not thread.is_alive():
                    self._give_back()
                raise
            self._thread = thread

    def stop(self) -> None:
        """Stop: end the training soon. Finished rows stay; a second call changes nothing."""
        self._stopping.set()

    def clear(self) -> None:
        """Clear: forget rows and curves (a file of rows is left as it is). Ignored while a run is under way."""
        if not self._take_lock():
            return
        try:
            self.rows = []
            self.curves = self._new_curves()
            self.progress.value = 0
            self._draw()
            self._show_table()
            self.saves.value = ""
            self._say("Press Run to train.")
        finally:
            self._lock.release()

    def save(self) -> None:
        """Save: show links under the table that save it, and the picture, and the table as text that can be copied.

        Ignored while a run is under way.
        """
        if not self._take_lock():
            return
        try:
            text = self.frame().to_csv(index=False) if self.rows else ""
            links = [save_link("table as CSV", "table.csv", text.encode(), "text/csv")]
            for kind, mime in {"png": "image/png", "svg": "image/svg+xml"}.items():
                file = io.BytesIO()
                self.curves.picture().figure.savefig(file, format=kind, dpi=168)
                links.append(save_link(f"picture as {kind.upper()}", f"picture.{kind}", file.getvalue(), mime))
            to_copy = f"<details><summary>Table to copy</summary><pre>{html.escape(text)}</pre></details>"
            self.saves.value = f"<div>Save {', '.join(links)}.</div>{to_copy}"
        finally:
            self._lock.release()

    def run(self) -> None:
        """Train as Run does, in the cell: a live picture in its output, and at the end an ordinary figure and table.

        Scripts get figure and table alone. An interrupt keeps the finished rows. It raises what the widget would show
        in its message line (in a sweep, TrainingDiverged after the other rows), or a RuntimeError while a run is under
        way.
        """
        from IPython import get_ipython
        from IPython.display import HTML, display

        job = self._prepare(raise_errors=True)
        show = display
        if job:
            try:
                if hasattr(get_ipython(), "kernel"):  # a terminal would print every frame
                    self._output = display(HTML(self.image.value), display_id=True)
                    show = self._output.update
            except BaseException:
                self._give_back()
                raise
            try:
                self._work(*job, raise_errors=True)
            finally:
                self._output = None
        show(self.curves.picture())
        display(self.frame())

    def close(self) -> None:
        """Stop the training, wait for its end, and close the widget with all its parts; ``rows`` stay."""
        if self.curves is not None:
            self.stop()
            self._lock.acquire()  # for good: no button does anything any more
            self.curves = None
        super().close()

    # The work ----------------------------------------------------------------------------------------------------

    def _take_lock(self) -> bool:
        """Whether nothing else is at work now: the buttons work a moment before a run has given the lock back."""
        return self._lock.acquire(timeout=0 if self.run_button.disabled else 1)

    def _prepare(self, raise_errors=False) -> tuple | None:
        """Check the controls and take the lock: the job to do, or None when there is none (the message says why)."""
        if not self._take_lock():
            if raise_errors and self.curves is None:
                raise LabError("this widget is closed: make a new one")
            if raise_errors:
                raise RuntimeError("a run is under way: press Stop, or call stop(), first")
            return None
        job = None
        try:
            self._stopping.clear()
            job = self._job()
            if job:
                self.run_button.disabled = self.clear_button.disabled = self.save_button.disabled = True
                self.saves.value = ""
                self.stop_button.disabled = False
        except BaseException as error:
            job = None
            expected = isinstance(error, EXPECTED_ERRORS)
            if expected:
                self._say(str(error), error=True)
            if raise_errors or not expected:
                raise
        finally:
            if job is None:
                self._give_back()
        return job

    def _give_back(self) -> None:
        """Let the buttons work again, and others take the lock, whatever happens meanwhile."""
        try:
            self._running.discard(self)
            self.run_button.disabled = self.clear_button.disabled = self.save_button.disabled = False
            self.stop_button.disabled = True
        finally:
            self._lock.release()

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
            self._give_back()
        return failures

    def _start_alone(self, processes) -> None:
        """Start this widget's own ranks or servers anew, in place of another's: its cell was run again perhaps."""
        kind = type(self)
        if kind._started:  # nobody can close it then
            kind._started.stop()
        kind._started = processes
        processes.restart()

    def _live(self, events, tell: Callable[[], str]) -> Iterator:
        """The events of a training as they come, with message and picture brought up to date between them.

        ``tell`` says how far it is and moves the progress bar; it is asked as often as one can read. Nothing is drawn
        before it has said something else than "".
        """
        next_message = next_frame = cost = 0.0
        for event in events:
            yield event
            if time.monotonic() >= next_message and (said := tell()):
                self._say(said)
                next_message = time.monotonic() + MESSAGE_EVERY
            if next_message and time.monotonic() >= next_frame:
                whole = self.curves.background is None  # axes and legend too: rare, and no measure of frames to come
                began = time.thread_time()  # what it takes from the training, not how long it had to wait for its turn
                self._draw()
                cost = cost if whole else time.thread_time() - began
                next_frame = time.monotonic() + max(SHORTEST_REDRAW, cost / self.redraw_share)


def this_cell() -> tuple[str | None, str | None]:
    """The notebook's cell that runs now, and which run of it; None in a script, or where no front end tells."""
    from IPython import get_ipython

    message = getattr(get_ipython(), "get_parent", dict)()
    return message.get("metadata", {}).get("cellId"), message.get("header", {}).get("msg_id")


@atexit.register
def stop_all() -> None:
    """Let no thread train while the program ends: TensorFlow would abort it."""
    running = list(LiveRun._running)
    for widget in running:
        widget.stop()
    for widget in running:
        widget.wait(SECONDS_TO_STOP)
