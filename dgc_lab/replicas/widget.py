"""The widget of lesson 2: how the values that replicas assign to a variable are aggregated."""

from __future__ import annotations

import contextlib

from ipywidgets import Dropdown, FloatText, HBox, IntSlider

from dgc_lab.ui.explorer import Explorer, in_columns, wider
from dgc_lab.ui.widget import WRAP, side_by_side, wide


class ReplicaExplorer(Explorer):
    """Widget that aggregates the values that replicas assign to a variable, and shows every replica's copy.

    ``settings`` are initial values of the controls: replicas (2 to 8), aggregation, synchronization, how
    (``"assign"``, ``"assign_add"``, ``"assign_sub"``), initial, and value0 to value7, the value of each replica. Raises
    ValueError if a setting is not the name of a control, or its value is not accepted.

    Example:
        After `dgc_lab.replicas.start_devices`, called before any other use of TensorFlow:

        >>> ReplicaExplorer(replicas=4, aggregation="MEAN").frame["after"].tolist()  # doctest: +SKIP
        [2.5, 2.5, 2.5, 2.5]
    """

    def __init__(self, **settings):
        from dgc_lab.replicas import mirrored_variable as variables

        self._strategies, most = {}, variables.MAX_REPLICAS
        with contextlib.suppress(variables.TooLate):  # raised again for a number of replicas without enough devices
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
        controls.update({f"value{replica}": control for replica, control in enumerate(self.grid)})
        controls["replicas"].observe(lambda _: self._show_grid(), "value")
        super().__init__(controls, rows, settings)
        self._show_grid()

    def _show_grid(self):
        """Show as many fields as there are replicas."""
        for replica, control in enumerate(self.grid):
            control.layout.display = None if replica < self.controls["replicas"].value else "none"

    def result(self, replicas, aggregation, synchronization, how, initial, **values):
        """Create the variable on real replicas, let each replica assign its value, and read it."""
        import pandas as pd

        from dgc_lab.replicas.figures import copies_before_and_after, in_words
        from dgc_lab.replicas.mirrored_variable import mirrored, try_pair

        if replicas not in self._strategies:
            self._strategies[replicas] = mirrored(replicas)
        given = list(values.values())[:replicas]
        outcome = try_pair(self._strategies[replicas], given, aggregation, synchronization, how, initial)
        columns = {"replica": range(replicas), "before": outcome.before, "assigned": given, "after": outcome.after}
        frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in columns.items()})
        picture = copies_before_and_after(outcome, given, f"{how}, aggregation {aggregation}, {synchronization}")
        return picture, frame, in_words(outcome, given)
