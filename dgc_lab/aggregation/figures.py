"""The figures of lessons 0 and 1, with alternative texts: training step, graphs of sums, errors, costs, traces."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dgc_lab.aggregation.allreduce_topologies import bytes_by_link, summary
from dgc_lab.common import check_choice, check_some, check_text, check_whole
from dgc_lab.ui import charts
from dgc_lab.ui.charts import GREY, PALETTE, Picture, style

if TYPE_CHECKING:
    import pandas as pd

KIND_COLOURS = {"AddN": PALETTE[1], "MatMul": PALETTE[0], "Tanh": PALETTE[2], "TanhGrad": PALETTE[3]}
ARROW = {"arrowstyle": "-|>", "color": PALETTE[0], "shrinkA": 11, "shrinkB": 11, "connectionstyle": "arc3,rad=0.12"}
LABEL = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}


def training_step(step: pd.DataFrame) -> Picture:
    """Draw one training step of several workers from left to right: their values and their messages. Lesson 0.

    ``step`` is a ``pandas.DataFrame`` of numbers. It has a row for each worker and up to four columns: the worker's
    value before the step, and after computing, exchanging and updating.

    Example:
        >>> import pandas as pd
        >>> step = pd.DataFrame({"weight": [1, 1], "gradient": [2, 4], "mean": [3, 3]}, index=["worker 0", "worker 1"])
        >>> training_step(step).alt.split(". ")[1]
        'worker 0: weight 1, gradient 2, mean 3; worker 1: weight 1, gradient 4, mean 3'
    """
    workers, columns = step.shape
    figure, [axes] = charts.grid(1, 1, 8, 1.3 + 0.55 * workers)
    box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "black"}
    arrow = {**ARROW, "connectionstyle": "arc3", "shrinkA": 24, "shrinkB": 24}
    for column, stage in enumerate(("compute", "exchange", "update")[: columns - 1]):
        axes.text(column + 0.5, 0.62, stage, ha="center", color=PALETTE[0])
        for sender in range(workers):
            for receiver in range(workers) if stage == "exchange" else [sender]:
                axes.annotate("", (column + 1, -receiver), (column, -sender), arrowprops=arrow)
    for row, (worker, *values) in enumerate(step.itertuples()):
        axes.text(-0.55, -row, worker, ha="center", va="center")
        for column, value in enumerate(values):
            axes.text(column, -row, f"{value:g}", ha="center", va="center", bbox=box)
    for column, name in enumerate(step.columns):
        axes.text(column, 1.05, name, ha="center", fontsize=9)
    below = 0.6 - workers
    axes.annotate("", (0, below), (columns - 1, below), arrowprops={**arrow, "shrinkA": 0, "shrinkB": 0})
    axes.text((columns - 1) / 2, below - 0.08, "the next step starts from the new weights", ha="center", va="top")
    axes.set(xlim=(-0.9, columns - 0.5), ylim=(below - 0.5, 1.4))
    axes.set_axis_off()
    said = (
        f"{worker}: " + ", ".join(f"{name} {value:g}" for name, value in zip(step, values, strict=True))
        for worker, *values in step.itertuples()
    )
    last = "In the exchange, each worker's gradient reaches all workers."
    return Picture(figure, f"One training step of {workers} workers. {'; '.join(said)}. {last}")


def sum_graphs(graphs: dict) -> Picture:
    """Draw the ``AddN`` nodes of several gradients side by side: contributions on the left, the gradient on the right.

    ``graphs`` are lists of `dgc_lab.aggregation.addn_graph.Node` by title, in topological order. Raises ValueError if
    there are no graphs.

    Example:
        >>> from dgc_lab.aggregation import gradient_graph, sum_nodes
        >>> methods = {"all at once": "ADD_N", "in pairs": "EXPERIMENTAL_TREE"}
        >>> sum_graphs({title: sum_nodes(gradient_graph(4, name)[1]) for title, name in methods.items()}).alt[25:]
        'all at once: 1 AddN with 4 inputs, depth 1; in pairs: 3 AddN with 2 inputs, depth 3.'
    """
    from dgc_lab.aggregation.addn_graph import depth

    check_some("graphs", graphs)
    figure, panels = charts.grid(len(graphs), len(graphs), 9 / len(graphs), 3.1)
    said = []
    for axes, (title, nodes) in zip(panels, graphs.items(), strict=True):
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
        made = {node.name for node in nodes}
        leaves = list(dict.fromkeys(name for node in nodes for name in node.inputs if name not in made))
        positions = {name: (0.0, -row) for row, name in enumerate(leaves)}
        for node in nodes:
            inputs = [positions[name] for name in node.inputs]
            end = (1 + max(x for x, _ in inputs), sum(y for _, y in inputs) / len(inputs))
            positions[node.name] = end
            for x, y in inputs:
                axes.plot([x, end[0]], [y, end[1]], color=GREY, linewidth=0.9, zorder=1)
        for label, names, colour, marker in (("contribution", leaves, 4, "o"), ("AddN", made, 1, "s")):
            x, y = np.reshape([positions[name] for name in names], [-1, 2]).T
            axes.scatter(x, y, s=46, zorder=2, color=PALETTE[colour], marker=marker, label=label)
        axes.margins(0.12)
        inputs = " or ".join(map(str, sorted({len(node.inputs) for node in nodes})))
        several = f"{len(nodes)} AddN with {inputs} inputs, depth {depth(nodes)}"
        said.append(f"{title}: {several if nodes else 'no AddN, because the gradient is not a sum'}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return Picture(figure, "Graphs of the additions. " + "; ".join(said) + ".")


def lines(tables: dict, xlabel: str, ylabel: str, guides: dict | None = None) -> Picture:
    """Draw lines on two logarithmic axes, labelled ``xlabel`` and ``ylabel``.

    ``tables`` are lists of ``(x, y)`` by label, and ``guides`` those of theoretical lines: dashed in the colour of the
    line with the same label, otherwise dotted, grey and in the legend. Lines omit points whose y is 0 or not finite,
    but the alternative text contains them. Raises ValueError if an axis label is not text.

    Example:
        >>> lines({"pairwise": [(8, 0.0), (64, 1e-7)]}, "addends", "relative error").alt
        'relative error by addends. pairwise: 0 at 8, 1e-07 at 64.'
    """
    check_text("xlabel", xlabel)
    check_text("ylabel", ylabel)
    curves = {label: _drawable(points) for label, points in tables.items()}
    said = {label: ", ".join(f"{y:.2g} at {x:g}" for x, y in points) for label, points in tables.items()}
    picture = charts.lines(f"{ylabel} by {xlabel}", curves, said, xlabel, ylabel, xscale="log", yscale="log")
    [axes] = picture.figure.axes
    colours = {label: style(number)["color"] for number, label in enumerate(tables)}
    for label, points in (guides or {}).items():
        bound = {"color": colours[label], "linestyle": "--"} if label in colours else None
        axes.plot(*_drawable(points), linewidth=1, **(bound or {"color": GREY, "linestyle": ":", "label": label}))
    axes.legend(**charts.BESIDE)  # again, with the guides
    return picture


def time_dots(panels: dict[str, dict[str, list]], xlabel: str) -> Picture:
    """Draw a panel for each title, with a row of dots for each label: one dot for each measured time.

    ``xlabel`` names the unit of the times. Raises ValueError if there are no panels, or ``xlabel`` is not text.

    Example:
        >>> time_dots({"10 elements": {"chain": [3.0, 4.0], "pairs": [1.0, 2.0]}}, "ms per sum").alt
        'ms per sum. 10 elements: chain 3 to 4, pairs 1 to 2.'
    """
    check_text("xlabel", xlabel)
    figure, every = charts.grid(len(check_some("panels", panels)), 3, 3, 1.7)
    said = []
    for axes, (title, rows) in zip(every, panels.items(), strict=True):
        for row, times in enumerate(rows.values()):
            axes.plot(times, [row] * len(times), "o", markerfacecolor="none", color=PALETTE[row % len(PALETTE)])
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlim=(0, 1.08 * max(map(max, rows.values()))), ylim=(len(rows) - 0.5, -0.5))
        charts.label_panel(axes, title, xlabel)
        ranges = (f"{label} {charts.short(min(times))} to {charts.short(max(times))}" for label, times in rows.items())
        said.append(f"{title}: {', '.join(ranges)}")
    return Picture(figure, f"{xlabel}. {'; '.join(said)}.")


def loss_differences(losses: dict[str, list]) -> Picture:
    """Draw the first run's training loss by step, and in further panels how far each other run's loss is from it.

    ``losses`` has a list of floats, one per step, for each label. Raises ValueError if it is empty.

    Example:
        >>> loss_differences({"ADD_N": [2.0, 1.0], "chain": [2.0, 1.25]}).alt
        'Training loss of ADD_N: from 2.000 to 1.000. Largest difference from it: chain 0.25.'
    """
    (first, reference), *others = check_some("losses", losses).items()
    figure, (axes, *panels) = charts.grid(len(losses), 3, 3, 2)
    axes.plot(range(1, len(reference) + 1), reference, color="black")
    charts.label_panel(axes, f"{first}: training loss", "step")
    gaps = {label: np.subtract(run, reference) for label, run in others}
    largest = {label: np.abs(gap).max() for label, gap in gaps.items()}
    limit = 1.1 * max(largest.values(), default=0) or 1  # 1 if all runs are equal
    for number, (axes, (label, gap)) in enumerate(zip(panels, gaps.items(), strict=True)):
        axes.plot(range(1, len(gap) + 1), gap, color=PALETTE[number % len(PALETTE)])
        axes.set_ylim(-limit, limit)
        axes.yaxis.set_major_formatter("{x:.2g}")
        charts.label_panel(axes, f"{label} - {first}", "step")
    said = ", ".join(f"{label} {gap:.2g}" for label, gap in largest.items()) or "no other run"
    start = f"Training loss of {first}: from {reference[0]:.3f} to {reference[-1]:.3f}"
    return Picture(figure, f"{start}. Largest difference from it: {said}.")


def _drawable(points):
    """Return x and y of the points that a logarithmic axis can show."""
    shown = [(x, y) for x, y in points if math.isfinite(y) and y > 0]
    return zip(*shown, strict=True) if shown else ([], [])


def timeline(traces: dict) -> Picture:
    """Draw two panels for each trace: its operations as bars over time, and its memory.

    ``traces`` are `dgc_lab.aggregation.profiling.Trace` by title. Raises ValueError if there are no traces.

    Example:
        >>> from dgc_lab.aggregation.profiling import make_trace
        >>> trace = make_trace([("MatMul", 0.0, 0.002), ("AddN", 0.002, 0.003)], [(0.0, 4e6), (0.003, -4e6)])
        >>> timeline({"a sum of two": trace}).alt
        'Operations over time, and memory in use. a sum of two: 1 AddN, 3.00 ms, peak 4.00 MB.'
    """
    check_some("traces", traces)
    figure = Figure(figsize=(9, 2.1 * len(traces) + 0.4), dpi=90, layout="constrained")
    panels = figure.subplots(len(traces), 2, squeeze=False, width_ratios=(3, 2), sharex="row")
    highest = max(trace.peak_bytes for trace in traces.values()) / 1e6 or 1  # if no memory was allocated
    said = []
    for (bars, memory), (title, trace) in zip(panels, traces.items(), strict=True):
        for lane, operation in _lanes(trace.operations):
            colour = KIND_COLOURS.get(operation.kind.removeprefix("_Mkl"), GREY)
            duration = 1e3 * (operation.end - operation.start)
            bars.broken_barh([(1e3 * operation.start, duration)], (lane, 0.8), color=colour)
        bars.set_title(title, fontsize=9)
        bars.set(yticks=[], xlabel="ms")
        moments, held = np.array(trace.memory).T
        memory.step(1e3 * moments, held / 1e6, where="post", color="black", linewidth=1)
        memory.set(xlabel="ms", ylabel="MB held", ylim=(0, 1.08 * highest))
        ms, peak = 1e3 * trace.seconds, trace.peak_bytes / 1e6
        said.append(f"{title}: {trace.count('AddN')} AddN, {ms:.2f} ms, peak {peak:.2f} MB")
    handles = [Patch(color=colour, label=kind) for kind, colour in {**KIND_COLOURS, "other": GREY}.items()]
    figure.legend(handles=handles, fontsize=7, loc="outside lower center", ncols=len(handles))
    return Picture(figure, "Operations over time, and memory in use. " + "; ".join(said) + ".")


def _lanes(operations):
    """Yield each operation with the lowest row that is free when it starts, so that bars do not overlap."""
    ends = []
    for operation in operations:
        lane = next((row for row, end in enumerate(ends) if end <= operation.start), len(ends))
        ends[lane : lane + 1] = [operation.end]
        yield lane, operation


def links(exchanges: dict, workers: int) -> Picture:
    """Draw the bytes between workers: workers on a circle, and an arrow for each link, with its total bytes.

    ``exchanges`` are lists of `dgc_lab.aggregation.allreduce_topologies.Message` by title, all between this number of
    ``workers``. Raises ValueError if a message has a worker beyond this number.

    Example:
        >>> from dgc_lab.aggregation import exchange
        >>> _, messages = exchange([np.ones(100, np.float32)] * 4, "ring")
        >>> links({"ring": messages}, workers=4).alt.split("ring: ")[1]
        '4 links in use, at most 600 bytes on one, 1200 bytes in and out of the busiest worker.'
    """
    check_some("exchanges", exchanges)
    last = max((max(m.sender, m.receiver) for each in exchanges.values() for m in each), default=0)
    check_whole("workers", workers, 1 + last, 1024)
    figure, panels = charts.grid(len(exchanges), len(exchanges), 3.1, 3.3)
    angles = np.pi / 2 - 2 * np.pi * np.arange(workers) / workers
    positions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    said = []
    for axes, (title, messages) in zip(panels, exchanges.items(), strict=True):
        carried = bytes_by_link(messages)
        for (sender, receiver), size in carried.items():
            start, end = positions[sender], positions[receiver]
            axes.annotate("", end, start, arrowprops=ARROW)
            if sender > receiver or (receiver, sender) not in carried:  # both directions carry the same: label once
                middle = (start + end) / 2
                axes.text(*middle, f"{size / 1e3:.3g} kB", fontsize=7, ha="center", va="center", bbox=LABEL)
        axes.scatter(*positions.T, s=260, color="white", edgecolor="black", zorder=3)
        for worker, position in enumerate(positions):
            axes.text(*position, str(worker), ha="center", va="center", zorder=4, fontsize=9)
        figures = summary(messages)
        axes.set_title(f"{title}: {figures['steps']} steps", fontsize=9)
        axes.set(xlim=(-1.35, 1.35), ylim=(-1.3, 1.3), aspect="equal")
        axes.set_axis_off()
        said.append(
            f"{title}: {len(carried)} links in use, at most {figures['busiest link']} bytes on one, "
            f"{figures['busiest worker']} bytes in and out of the busiest worker"
        )
    return Picture(figure, f"{workers} workers and the bytes that their links carry. " + "; ".join(said) + ".")


def error_and_time_bars(rows: list[dict], chosen: str) -> Picture:
    """Draw relative error, on a logarithmic axis, and ms of each method, with the ``chosen`` method in colour.

    ``rows`` are those of `dgc_lab.aggregation.measure`, at least one. Raises ValueError if no row has the ``chosen``
    method.

    Example:
        >>> kahan = {"method": "kahan", "error": 0.0, "seconds": 0.02}
        >>> error_and_time_bars([{"method": "add_n", "error": 2e-7, "seconds": 0.001}, kahan], chosen="kahan").alt
        'Relative error (left) and time (right) by method. add_n: error 2.0e-07, 1 ms; kahan: error exact, 20 ms.'
    """
    check_choice("chosen", chosen, [row["method"] for row in check_some("rows", rows)])
    figure, (error_axes, time_axes) = charts.grid(2, 2, 4.5, 2.7)
    finite = [row["error"] for row in rows if 0 < row["error"] < math.inf]
    low, high = min(finite, default=1e-8) / 10, max(finite, default=1.0) * 20
    said = []
    label = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
    for position, row in enumerate(rows):
        colour = PALETTE[1] if row["method"] == chosen else GREY
        error, ms = row["error"], 1e3 * row["seconds"]
        words = "overflow" if math.isinf(error) else f"{error:.1e}" if error else "exact"
        error_axes.barh(position, min(max(error, low), high), color=colour, hatch="//" if math.isinf(error) else None)
        end = high / 8 if math.isinf(error) else max(error, low)
        error_axes.annotate(words, (end, position), bbox=LABEL, **label)
        time_axes.barh(position, ms, color=colour)
        time_axes.annotate(f"{ms:.3g}", (ms, position), **label)
        said.append(f"{row['method']}: error {words}, {ms:.3g} ms")
    error_axes.set(xscale="log", xlim=(low, high), xlabel="relative error")
    time_axes.set(xlabel="ms per call", xlim=(0, 1.2e3 * max(row["seconds"] for row in rows)))
    for axes in (error_axes, time_axes):
        axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
        axes.invert_yaxis()
    return Picture(figure, "Relative error (left) and time (right) by method. " + "; ".join(said) + ".")
