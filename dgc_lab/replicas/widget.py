"""The widget of lesson 2: what becomes of the values that replicas give to a variable."""

from __future__ import annotations

import contextlib

from ipywidgets import Dropdown, FloatText, HBox, IntSlider

from dgc_lab.ui.explorer import Explorer, in_columns, wider
from dgc_lab.ui.widget import WRAP, side_by_side, wide


class ReplicaExplorer(Explorer):
    """A variable with a copy on each replica: choose how per-replica values become one, and see every copy.

    ``settings`` are first values of the controls: replicas (2 to 8), aggregation, synchronization, how (``"assign"``,
    ``"assign_add"``, ``"assign_sub"``), initial, and value0 to value7, what each replica gives. A ValueError for
    another name, or a value that its control does not take.

    Example, in a kernel in which `dgc_lab.replicas.start_devices` came before anything else of TensorFlow:
        >>> ReplicaExplorer(replicas=4, aggregation="MEAN").frame["after"].tolist()  # doctest: +SKIP
        [2.5, 2.5, 2.5, 2.5]
    """

    def __init__(self, **settings):
        from dgc_lab.replicas import mirrored_variable as variables

        self._strategies, most = {}, variables.MOST_REPLICAS
        with contextlib.suppress(variables.TooLate):  # small numbers work with fewer devices; others get the message
            variables.start_devices(most)
        controls = {
            "replicas": wider(IntSlider, "Replicas", value=4, min=2, max=most),
            "aggregation": wider(Dropdown, "Aggregation", options=variables.AGGREGATIONS, value="MEAN"),
            "synchronization": wider(Dropdown, "Synchronization", options=variables.SYNCHRONIZATIONS),
            "how": wider(Dropdown, "Call", options=variables.ASSIGNMENTS),
            "initial": wider(FloatText, "Before", value=0),
        }
        self.grid = [wide(FloatText, f"Replica {n}", label=5, field=6, value=n + 1) for n in range(most)]
        rows = [side_by_side(in_columns(controls, 3)), HBox(self.grid, layout=WRAP)]
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
