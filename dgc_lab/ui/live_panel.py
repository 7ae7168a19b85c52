"""The panel of the widgets that train: controls, four buttons, and an experiment's live picture and table.

The panel is a widget, the experiment is not. The panel starts and stops the experiment and shows its progress.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from typing import ClassVar

import ipywidgets

from dgc_lab.common import LabError
from dgc_lab.ui.widget import EXPECTED_ERRORS, SHORTEST_REDRAW, WRAP, Panel, button, save_links, side_by_side, wide

MESSAGE_EVERY = 0.5  # seconds between two updates of message and progress bar
SECONDS_TO_STOP = 10  # time for each training thread to stop when the program ends
_started = {}  # the ranks or servers that a widget started last, by class


class LivePanel(Panel):
    """Panel with controls, the buttons Run, Stop, Clear and Save, and the live output of an experiment.

    Training runs in a thread, so that the buttons respond. An experiment has these members:

    - ``rows``, the finished rows; ``frame()``, the rows as a table; ``note``, HTML below the table;
    - ``curves``, its `dgc_lab.ui.live_figure.LiveFigure`;
    - ``clear()`` discards rows and curves, and ``close()`` releases everything except the rows;
    - ``prepare()`` returns the job that the controls describe (None if all its rows are finished) and a message. It
      raises ValueError, LabError or OSError if a control has an invalid value;
    - ``train(job, stopping)`` is a generator that trains, yields after every event, and ends early once the
      ``threading.Event`` ``stopping`` is set;
    - ``progress``, state of the job: the finished ``share``, a ``message()``, "" until there is something to draw,
      and ``failure``, the exception to raise if some rows failed and others finished, or None.

    Args:
        experiment: the experiment that Run trains.
        controls: the controls by name; each one also becomes an attribute of the panel.
        columns: the names of the controls in each column, separated by spaces.
        settings: initial values of the controls.
        helpers: names of controls that only set other controls; ``settings`` cannot set them.
    """

    _running: ClassVar[set[LivePanel]] = set()  # panels that are training
    redraw_share: ClassVar = 0.012  # share of one core's time that drawing may take
    _closed = True  # until `__init__` sets it: ipywidgets also closes widgets whose constructor failed

    def __init__(self, experiment, controls: dict, columns: list[str], settings: dict, helpers=()):
        self._cell, self._execution = this_cell()
        for other in list(self._running):
            if other._cell == self._cell is not None and other._execution != self._execution:
                other.stop()  # its cell runs again, so its picture and buttons are gone
        self.experiment = experiment
        self._lock, self._stopping, self._closed = threading.Lock(), threading.Event(), False
        self._output = None  # display handle of the cell that called `run`, for the live picture
        vars(self).update(controls)
        self.run_button = button("Run", "play", self.start, button_style="primary")
        self.stop_button = button("Stop", "stop", self.stop, disabled=True)
        self.clear_button = button("Clear", "trash", self.clear)
        self.save_button = button("Save", "download", self.save, tooltip="Links to table and picture")
        self.progress = wide(ipywidgets.FloatProgress, "Progress", value=0, min=0, max=1)
        buttons = [self.run_button, self.stop_button, self.clear_button, self.save_button, self.progress]
        shown = [[controls[name] for name in column.split()] for column in columns]
        settable = {name: controls[name] for name in " ".join(columns).split() if name not in helpers}
        super().__init__(settable, [side_by_side(shown), ipywidgets.HBox(buttons, layout=WRAP)], settings)
        self.saves = ipywidgets.HTML()
        self.children = [*self.children, self.saves]
        self.clear()

    @property
    def rows(self) -> list[dict]:
        """The finished rows, in order of completion."""
        return self.experiment.rows

    @property
    def curves(self):
        """The live figure; None in a closed widget."""
        return self.experiment.curves

    def frame(self):
        """Return the rows as a table."""
        return self.experiment.frame()

    def start(self) -> None:
        """Train in a thread, as Run does. Does nothing during a run.

        What a custom scheme prints appears below whichever cell runs next; under `run`, below its own cell.
        """
        job = None
        with contextlib.suppress(*EXPECTED_ERRORS):  # the message line shows them
            job = self._prepare()
        if job:
            thread = threading.Thread(target=self._work_in_thread, args=(job,), daemon=True)
            try:
                self._running.add(self)
                thread.start()
            except BaseException:  # the system has no thread left, or an interrupt
                if not thread.is_alive():
                    self._release()
                raise
            self._thread = thread

    def stop(self) -> None:
        """End the training soon, as Stop does. Finished rows are kept. A second call has no effect."""
        self._stopping.set()

    def clear(self) -> None:
        """Discard rows and curves, as Clear does, but not the file of rows. Does nothing during a run."""
        if not self._take_lock():
            return
        try:
            self.experiment.clear()
            self.progress.value = 0
            self._draw()
            self._show_table()
            self.saves.value = ""
            self._say("Press Run to train.")
        finally:
            self._lock.release()

    def save(self) -> None:
        """Show links that save table and picture, and the table as text, as Save does. Does nothing during a run."""
        if not self._take_lock():
            return
        try:
            self.saves.value = save_links(self.frame() if self.rows else None, self.curves.picture().figure)
        finally:
            self._lock.release()

    def run(self) -> None:
        """Train in the cell, with a live picture in its output, then show an ordinary figure and table.

        In a script, show only figure and table. An interrupt keeps the finished rows.

        Raises:
            ValueError, LabError, OSError: the error that the message line shows, or another run is in progress.
            TrainingDiverged: rows of a sweep diverged; the other rows are finished.
        """
        from IPython import get_ipython
        from IPython.display import HTML, display

        show = display
        if job := self._prepare():
            with self._reported():
                if hasattr(get_ipython(), "kernel"):  # a terminal would print every frame
                    self._output = display(HTML(self.image.value), display_id=True)
                    show = self._output.update
                self._follow(job)
                failure = self.experiment.progress.failure
            if failure:
                raise failure
        show(self.curves.picture())
        display(self.frame())

    def close(self) -> None:
        """Stop the training, wait until it has ended, and close the widget and its parts. Keeps ``rows``."""
        if self._closed:
            return
        self.stop()
        self._lock.acquire()  # never released: from now on the buttons do nothing
        self._closed = True
        super().close()
        self.experiment.close()

    def _take_lock(self) -> bool:
        # At the end of a run, the buttons are enabled shortly before the lock is released.
        return self._lock.acquire(timeout=0 if self.run_button.disabled else 1)

    def _prepare(self):
        """Check the controls, take the lock and return the job. If there is none, show the reason and return None."""
        if not self._take_lock():
            closed = "this widget is closed: create a new one"
            raise LabError(closed if self._closed else "a run is in progress: press Stop or call stop() first")
        try:
            self._stopping.clear()
            job, message = self.experiment.prepare()
            self._say(message)
            if job:
                self.saves.value = ""
                self._set_buttons(running=True)
        except BaseException as error:
            self._release()
            if isinstance(error, EXPECTED_ERRORS):
                self._say(str(error), error=True)
            raise
        if not job:
            self._release()
        return job

    def _set_buttons(self, running: bool) -> None:
        self.run_button.disabled = self.clear_button.disabled = self.save_button.disabled = running
        self.stop_button.disabled = not running

    def _release(self) -> None:
        """Enable the buttons and release the lock, even after an interrupt."""
        try:
            self._running.discard(self)
            self._set_buttons(running=False)
        finally:
            self._lock.release()

    def _work_in_thread(self, job) -> None:
        with contextlib.suppress(*EXPECTED_ERRORS), self._reported():  # the message line shows them
            self._follow(job)

    @contextlib.contextmanager
    def _reported(self):
        """Show how the work in the block ended, with the last picture and table. In any case, enable the buttons."""
        message = problem = ""
        try:
            yield
            message = self._status()
        except KeyboardInterrupt:
            message = "Interrupted. The finished rows are kept."
            raise
        except Exception as error:
            problem = self._describe(error)
            raise
        finally:
            try:
                failure = self.experiment.progress.failure
                self._draw()
                self._show_table()
                problem = " ".join([str(failure), problem] if failure else [problem])
                self._say(f"{problem} {message}".strip(), error=bool(problem))
            finally:
                self._output = None
                self._release()

    def _follow(self, job) -> None:
        """Train, and update message, picture and table."""
        next_message = next_frame = cost = 0.0
        finished = len(self.rows)
        with contextlib.closing(self.experiment.train(job, self._stopping)) as events:
            for _ in events:
                if len(self.rows) > finished:
                    finished = len(self.rows)
                    self._show_table()
                if time.monotonic() >= next_message and (message := self._status()):
                    self._say(message)
                    next_message = time.monotonic() + MESSAGE_EVERY
                if next_message and time.monotonic() >= next_frame:  # the first frame comes with the first message
                    whole = self.curves.background is None  # with axes and legend: rare and slow
                    began = time.thread_time()  # CPU time of drawing, without waiting
                    self._draw()
                    cost = cost if whole else time.thread_time() - began
                    next_frame = time.monotonic() + max(SHORTEST_REDRAW, cost / self.redraw_share)

    def _status(self) -> str:
        """Update the progress bar and return the progress message."""
        self.progress.value = self.experiment.progress.share
        return self.experiment.progress.message()

    def _draw(self):
        from IPython.display import HTML

        self._show_panels(self.curves.panels(), self.curves.alt())
        if self._output:
            self._output.update(HTML(self.image.value))

    def _show_table(self):
        if self.rows:
            self._show_frame(self.frame(), self.experiment.note)
        else:
            self.table.value = ""


def start_alone(processes) -> None:
    """Start a widget's own ranks or servers, and stop those of the same class that another widget started.

    If a cell runs again, its first widget can no longer be closed. Small machines cannot hold both.
    """
    if (others := _started.get(type(processes))) is not None:
        others.stop()
    _started[type(processes)] = processes
    processes.restart()


def this_cell() -> tuple[str | None, str | None]:
    """Return the IDs of the running notebook cell and of its execution; both are None outside a notebook."""
    from IPython import get_ipython

    message = getattr(get_ipython(), "get_parent", dict)()
    return message.get("metadata", {}).get("cellId"), message.get("header", {}).get("msg_id")


@atexit.register
def stop_all() -> None:
    """Stop all training threads before the program ends: TensorFlow would abort it."""
    running = list(LivePanel._running)
    for widget in running:
        widget.stop()
    for widget in running:
        widget.wait(SECONDS_TO_STOP)
