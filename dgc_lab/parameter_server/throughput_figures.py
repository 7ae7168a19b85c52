"""Figures of the tables of lesson 3: throughput, and what becomes of it with more workers, each with words for it."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from dgc_lab.aggregation.figures import MARKERS
from dgc_lab.ui.charts import GREY, PALETTE, Picture, style

HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo")


def throughput_bars(frame, xlabel: str = "gradients/s") -> Picture:
    """Horizontal bars of a speed: a group for each row of a table, a bar in it for each column.

    Args:
        frame: numbers, such as a column of `dgc_lab.parameter_server.metrics.summary`, or one row per straggler and a column per mode.
        xlabel: what the numbers are.

    Raises:
        ValueError: the table is empty.
    """
    if not frame.size:
        raise ValueError(f"frame must hold at least one number, got {frame.shape[0]} rows and {frame.shape[1]} columns")
    rows, columns = frame.shape
    figure = Figure(figsize=(8, 0.8 + rows * (0.12 + 0.2 * columns)), dpi=90, layout="constrained")
    axes = figure.subplots()
    thick = 0.84 / columns
    for number, column in enumerate(frame.columns):
        places = np.arange(rows) + thick * (number - (columns - 1) / 2)
        look = {"color": PALETTE[number % 7], "hatch": HATCHES[number % 7], "edgecolor": "white", "linewidth": 0}
        bars = axes.barh(places, frame[column], thick * 0.92, label=str(column), **look)
        axes.bar_label(bars, [_short(value) for value in frame[column]], fontsize=8, padding=3)
    axes.set_yticks(range(rows), [str(row) for row in frame.index], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel(xlabel, fontsize=9)
    if columns > 1:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    said = (
        f"{row}: " + ", ".join(f"{column} {_short(value)}" for column, value in zip(frame.columns, values, strict=True))
        for row, *values in frame.itertuples()
    )
    return Picture(figure, f"{xlabel}. " + "; ".join(said) + ".")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def by_workers(frame) -> Picture:
    """Gradients a second, mean staleness and idle share by number of workers: lines simulated, large marks measured.

    Args:
        frame: rows of `dgc_lab.parameter_server.simulation.scale_row`, from `sweep_workers` and from measured runs.

    Raises:
        ValueError: the table is empty.
    """
    if not frame.size:
        raise ValueError("frame must hold at least one row, got none")
    figure = Figure(figsize=(9, 3.3), dpi=90, layout="constrained")
    panels = dict(zip(("gradients/s", "mean staleness", "idle share"), figure.subplots(1, 3), strict=True))
    schedules = dict(list(frame.sort_values("workers", kind="stable").groupby("schedule", sort=False)))
    handles, said = [], []
    for number, (name, rows) in enumerate(schedules.items()):
        look = {"color": style(number)["color"], "marker": MARKERS[number % len(MARKERS)]}
        handles.append(Line2D([], [], label=name, **look))
        for source, points in rows.groupby("source"):
            # Lines that lie on each other stay visible.
            shape = {"linewidth": 1.2 + 1.2 * (len(schedules) - 1 - number), "markersize": 4}
            if source == "measured":
                shape = {"linestyle": "", "markersize": 9, "markeredgecolor": "black", "zorder": 3}
            for column, axes in panels.items():
                axes.plot(points["workers"], points[column], **look, **shape)
            said += [f"{name}, {source}: {_scale_in_words(row)}" for _, row in points.iloc[[0, -1]].iterrows()]
    workers = sorted(set(frame["workers"]))
    for column, axes in panels.items():
        axes.set_xscale("log")
        axes.set_xticks(*[workers[:: math.ceil(len(workers) / 5)]] * 2)
        axes.set_xlabel("workers", fontsize=9)
        axes.set_title(column, fontsize=9)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
    panels["gradients/s"].set_yscale("log")
    panels["gradients/s"].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panels["mean staleness"].set_yscale("symlog", linthresh=1)
    panels["mean staleness"].set_ylim(-0.2, None)
    panels["idle share"].set_ylim(0, 1)
    for axes in panels.values():
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,.5g}")
    grey = {"color": GREY, "marker": "o", "markeredgecolor": "black", "markersize": 9}
    handles.append(Line2D([], [], linestyle="", label="measured", **grey))
    handles.append(Line2D([], [], color=GREY, label="simulated"))
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=3)
    said = "; ".join(dict.fromkeys(said))
    return Picture(figure, f"Speed, staleness and idle share by number of workers. {said}.")


def _scale_in_words(row) -> str:
    return (
        f"{row['workers']} workers {_short(row['gradients/s'])} gradients/s, mean staleness "
        f"{_short(row['mean staleness'])}, idle {row['idle share']:.0%}"
    )
