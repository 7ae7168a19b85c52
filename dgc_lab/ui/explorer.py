"""The base class of the widgets of lessons 1, 2, 3, 6 and 9 that compute and draw when a control moves.

Moving a control starts one thread that computes. Moves while it works only increment a counter, so a quickly moved
slider causes one more drawing, not fifty.
"""

from __future__ import annotations

import functools
import threading
import time

from dgc_lab.ui.charts import png
from dgc_lab.ui.widget import SHORTEST_REDRAW, Panel, wide

wider = functools.partial(wide, label=10.6, field=17)
ENLARGED = 1.3  # pictures use the width of a large page; on a narrower one, the browser reduces them


class Explorer(Panel):
    """Base class for panels with controls above a message, a picture and a table.

    A subclass creates its controls and defines ``result(**values)``, a function of their values. It returns a
    `dgc_lab.ui.charts.Picture`, a ``pandas.DataFrame`` and a sentence, and uses no widgets.

    Args:
        controls, rows, settings: as in `Panel`.

    Attributes:
        frame, picture: the latest result; None before the first.
    """

    def __init__(self, controls: dict, rows: list, settings: dict):
        self.frame = self.picture = self._error = None
        self._lock = threading.Lock()
        self._wanted = self._done = self._next = 0
        super().__init__(controls, rows, settings)
        for control in controls.values():
            control.observe(self._moved, "value")
        self._update(self.values())

    def values(self) -> dict:
        """Return the controls' values by name."""
        return self._values()

    def show(self) -> None:
        """Show picture and table as ordinary output, which readers of a notebook can see without a kernel.

        Raises:
            Exception: the latest result could not be computed; the message line shows the same error.
        """
        from IPython.display import display

        self.wait()
        if self._error is not None:
            raise self._error
        display(self.picture, self.frame)

    def _moved(self, _):
        with self._lock:
            self._wanted += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                try:
                    self._thread.start()
                except BaseException:  # the system has no threads left, or an interrupt
                    if not self._thread.is_alive():
                        self._thread = None
                    raise

    def _work(self):
        """Compute until the latest values are shown, with at least `SHORTEST_REDRAW` between two drawings."""
        while True:
            with self._lock:
                if self._done == self._wanted:
                    self._thread = None
                    return
            time.sleep(max(0.0, self._next - time.monotonic()))
            with self._lock:
                self._done, values = self._wanted, self.values()
            self._say("Computing.")
            self._update(values)
            self._next = time.monotonic() + SHORTEST_REDRAW

    def _update(self, values):
        """Show the result for these values. After an error, show the error and keep the old picture."""
        try:
            self.picture, self.frame, said = self.result(**values)
            self._show_panels([png(self.picture.figure, ENLARGED)], self.picture.alt)
            self._show_frame(self.frame)
            self._error = None
            self._say(said)
        except Exception as error:  # it would be lost in a thread
            self._error = error
            old = " (The picture and table below still show the previous values.)" if self.image.value else ""
            self._say(self._describe(error) + old, error=True)


def in_columns(controls: dict, height: int) -> list[list]:
    """Arrange the controls in columns of at most ``height``."""
    every = list(controls.values())
    return [every[start : start + height] for start in range(0, len(every), height)]
