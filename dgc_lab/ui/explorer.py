"""The widgets of lessons 1 and 2: move a control, and what it does is computed for real and drawn anew.

Work runs in one thread that the controls start; while it runs, further moves only leave word, so that a quick slider
gives one more drawing and not fifty. Works with ipywidgets 7.7 and 8, without pyplot.
"""

from __future__ import annotations

import contextlib
import threading
import time

import ipywidgets
from dgc_lab.common import LabError
from traitlets import TraitError

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


class AggregationExplorer(Explorer):
    """Add up the same addends by every method: bars of relative error and of time, the chosen method in colour.

    Args:
        settings: first values of the controls: method, dtype, addends (a power of two from 2 to 4 096), spread
            (decades, 0 to 8), signs, order; as in `dgc_lab.aggregation.summation.make_addends`.

    Raises:
        ValueError: a keyword is not the name of a control, or its value is none that the control takes.

    Example:
        >>> explorer = AggregationExplorer(dtype="float16", addends=64)
        >>> explorer.frame["method"].tolist()
        ['sequential', 'pairwise', 'add_n', 'accumulate_n', 'kahan']
    """

    def __init__(self, **settings):
        from dgc_lab.aggregation.summation import DTYPES, METHODS, ORDERS, SIGNS

        controls = {
            "method": ipywidgets.Dropdown(options=list(METHODS), value="add_n", description="Method", **WIDE),
            "dtype": ipywidgets.Dropdown(options=DTYPES[:3], value="float32", description="Dtype", **WIDE),
            "addends": ipywidgets.SelectionSlider(
                options=[2**power for power in range(1, 13)], value=256, description="Addends", **WIDE
            ),
            "spread": ipywidgets.FloatSlider(
                value=0, min=0, max=8, step=0.5, description="Spread, decades", readout_format=".1f", **WIDE
            ),
            "signs": ipywidgets.Dropdown(options=SIGNS, description="Signs", **WIDE),
            "order": ipywidgets.Dropdown(options=ORDERS, description="Order", **WIDE),
        }
        self._measured = (None, None)
        super().__init__(controls, [columns(controls, 3)], settings)

    def result(self, method, dtype, addends, spread, signs, order):
        """Measure every method on these addends; choosing another method alone measures nothing anew."""
        import pandas as pd

        from dgc_lab.aggregation.figures import error_and_time_bars
        from dgc_lab.aggregation.rounding_error import measure
        from dgc_lab.aggregation.summation import make_addends

        asked = {"dtype": dtype, "spread": spread, "signs": signs, "order": order}
        if self._measured[0] != (addends, asked):
            self._measured = ((addends, asked), measure(make_addends(addends, **asked), repeats=1))
        rows = self._measured[1]
        chosen = next(row for row in rows if row["method"] == method)
        best = min(row["error"] for row in rows)
        said = f"{method}: relative error {chosen['error']:.2g}"
        said += f", {chosen['error'] / best:.3g} times the smallest here." if best > 0 else "."
        frame = pd.DataFrame(
            {
                "method": [row["method"] for row in rows],
                "relative error": [f"{row['error']:.2g}" for row in rows],
                "ms": [1e3 * row["seconds"] for row in rows],
            }
        )
        return error_and_time_bars(rows, method), frame, said


class ReplicaExplorer(Explorer):
    """A variable with a copy on each replica: choose how per-replica values become one, and see every copy.

    Args:
        settings: first values of the controls: replicas (2 to 8), aggregation, synchronization, how (``"assign"``,
            ``"assign_add"``, ``"assign_sub"``), initial, and value0 to value7, what each replica gives.

    Raises:
        ValueError: a keyword is not the name of a control, or its value is none that the control takes.

    Example, in a kernel in which `dgc_lab.replicas.mirrored_variable.start_devices` came before anything else of TensorFlow::

        ReplicaExplorer(replicas=4, aggregation="MEAN")
    """

    def __init__(self, **settings):
        from dgc_lab.replicas.mirrored_variable import (
            AGGREGATIONS,
            ASSIGNMENTS,
            MOST_REPLICAS,
            SYNCHRONIZATIONS,
            TooLate,
            start_devices,
        )

        self._strategies = {}
        with contextlib.suppress(TooLate):  # with fewer devices small numbers of replicas work; others get the message
            start_devices(MOST_REPLICAS)
        controls = {
            "replicas": ipywidgets.IntSlider(value=4, min=2, max=MOST_REPLICAS, description="Replicas", **WIDE),
            "aggregation": ipywidgets.Dropdown(options=AGGREGATIONS, value="MEAN", description="Aggregation", **WIDE),
            "synchronization": ipywidgets.Dropdown(options=SYNCHRONIZATIONS, description="Synchronization", **WIDE),
            "how": ipywidgets.Dropdown(options=ASSIGNMENTS, description="Call", **WIDE),
            "initial": ipywidgets.FloatText(value=0, description="Before", **WIDE),
        }
        self.grid = [
            ipywidgets.FloatText(
                value=place + 1,
                description=f"Replica {place}",
                style={"description_width": "5em"},
                layout=ipywidgets.Layout(width="11em"),  # one each: fields are shown and hidden one by one
            )
            for place in range(MOST_REPLICAS)
        ]
        rows = [columns(controls, 3), self.grid]
        controls.update({f"value{place}": control for place, control in enumerate(self.grid)})
        controls["replicas"].observe(lambda _: self._show_grid(), "value")
        super().__init__(controls, rows, settings)
        self._show_grid()

    def _show_grid(self):
        """As many fields as there are replicas."""
        for place, control in enumerate(self.grid):
            control.layout.display = None if place < self.controls["replicas"].value else "none"

    def result(self, replicas, aggregation, synchronization, how, initial, **values):
        """Make the variable on real replicas, let each assign its value, and read it."""
        import pandas as pd

        from dgc_lab.replicas.figures import copies_before_and_after, in_words
        from dgc_lab.replicas.mirrored_variable import mirrored, try_pair

        if replicas not in self._strategies:
            self._strategies[replicas] = mirrored(replicas)
        given = list(values.values())[:replicas]
        outcome = try_pair(self._strategies[replicas], given, aggregation, synchronization, how, initial)
        columns = {"replica": range(replicas), "before": outcome.before, "value given": given, "after": outcome.after}
        frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in columns.items()})
        picture = copies_before_and_after(outcome, given, f"{how}, aggregation {aggregation}, {synchronization}")
        return picture, frame, in_words(outcome, given)
