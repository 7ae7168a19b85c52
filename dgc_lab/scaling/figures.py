"""Figures of lesson 6: speed-up and bytes by workers, gain by bandwidth, workers' accuracy, ages; with alt texts.

Modelled values are lines, measured ones are marks, and the labels say which is which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from dgc_lab.common import check_number, check_some, check_text
from dgc_lab.compression.break_even import break_even_ratio
from dgc_lab.scaling.network import GBIT
from dgc_lab.ui.charts import BESIDE, GREY, MARKERS, PALETTE, Picture, grid, label_panel, lines, plain, style

if TYPE_CHECKING:
    import pandas as pd

# Overlapping lines stay visible, because the later one is thinner.
LOOKS = {
    "no exchange": {"color": GREY, "linestyle": ":", "linewidth": 1.5},
    "dense": {"color": PALETTE[1], "linewidth": 2.6},
    "float16": {"color": PALETTE[3], "linewidth": 2, "linestyle": "-."},
    "sparse": {"color": PALETTE[0], "linewidth": 3.2},
    "switching": {"color": "black", "linewidth": 1.4, "linestyle": "--"},
}
MARK = {"markeredgecolor": "black", "linestyle": ""}
MARKS = {
    method: {"color": LOOKS[method]["color"], "marker": marker, **MARK}
    for method, marker in zip(LOOKS, "vsDoo", strict=True)
}
POINT = {"marker": "*", "markersize": 13, "color": PALETTE[6], "linestyle": ""}


def scale_curves(curves: dict, points: list, workers: int, ratio: float, entry_bytes: int) -> Picture:
    """Draw speed-up and bytes of a step by number of workers, and the ratio below which a sparse message is smaller.

    ``curves`` are lists of estimates by method, ``points`` measured steps, ``workers`` and ``ratio`` the user's choice.
    """
    figure, (speed, size, plane) = grid(3, 3, 3, 3.6)
    for method, estimates in curves.items():
        numbers = [estimate.workers for estimate in estimates]
        speed.plot(numbers, [estimate.speed_up for estimate in estimates], **LOOKS[method])
        sent = [(estimate.workers, estimate.passed / 1e6) for estimate in estimates if estimate.passed > 0]
        if sent:
            size.plot(*zip(*sent, strict=True), **LOOKS[method])
    for point in points:
        speed.plot([point.workers], [point.speed_up], markersize=7, zorder=3, **MARKS[point.method])
    numbers = [estimate.workers for estimate in next(iter(curves.values()))]
    ratios = [break_even_ratio(number, entry_bytes) for number in numbers]
    plane.plot(numbers, ratios, color="black", linewidth=1.5)
    plane.fill_between(numbers, ratios, 1, color=PALETTE[1], alpha=0.25, linewidth=0)
    plane.fill_between(numbers, 1e-5, ratios, color=PALETTE[0], alpha=0.25, linewidth=0)
    plane.text(0.95, 0.93, "uncompressed is smaller", transform=plane.transAxes, ha="right", va="top", fontsize=8)
    plane.text(0.05, 0.05, "values and indices are smaller", transform=plane.transAxes, fontsize=8)
    plane.plot([workers], [ratio], **POINT)
    titles = ("speed-up over one worker", "MB per link and step", f"ratio x N = {8 / entry_bytes:.3g}: break-even")
    ticks = [1, 4, 16, 64, 256, 1024]
    for axes, title in zip((speed, size, plane), titles, strict=True):
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(ticks, ticks)
        axes.minorticks_off()
        axes.axvline(workers, color=GREY, linewidth=1, zorder=0)
        label_panel(axes, title, "workers")
    plane.set_ylim(1e-5, 1)
    handles = [Line2D([], [], label=f"{method}, modelled", **LOOKS[method]) for method in curves]
    measured = dict.fromkeys(point.method for point in points)
    handles += [Line2D([], [], label=f"{method}, measured", **MARKS[method]) for method in measured]
    handles.append(Line2D([], [], label="your settings", **POINT))
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=5)
    return Picture(figure, f"Speed-up, bytes and break-even by workers. {_scale_in_words(curves, points, workers)}")


def _scale_in_words(curves, points, workers) -> str:
    """Return the values in `scale_curves` as sentences."""
    texts = []
    for method, estimates in curves.items():
        words = [
            f"speed-up {e.speed_up:.3g} and {e.passed / 1e6:.3g} MB per link with {e.workers}"
            for e in estimates
            if e.workers in (workers, estimates[-1].workers)
        ]
        texts.append(f"{method}, modelled: {', '.join(words)}")
    texts += [f"{p.method}, measured: speed-up {p.speed_up:.3g} with {p.workers}" for p in points]
    return "; ".join(texts) + "."


def lines_and_marks(frame: pd.DataFrame, xlabel: str, ylabel: str, break_even: float | None = None) -> Picture:
    """Draw modelled values as lines and measured ones as marks, on two logarithmic axes.

    ``frame`` has the columns ``curve`` (its name), ``source`` (``"modelled"`` or ``"measured"``), ``x`` and ``y``, and
    optionally ``link``, a name for each x; ``xlabel`` and ``ylabel`` label the axes. ``break_even`` is the height of a
    horizontal line, or None. Raises ValueError if ``frame`` is empty or contains another source.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"curve": "dense", "source": ["modelled", "measured"], "x": 10, "y": [40.0, 42.5]})
        >>> lines_and_marks(frame, "Mbit/s", "ms per step").alt
        'ms per step by Mbit/s. dense, modelled: 40 at 10; dense, measured: 42.5 at 10.'
    """
    check_text("xlabel", xlabel)
    check_text("ylabel", ylabel)
    if break_even is not None:
        check_number("break_even", break_even, "above 0")
    if frame.empty:
        raise ValueError("frame must hold at least one row, got none")
    if set(frame["source"]) - {"modelled", "measured"}:
        raise ValueError(f"source must be modelled or measured, got {sorted(set(frame['source']))}")
    names = frame["link"] if "link" in frame else frame["x"].map("{:g}".format)
    curves, texts, styles, handles = {}, {}, {}, []
    for number, (curve, rows) in enumerate(frame.assign(name=names).groupby("curve", sort=False)):
        line = {"color": PALETTE[number % len(PALETTE)]}
        mark = {**line, **MARK, "marker": MARKERS[number % len(MARKERS)]}
        for source, points in rows.sort_values("x").groupby("source", sort=False):
            label = f"{curve}, {source}"
            curves[label] = points["x"], points["y"]
            texts[label] = ", ".join(f"{y:.3g} at {name}" for name, y in zip(points["name"], points["y"], strict=True))
            styles[label] = mark if source == "measured" else line
        look = {**mark, "linestyle": "-"} if "measured" in set(rows["source"]) else line
        handles.append(Line2D([], [], label=plain(curve), **look))
    title = f"{ylabel} by {xlabel}"
    picture = lines(title, curves, texts, xlabel, ylabel, looks=styles, xscale="log", yscale="log")
    [axes] = picture.figure.axes
    for source, look in {"modelled": {}, "measured": {"marker": "o", **MARK}}.items():
        if source in set(frame["source"]):
            handles.append(Line2D([], [], label=source, color=GREY, **look))
    axes.legend(handles=handles, **BESIDE)
    if "link" in frame:
        ticks = frame.drop_duplicates("link")
        axes.set_xticks(ticks["x"], ticks["link"])
        axes.xaxis.minorticks_off()
    if break_even is not None:
        axes.axhline(break_even, color="black", linestyle="--", linewidth=1)
    axes.grid(alpha=0.3, which="both")
    return picture


def age_histograms(rows: list[dict]) -> Picture:
    """Draw the ages of elements when they are sent, in classes that double: a panel per ratio, a line per N.

    ``rows`` are those of `dgc_lab.scaling.residual_ages`. Raises ValueError if there are none.

    Example:
        >>> row = {"ratio": 0.01, "workers": 8, "mean age": 2.3, "sent by age": [[0, 0, 5], [1, 1, 4], [2, 3, 9]]}
        >>> age_histograms([row]).alt
        'Ages of the elements sent, measured. ratio 0.01, 8 workers: mean age 2.3 steps, most at 2 to 3.'
    """
    ratios = sorted({row["ratio"] for row in check_some("rows", rows)}, reverse=True)
    figure, panels = grid(len(ratios), len(ratios), 9 / len(ratios), 3.3, sharey=True)
    texts = []
    for axes, ratio in zip(panels, ratios, strict=True):
        own = sorted((row for row in rows if row["ratio"] == ratio), key=lambda row: row["workers"])
        for number, row in enumerate(own):
            classes = row["sent by age"]
            counts = np.array([count for _, _, count in classes], float)
            shares = counts / max(counts.sum(), 1)
            label = f"{row['workers']} worker{'s' * (row['workers'] > 1)}"
            axes.plot(range(len(shares)), shares, marker=MARKERS[number % 7], label=label, **style(number))
            first, last, _ = max(classes, key=lambda each: each[2])
            texts.append(f"ratio {ratio:g}, {label}: mean age {row['mean age']:.1f} steps, most at {first} to {last}")
        names = [f"{first}" if first == last else f"{first}-{last}" for first, last, _ in classes]
        axes.set_xticks(range(len(names)), names, fontsize=7, rotation=45)
        label_panel(axes, f"ratio {ratio:g}", "age in steps")
    panels[0].set_ylabel("share of the elements sent", fontsize=9)
    panels[0].set_ylim(0, None)
    panels[-1].legend(**BESIDE)
    return Picture(figure, f"Ages of the elements sent, measured. {'; '.join(texts)}.")


def bandwidth_label(bandwidth: float) -> str:
    """Return a bandwidth, given in bytes per second, as text in Mbit/s or Gbit/s with three digits.

    Raises ValueError if ``bandwidth`` is not above 0.

    Example:
        >>> bandwidth_label(GBIT / 10), bandwidth_label(11.807 * GBIT)
        ('100 Mbit/s', '11.8 Gbit/s')
    """
    gbit = check_number("bandwidth", bandwidth, "above 0") / GBIT
    number, unit = (gbit, "Gbit/s") if gbit >= 1 else (1000 * gbit, "Mbit/s")
    return f"{float(f'{number:.3g}'):g} {unit}"
