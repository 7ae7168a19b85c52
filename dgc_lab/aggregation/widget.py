"""The widget of lesson 1: error and time of every summation method on the same addends."""

from __future__ import annotations

from ipywidgets import Dropdown, FloatSlider, SelectionSlider

from dgc_lab.ui.explorer import Explorer, in_columns, wider
from dgc_lab.ui.widget import side_by_side


class AggregationExplorer(Explorer):
    """Widget that sums the same addends with every method and shows relative error and time as bars.

    The chosen method is in colour. ``settings`` are initial values of the controls: method, dtype, addends (a power of
    two from 2 to 4 096), spread (decades, 0 to 8), signs, order, as in `dgc_lab.aggregation.summation.make_addends`.
    Raises ValueError if a setting is not the name of a control, or its value is not accepted.

    Example:
        >>> explorer = AggregationExplorer(dtype="float16", addends=64)
        >>> explorer.frame["method"].tolist()
        ['sequential', 'pairwise', 'add_n', 'accumulate_n', 'kahan']
    """

    def __init__(self, **settings):
        from dgc_lab.aggregation.summation import DTYPES, METHODS, ORDERS, SIGNS

        powers = [2**power for power in range(1, 13)]
        decades = {"value": 0, "min": 0, "max": 8, "step": 0.5, "readout_format": ".1f"}
        controls = {
            "method": wider(Dropdown, "Method", options=list(METHODS), value="add_n"),
            "dtype": wider(Dropdown, "Dtype", options=DTYPES[:3], value="float32"),
            "addends": wider(SelectionSlider, "Addends", options=powers, value=256),
            "spread": wider(FloatSlider, "Spread, decades", **decades),
            "signs": wider(Dropdown, "Signs", options=SIGNS),
            "order": wider(Dropdown, "Order", options=ORDERS),
        }
        self._measured = (None, None)
        super().__init__(controls, [side_by_side(in_columns(controls, 3))], settings)

    def result(self, method, dtype, addends, spread, signs, order):
        """Measure every method on these addends; if only the chosen method changes, reuse the measurements."""
        import pandas as pd

        from dgc_lab.aggregation.figures import error_and_time_bars
        from dgc_lab.aggregation.rounding_error import measure
        from dgc_lab.aggregation.summation import make_addends

        options = {"dtype": dtype, "spread": spread, "signs": signs, "order": order}
        if self._measured[0] != (addends, options):
            self._measured = ((addends, options), measure(make_addends(addends, **options)))
        rows = self._measured[1]
        errors = {row["method"]: row["error"] for row in rows}
        best = min(errors.values())
        said = f"{method}: relative error {errors[method]:.2g}"
        said += f", {errors[method] / best:.3g} times the smallest error." if best > 0 else "."
        frame = pd.DataFrame(
            {
                "method": list(errors),
                "relative error": [f"{error:.2g}" for error in errors.values()],
                "ms": [1e3 * row["seconds"] for row in rows],
            }
        )
        return error_and_time_bars(rows, method), frame, said
