"""The widgets of lessons 1 and 2: move a control, and what it does is computed for real and drawn anew.

Work runs in one thread that the controls start; while it runs, further moves only leave word, so that a quick slider
gives one more drawing and not fifty. Works with ipywidgets 7.7 and 8, without pyplot.
"""

from __future__ import annotations

import threading
import time

import ipywidgets
from traitlets import TraitError

from dgc_lab.common import LabError
from dgc_lab.ui.charts import image_tag, png
from dgc_lab.ui.widget_html import framed, message_line, with_tooltips

SHORTEST_REDRAW = 0.25  # seconds; four frames a second are enough for the eye
EXPECTED_ERRORS = (ValueError, LabError)
WIDE = {"style": {"description_width": "9em"}, "layout": ipywidgets.Layout(width="23em")}


class Explorer(ipywidgets.VBox):
    """Controls above a message, a picture and a table; a subclass says what to compute.

    A subclass makes its controls and defines ``result(**values)``, which returns a `dgc_lab.ui.charts.Picture`, a
    ``pandas.DataFrame`` and a sentence, and knows no widget.

    Attributes:
        controls: by name, the widgets whose values go into ``result``.
        frame: the table last shown, as a ``pandas.DataFrame``; None before the first.
        picture: the picture last shown.
    """

    def __init__(self, controls: dict, rows: list, settings: dict):
        self.controls = controls
        with_tooltips(controls.values())
        self.message, self.image, self.table = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()
        self.frame = self.picture = self._error = None
        self._lock = threading.Lock()
        self._wanted = self._done = 0
        self._thread = None
        for name, value in settings.items():
            if name not in controls:
                raise ValueError(f"settings must be among {', '.join(controls)}, got {name!r}")
            set_control(name, controls[name], value)
        for control in controls.values():
            control.observe(self._moved, "value")
        wrap = ipywidgets.Layout(flex_flow="row wrap")
        super().__init__([*(ipywidgets.HBox(row, layout=wrap) for row in rows), self.message, self.image, self.table])
        self._update(self.values())

    def values(self) -> dict:
        """The controls' values by name."""
        return {name: control.value for name, control in self.controls.items()}

    def result(self, **values):
        """What to show for these values: (picture, table, sentence). Subclasses define it."""
        raise NotImplementedError

    def show(self) -> None:
        """Show picture and table as ordinary output, for notebooks that are read without a kernel.

        Raises:
            ValueError, LabError: what the message line says, where the controls' values could not be computed.
        """
        from IPython.display import display

        self.wait()
        if self._error is not None:
            raise self._error
        display(self.picture, self.frame)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until what the controls say is shown; False when it is not within ``timeout`` seconds."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
            return not thread.is_alive()
        return True

    def _moved(self, _):
        with self._lock:
            self._wanted += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def _work(self):
        """Compute until the newest values are shown; each drawing at least a quarter of a second after the last."""
        while True:
            with self._lock:
                if self._done == self._wanted:
                    self._thread = None
                    return
                self._done, values = self._wanted, self.values()
            start = time.monotonic()
            self._say("Computing.")
            self._update(values)
            if self._done != self._wanted:
                time.sleep(max(0.0, start + SHORTEST_REDRAW - time.monotonic()))

    def _update(self, values):
        """Show the result for these values; what goes wrong is said in the message, and the old picture stays."""
        try:
            self.picture, self.frame, said = self.result(**values)
            self.image.value = image_tag(png(self.picture.figure), self.picture.alt)
            looks = self.frame.to_html(index=False, na_rep="", float_format="{:.4g}".format)
            self.table.value = framed(looks)
            self._error = None
            self._say(said)
        except Exception as error:  # whatever it is must be seen: in a thread it would end in silence
            self._error = error
            kind = "" if isinstance(error, EXPECTED_ERRORS) else f"{type(error).__name__}: "
            self._say(f"{kind}{error}{self._left_over()}", error=True)

    def _left_over(self):
        return " (Picture and table below are still those of the values before.)" if self.image.value else ""

    def _say(self, text: str, error: bool = False):
        self.message.value = message_line(text, error)


def columns(controls: dict, height: int) -> list:
    """The controls under one another, in columns of that height."""
    every = list(controls.values())
    return [ipywidgets.VBox(every[start : start + height]) for start in range(0, len(every), height)]


def set_control(name: str, control, value) -> None:
    """Give a control its first value; a ValueError that names it when it takes no such value."""
    try:
        control.value = value
    except TraitError:
        allowed = getattr(control, "_options_values", None) or "a value of another type"
        raise ValueError(f"{name} must be {allowed}, got {value!r}") from None
    if hasattr(control, "max") and control.value != value:  # a slider moves what is out of bounds to its nearest end
        raise ValueError(f"{name} must be from {control.min} to {control.max}, got {value!r}")
