"""Picture of measured steps for lesson 9: the two passes, and the exchanges that overlap the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

from dgc_lab.common import check_some
from dgc_lab.ui.charts import GREY, PALETTE, Picture, stacked_rows

ROWS = ["computation", "exchange"]
LOOKS = {
    "forward pass": {"facecolor": GREY, "edgecolor": "white"},
    "backward pass": {"facecolor": PALETTE[0], "edgecolor": "white"},
    "exchange of a bucket": {"facecolor": PALETTE[1], "edgecolor": "white"},
}
HEIGHT = 0.7


def step_timelines(rows: Sequence[dict]) -> Picture:
    """Draw a measured step of each plan over time: its passes, and the exchange of each bucket.

    The exchange of a bucket is drawn from the moment at which its last gradient was computed, or the previous exchange
    ended, whichever came later. With compression it includes the selection.

    Args:
        rows: rows of `dgc_lab.scaling.measure_overlap`; rows without a step are omitted.

    Raises:
        ValueError: there are no rows with a step, or several of one plan.

    Example:
        >>> step = {"forward": 2.0, "gradients": [4.0, 6.0], "exchanges": [[4.0, 7.0], [6.0, 9.0]]}
        >>> step_timelines([{"plan": "one by one", "timeline": step}]).alt.partition(". ")[2]
        'one by one: the backward pass ends after 6 ms, 2 exchanges from 4 to 9 ms, 2 ms of them during it.'
    """
    rows = check_some("rows with a step", [row for row in check_some("rows", rows) if row["timeline"]])
    panels = {row["plan"]: ROWS for row in rows}
    if len(panels) < len(rows):
        raise ValueError("rows must have each plan once, got several of a plan: choose the rows of one link and study")
    figure, axes_of_rows = stacked_rows(panels, LOOKS, "a gradient is computed", "ms since the start of the step", 1.0)
    forward, backward, exchange = LOOKS.values()
    said = []
    for axes, row in zip(axes_of_rows, rows, strict=True):
        moments = row["timeline"]
        end = max(moments["gradients"])
        _bar(axes, 0, 0, moments["forward"], forward)
        _bar(axes, 0, moments["forward"], end, backward)
        axes.plot(moments["gradients"], [0] * len(moments["gradients"]), "|", color="black", markersize=9, mew=0.6)
        busy = busy_times(moments["exchanges"])
        for start, stop in busy:
            _bar(axes, 1, start, stop, exchange)
        said.append(f"{row['plan']}: the backward pass ends after {end:.3g} ms, {_in_words(busy, end)}")
    return Picture(figure, f"Measured steps over time. {'; '.join(said)}.")


def busy_times(exchanges: list) -> list[tuple[float, float]]:
    """Return start and end of each exchange, given when its bucket was ready and when it was done; one at a time.

    Example:
        >>> busy_times([[4.0, 7.0], [6.0, 9.0]])
        [(4.0, 7.0), (7.0, 9.0)]
    """
    busy, free = [], 0.0
    for ready, done in sorted(exchanges, key=lambda moments: moments[1]):
        busy.append((min(max(ready, free), done), done))
        free = done
    return busy


def _bar(axes, row: int, start: float, end: float, look: dict) -> None:
    axes.barh(row, end - start, HEIGHT, left=start, **look)


def _in_words(busy: list, end: float) -> str:
    if not busy:
        return "no exchange"
    hidden = sum(max(0.0, min(stop, end) - start) for start, stop in busy)
    number = f"{len(busy)} exchange{'s' * (len(busy) > 1)}"
    return f"{number} from {busy[0][0]:.3g} to {busy[-1][1]:.3g} ms, {hidden:.3g} ms of them during it"
