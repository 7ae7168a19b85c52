"""The panel of the widgets that train: controls, four buttons, and an experiment's live picture and table.

A panel is a widget and an experiment is not: the panel starts and stops the experiment and shows it while it trains.
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
SECONDS_TO_STOP = 10  # at the end of the program
_started = {}  # the ranks or servers that a widget has started, by class


class LivePanel(Panel):
    """Controls, the buttons Run, Stop, Clear and Save, and what an experiment shows while it trains.

    Training runs in a thread, so that the buttons react. An experiment has these members:

    - ``rows``, the finished rows; ``frame()``, the rows as a table; ``note``, HTML below the table;
    - ``curves``, its `dgc_lab.ui.live_figure.LiveFigure`;
    - ``clear()`` forgets rows and curves, and ``close()`` releases everything but the rows;
    - ``prepare()`` returns the job that the controls ask for, or None if all its rows are there, and a message. It
      raises ValueError, LabError or OSError if a control has a wrong value;
    - ``train(job, stopping)`` is a generator that trains, yields after every event, and ends early once the
      ``threading.Event`` ``stopping`` is set;
    - ``progress``, state of the job: its ``share`` that is done, a ``message()``, "" until there is something to draw,
      and ``failure``, the exception to raise if rows failed while others finished, or None.

    Args:
        experiment: what Run does.
        controls: the controls by name; each one becomes an attribute of the panel too.
        columns: the names of the controls in each column, separated by spaces.
        settings: first values of the controls.
        helpers: names of controls that only set other controls; ``settings`` cannot set them.
    """

    _running: ClassVar[set[LivePanel]] = set()  # the panels whose threads train now
    redraw_share: ClassVar = 0.012  # of one core's time, which drawing may take
    _closed = True  # until it is made: ipywidgets closes a widget whose constructor has failed, too

    def __init__(self, experiment, controls: dict, columns: list[str], settings: dict, helpers=()):
        self._cell, self._execution = this_cell()
        for other in list(self._running):
            if other._cell == self._cell is not None and other._execution != self._execution:
                other.stop()  # its cell runs again, and its picture and buttons are gone
        self.experiment = experiment
        self._lock, self._stopping, self._closed = threading.Lock(), threading.Event(), False
        self._output = None  # of the cell that has called `run`, for the live picture
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
        """The finished rows, in the order in which they were made."""
        return self.experiment.rows

    @property
    def curves(self):
        """The live figure; None in a closed widget."""
        return self.experiment.curves

    def frame(self):
        """Return the rows as a table."""
        return self.experiment.frame()

    def start(self) -> None:
        """Run: train in a thread. Does nothing during a run."""
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
                    self._give_back()
                raise
            self._thread = thread

    def stop(self) -> None:
        """Stop: end the training soon. Finished rows stay. A second call changes nothing."""
        self._stopping.set()

    def clear(self) -> None:
        """Clear: forget rows and curves, but leave the file of rows as it is. Does nothing during a run."""
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
        """Save: show links that save table and picture, and the table as text to copy. Does nothing during a run."""
        if not self._take_lock():
            return
        try:
            self.saves.value = save_links(self.frame() if self.rows else None, self.curves.picture().figure)
        finally:
            self._lock.release()

    def run(self) -> None:
        """Train as Run does, but in the cell: with a live picture in its output, and an ordinary figure and table last.

        A script gets only figure and table. An interrupt keeps the finished rows.

        Raises:
            ValueError, LabError, OSError: what the message line shows, or a run is under way.
            TrainingDiverged: rows of a sweep diverged; the other rows are finished.
        """
        from IPython.display import display

        job = self._prepare()
        show = self._work(job, in_cell=True) if job else display
        show(self.curves.picture())
        display(self.frame())

    def close(self) -> None:
        """Stop the training, wait until it has ended, and close the widget with all its parts. ``rows`` stay."""
        if self._closed:
            return
        self.stop()
        self._lock.acquire()  # for good: from now on no button does anything
        self._closed = True
        super().close()
        self.experiment.close()

    def _take_lock(self) -> bool:
        # At the end of a run, the buttons work a moment before the run releases the lock.
        return self._lock.acquire(timeout=0 if self.run_button.disabled else 1)

    def _prepare(self):
        """Check the controls and take the lock. Return the job, or None if there is none; the message says why."""
        if not self._take_lock():
            closed = "this widget is closed: make a new one"
            raise LabError(closed if self._closed else "a run is under way: press Stop, or call stop(), first")
        try:
            self._stopping.clear()
            job, message = self.experiment.prepare()
            self._say(message)
            if job:
                self.saves.value = ""
                self._set_buttons(running=True)
        except BaseException as error:
            self._give_back()
            if isinstance(error, EXPECTED_ERRORS):
                self._say(str(error), error=True)
            raise
        if not job:
            self._give_back()
        return job

    def _set_buttons(self, running: bool) -> None:
        self.run_button.disabled = self.clear_button.disabled = self.save_button.disabled = running
        self.stop_button.disabled = not running

    def _give_back(self) -> None:
        """Enable the buttons and release the lock, even if an interrupt comes meanwhile."""
        try:
            self._running.discard(self)
            self._set_buttons(running=False)
        finally:
            self._lock.release()

    def _work_in_thread(self, job) -> None:
        with contextlib.suppress(*EXPECTED_ERRORS):  # the message line shows them
            self._work(job)

    def _work(self, job, in_cell=False):
        """Train and show it. Whatever happens, the buttons work again afterwards.

        In a cell, draw there too, and return the function that shows the last picture in place of the live one.
        """
        message = problem = ""
        try:
            try:
                from IPython import get_ipython
                from IPython.display import HTML, display

                show = display
                if in_cell and hasattr(get_ipython(), "kernel"):  # a terminal would print every frame
                    self._output = display(HTML(self.image.value), display_id=True)
                    show = self._output.update
                message = self._follow(job)
            except KeyboardInterrupt:
                message = "Interrupted. The finished rows are kept."
                raise
            except Exception as error:
                problem = self._describe(error)
                raise
            finally:
                failure = self.experiment.progress.failure
                self._draw()
                self._show_table()
                problem = " ".join([str(failure), problem] if failure else [problem])
                self._say(f"{problem} {message}".strip(), error=bool(problem))
        finally:
            self._output = None
            self._give_back()
        if failure and in_cell:
            raise failure
        return show

    def _follow(self, job) -> str:
        """Train, keep message, picture and table up to date, and return the last message."""
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
                    whole = self.curves.background is None  # with axes and legend: rare, and slower than other frames
                    began = time.thread_time()  # the time that drawing takes from training, without waiting
                    self._draw()
                    cost = cost if whole else time.thread_time() - began
                    next_frame = time.monotonic() + max(SHORTEST_REDRAW, cost / self.redraw_share)
        return self._status()

    def _status(self) -> str:
        """Move the progress bar, and return the message on the progress."""
        self.progress.value = self.experiment.progress.share
        return self.experiment.progress.message()

    def _draw(self):
        from IPython.display import HTML

        self._show_image(self.curves.frame(), self.curves.alt())
        if self._output:
            self._output.update(HTML(self.image.value))

    def _show_table(self):
        if self.rows:
            self._show_frame(self.frame(), self.experiment.note)
        else:
            self.table.value = ""


def start_alone(processes) -> None:
    """Start a widget's own ranks or servers, and stop those of the same class that another widget has started.

    If a cell runs again, nobody can close its first widget. Small machines have no room for both.
    """
    if (others := _started.get(type(processes))) is not None:
        others.stop()
    _started[type(processes)] = processes
    processes.restart()


def this_cell() -> tuple[str | None, str | None]:
    """Return the notebook cell that runs now, and this run of it; None if there is no notebook."""
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
