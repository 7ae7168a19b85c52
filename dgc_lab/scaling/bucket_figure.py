"""Lesson 9's picture of buckets: a backward pass fills them, and a link exchanges them meanwhile.

All times are arithmetic from the gradients' sizes and times and a `dgc_lab.scaling.Link`. Nothing is measured, and the
model assumes that an exchange does not slow down the computation. `dgc_lab.scaling.measure_overlap` measures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dgc_lab.common import check_instance, check_list, check_number, check_whole
from dgc_lab.scaling.network import Link, fastest
from dgc_lab.scaling.overlap import fill_buckets
from dgc_lab.ui.charts import PALETTE, Picture, label_panel

MOST_GRADIENTS = 16  # more do not fit on the picture
COMPUTED, STARTS, ENDS = "computed, ms", "exchange starts, ms", "exchange ends, ms"
COLUMNS = ("layer", "bucket", "MB", COMPUTED, STARTS, ENDS)


def model_buckets(sizes: Sequence[int], times: Sequence[float], largest: float, link: Link, ranks: int) -> pd.DataFrame:
    """Model when each gradient is computed, and when its bucket is exchanged.

    The exchange of a bucket starts when its last gradient is computed and the exchange of the previous bucket has
    ended. It takes as long as the fastest allreduce, a ring or two trees, on links that nothing else uses.

    Args:
        sizes: bytes of each gradient, in the order of the backward pass, from the last layer to the first.
        times: ms to compute each gradient, above 0.
        largest: bytes of the largest bucket, at least 0; 0 means one by one, infinity all together at the end.
        link: each rank's link.
        ranks: number of ranks, at least 2.

    Returns:
        A row for each gradient: ``layer``, ``bucket`` (from 0), ``MB``, and three moments in ms since the start of the
        backward pass: ``computed, ms``; ``exchange starts, ms`` and ``exchange ends, ms`` of its bucket.

    Raises:
        ValueError: an argument is out of range, or there are not as many times as sizes.

    Example:
        >>> link = Link(1e9, latency=0, efficiency=1)  # 1 MB takes 1 ms; a ring of two ranks sends each byte once
        >>> model_buckets([10**6] * 4, [2.0] * 4, 2 * 10**6, link, ranks=2)[ENDS].tolist()
        [6.0, 6.0, 10.0, 10.0]

    References:
        arXiv:2006.15704, section 3.2.3 (buckets that overlap the backward pass).
    """
    sizes, times = check_list("sizes", sizes), check_list("times", times)
    buckets = fill_buckets(sizes, largest)
    if len(times) != len(sizes):
        raise ValueError(f"times must have a number for each of the {len(sizes)} sizes, got {len(times)}")
    computed = np.cumsum([check_number("times", time, "above 0 and finite") for time in times])
    check_instance("link", link, Link)
    check_whole("ranks", ranks, 2, 1_000_000)
    rows, ends = [], 0.0
    for number, own in enumerate(buckets):
        size = sum(sizes[place] for place in own)
        starts = max(float(computed[own[-1]]), ends)
        ends = starts + 1000 * link.seconds(*fastest(link, "allreduce", ranks, size))
        for place in own:
            values = len(sizes) - place, number, sizes[place] / 1e6, computed[place], starts, ends
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return pd.DataFrame(rows)


def bucket_moment(modelled: pd.DataFrame, ms: float) -> Picture:
    """Draw a moment of a modelled backward pass: what was computed and exchanged, and how full each bucket is.

    Args:
        modelled: a result of `model_buckets`, of at most 16 gradients.
        ms: the moment, in ms since the start of the backward pass, at least 0.

    Raises:
        ValueError: ``modelled`` lacks a column or has too few or too many rows; or ``ms`` is out of range.

    Example:
        >>> link = Link(1e9, latency=0, efficiency=1)
        >>> bucket_moment(model_buckets([10**6] * 4, [2.0] * 4, 2 * 10**6, link, ranks=2), ms=5).alt.partition(". ")[2]
        'Bucket 0 of layers 4, 3: 50 % done; bucket 1 of layers 2, 1: empty.'

    References:
        arXiv:2006.15704, section 3.2.3.
    """
    if missing := [name for name in COLUMNS if name not in check_instance("modelled", modelled, pd.DataFrame)]:
        raise ValueError(f"modelled must have the columns {'; '.join(COLUMNS)}, but lacks {'; '.join(missing)}")
    check_whole("the number of rows of modelled", len(modelled), 1, MOST_GRADIENTS)
    check_number("ms", ms, "at least 0 and finite")
    figure = Figure(figsize=(8.5, 4.2), dpi=90, layout="constrained")
    over_time, filling = figure.subplots(2, 1, height_ratios=(2, 5))
    start, said = 0.0, []
    for row in modelled.to_dict("records"):
        _draw_bar(over_time, 0, start, min(row[COMPUTED], ms), row["bucket"], row["layer"])
        start = row[COMPUTED]
    for number, own in modelled.groupby("bucket"):
        _draw_bar(over_time, 1, own[STARTS].iloc[0], min(own[ENDS].iloc[0], ms), number, number)
        state = _state(own, ms)
        _draw_bucket(filling, number, own, ms, state)
        said.append(f"bucket {number} of layers {', '.join(map(str, own['layer']))}: {state}")
    last = modelled[ENDS].max()
    over_time.axvline(ms, color="black", linewidth=1)
    over_time.set(xlim=(0, 1.01 * last), ylim=(1.5, -0.5))
    over_time.set_yticks([0, 1], ["gradients of layers", "exchanges of buckets"])
    label_panel(over_time, f"Modelled, not measured: {ms:.3g} ms after the start of the backward pass", "ms")
    filling.set(ylim=(0, 1.2 * modelled.groupby("bucket")["MB"].sum().max()), ylabel="MB")
    label_panel(filling, "Gradients in each bucket, and the share that is exchanged", "bucket")
    filling.set_xticks(range(len(said)))
    ready, done = (modelled[COMPUTED] <= ms).sum(), (modelled.groupby("bucket")[ENDS].first() <= ms).sum()
    title = f"{ms:.3g} of {last:.3g} ms, modelled: {ready} of {len(modelled)} gradients are computed"
    return Picture(figure, f"{title}, {done} of {len(said)} buckets are exchanged. {'; '.join(said).capitalize()}.")


def _state(own: pd.DataFrame, ms: float) -> str:
    """Describe a bucket at this moment."""
    starts, ends = own[STARTS].iloc[0], own[ENDS].iloc[0]
    ready = (own[COMPUTED] <= ms).sum()
    if ready < len(own):
        return f"{ready} of {len(own)}" if ready else "empty"
    if ms < starts:
        return "waits"
    return f"{100 * (ms - starts) / (ends - starts):.0f} % done" if ms < ends else "done"


def _look(bucket: int) -> dict:
    return {"facecolor": (PALETTE[bucket % len(PALETTE)], 0.4), "edgecolor": "black", "linewidth": 0.8}


def _draw_bar(axes, row: int, start: float, end: float, bucket: int, text: int) -> None:
    """Draw a part of the timeline in its bucket's colour, unless it has not started."""
    if end > start:
        axes.barh(row, end - start, 0.8, left=start, **_look(bucket))
        axes.text((start + end) / 2, row, str(text), ha="center", va="center", fontsize=8, clip_on=True)


def _draw_bucket(axes, number: int, own: pd.DataFrame, ms: float, state: str) -> None:
    """Draw a bucket's gradients above each other: those not yet computed are dashed, exchanged ones grey."""
    bottom = 0.0
    for row in own.to_dict("records"):
        computed = row[COMPUTED] <= ms
        look = _look(number) if computed else {"facecolor": "white", "edgecolor": "0.4", "linestyle": "--"}
        if state == "done":
            look["facecolor"] = "0.85"
        axes.bar(number, row["MB"], 0.7, bottom=bottom, **look)
        if computed:
            axes.text(number, bottom + row["MB"] / 2, str(row["layer"]), ha="center", va="center", fontsize=8)
        bottom += row["MB"]
    axes.text(number, bottom, state.removesuffix(" done"), ha="center", va="bottom", fontsize=8)
