"""The base of the widgets of lessons 1, 2 and 6: move a control, and what it does is computed and drawn anew.

Work runs in one thread that the controls start; while it runs, further moves only leave word, so that a quick slider
gives one more drawing and not fifty.
"""

from __future__ import annotations

import functools
import threading
import time

from dgc_lab.ui.charts import png
from dgc_lab.ui.widget import EXPECTED_ERRORS, SHORTEST_REDRAW, Panel, wide

wider = functools.partial(wide, label=9)


class Explorer(Panel):
    """Controls above a message, a picture and a table: ``frame``, None before the first.

    A subclass makes its controls and defines ``result(**values)``, which returns a `dgc_lab.ui.charts.Picture`, a
    ``pandas.DataFrame`` and a sentence, and knows no widget.
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
        """The controls' values by name."""
        return self._values()

    def show(self) -> None:
        """Show picture and table as ordinary output, for notebooks that are read without a kernel.

        Where the controls' values could not be computed, it raises what the message line says.
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
                except BaseException:  # no thread to be had, or an interrupt
                    if not self._thread.is_alive():
                        self._thread = None
                    raise

    def _work(self):
        """Compute until the newest values are shown; each drawing at least a quarter of a second after the last."""
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
        """Show the result for these values; what goes wrong is said in the message, and the old picture stays."""
        try:
            self.picture, self.frame, said = self.result(**values)
            self._show_image(png(self.picture.figure), self.picture.alt)
            self._show_frame(self.frame)
            self._error = None
            self._say(said)
        except Exception as error:  # whatever it is must be seen: in a thread it would end in silence
            self._error = error
            kind = "" if isinstance(error, EXPECTED_ERRORS) else f"{type(error).__name__}: "
            old = " (The picture and table below still show the previous values.)" if self.image.value else ""
            self._say(f"{kind}{error}{old}", error=True)


def in_columns(controls: dict, height: int) -> list[list]:
    """The controls in columns of that height."""
    every = list(controls.values())
    return [every[start : start + height] for start in range(0, len(every), height)]
