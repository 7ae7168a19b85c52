"""Figures of the records of lesson 3: who computed and waited when, staleness and loss, each with words for it."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dgc_lab.common import check_choice, check_whole
from dgc_lab.parameter_server.metrics import check_runs, updates
from dgc_lab.parameter_server.schedule import DROPPED
from dgc_lab.ui.charts import GREY, LARGEST_LOSS_SHOWN, PALETTE, Picture, style

MOST_ROWS = 16  # workers drawn per run: more would be too thin to see
LOOKS = {
    "computing": {"facecolor": PALETTE[0]},
    "computing, then dropped": {"facecolor": "white", "edgecolor": PALETTE[1], "hatch": "//////", "linewidth": 0.6},
    "waiting, then reading": {"facecolor": GREY},
    "handing in": {"facecolor": PALETTE[5]},
}


def timelines(runs: dict, seconds: tuple[float, float] | None = None) -> Picture:
    """One row per worker with what it did over time, and above them a mark for each update; runs below each other.

    Args:
        runs: lists of `dgc_lab.parameter_server.schedule.GradientEvent` by name. Of each, the first 16 workers are drawn.
        seconds: first and last second to show; None for as long as some gradients of the slowest worker take.

    Raises:
        ValueError: no run, a run without records, or seconds that do not go forward.
    """
    check_runs(runs)
    start, end = _some_gradients(runs) if seconds is None else seconds
    if not 0 <= start < end < math.inf:
        raise ValueError(f"seconds must be a time of at least 0 and a later one, got {seconds!r}")
    rows = {name: sorted({record.worker for record in records})[:MOST_ROWS] for name, records in runs.items()}
    heights = [0.3 + 0.19 * (1 + len(workers)) for workers in rows.values()]
    figure = Figure(figsize=(9, sum(heights) + 0.75), dpi=90)
    panels = figure.subplots(len(runs), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    # Set by hand, since a layout engine takes longer than the drawing; the legend has 0.72 inches, a title 0.25.
    tall = figure.get_figheight()
    figure.subplots_adjust(0.09, 0.72 / tall, 0.99, 1 - 0.25 / tall, hspace=0.32 * len(runs) / tall)
    said = []
    for axes, (name, records) in zip(panels, runs.items(), strict=True):
        workers = rows[name]
        shares = _draw_workers(axes, records, workers, start, end)
        moments = [moment for moment, _ in updates(records) if start <= moment <= end]
        axes.plot(moments, np.full(len(moments), -1), "|", color="black", markersize=9)
        axes.set_yticks(range(-1, len(workers)), ["updates", *(f"worker {worker}" for worker in workers)], fontsize=8)
        axes.set(xlim=(start, end), ylim=(len(workers) - 0.5, -1.6))
        count = len({record.worker for record in records})
        title = name if count == len(workers) else f"{name} (the first {len(workers)} of {count} workers)"
        axes.set_title(title, fontsize=9, pad=3)
        axes.tick_params(axis="x", labelsize=8)
        doing = ", ".join(f"{what} {share:.0%}" for what, share in shares.items() if share)
        said.append(f"{title}: {len(moments)} updates; of the workers' time {doing or 'nothing yet'}")
    panels[-1].set_xlabel("seconds", fontsize=9, labelpad=1)
    handles = [Patch(label=label, **look) for label, look in LOOKS.items()]
    handles.append(Line2D([], [], color="black", marker="|", linestyle="", markersize=9, label="update"))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=8, frameon=False)
    return Picture(figure, f"What workers did from second {start:.3g} to {end:.3g}. " + "; ".join(said) + ".")


def spans(records, workers, start: float, end: float) -> dict[tuple, list[tuple[float, float]]]:
    """What workers did within a window of time.

    Args:
        records: of `dgc_lab.parameter_server.schedule.GradientEvent`.
        workers: their numbers.
        start: first second of the window.
        end: its last second.

    Returns:
        By worker and look (one of ``LOOKS``): second and length of each stretch of time.

    Example:
        >>> from dgc_lab.parameter_server.schedule import Gradient
        >>> spans([Gradient(0, 0, 0.0, 0.5, 1.5, 2.0, version=0, update=0, loss=2.3)], [0], 1.0, 3.0)[0, "computing"]
        [(1.0, 0.5)]
    """
    found = {(worker, look): [] for worker in workers for look in LOOKS}
    for record in records:
        if record.worker in workers and record.began < end and record.done > start:
            computing = "computing, then dropped" if record.update == DROPPED else "computing"
            moments = [min(max(m, start), end) for m in (record.began, record.read, record.computed, record.done)]
            for look, begin, stop in zip(
                ("waiting, then reading", computing, "handing in"), moments, moments[1:], strict=False
            ):
                if stop > begin:
                    found[record.worker, look].append((begin, stop - begin))
    return found


def _draw_workers(axes, records, workers, start, end) -> dict[str, float]:
    """Bars within a window of time; returns each look's share of these workers' time in it."""
    total = dict.fromkeys(LOOKS, 0.0)
    for (worker, look), bars in spans(records, workers, start, end).items():
        if bars:
            axes.broken_barh(bars, (workers.index(worker) - 0.4, 0.8), **LOOKS[look])
            total[look] += sum(length for _, length in bars)
    return {look: spent / (len(workers) * (end - start)) for look, spent in total.items()}


def _some_gradients(runs) -> tuple[float, float]:
    """From the beginning, long enough to see each worker of each run several times, if the run is so long."""
    length = 0.0
    for records in runs.values():
        busy = {}
        for record in records:
            busy.setdefault(record.worker, []).append(record.done - record.read)
        typical = sorted(float(np.median(times)) for times in busy.values())
        length = max(length, 3 * typical[-1], 10 * typical[0])
    return 0.0, min(length, max(record.done for records in runs.values() for record in records))


def staleness_histograms(runs: dict) -> Picture:
    """A panel per run: which share of the gradients in its updates has which staleness.

    Args:
        runs: lists of `dgc_lab.parameter_server.schedule.GradientEvent` by name.

    Raises:
        ValueError: no run, or a run without records.
    """
    check_runs(runs)
    stale = {
        name: np.array([record.staleness for record in records if record.update != DROPPED], int)
        for name, records in runs.items()
    }
    most = max(values.max(initial=0) for values in stale.values())
    width = math.ceil((most + 1) / 30)  # a bar for each staleness, or for several of them where there are many
    edges = np.arange(0, most + 1 + width, width) - 0.5
    columns = min(len(runs), 2)
    lines = math.ceil(len(runs) / columns)
    figure = Figure(figsize=(9, 0.5 + 1.5 * lines), dpi=90, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
    said = []
    for axes, (name, values) in zip(panels, stale.items(), strict=False):
        shares = np.histogram(values, edges)[0] / max(len(values), 1)
        axes.bar(edges[:-1] + width / 2, shares, width * 0.9, color=PALETTE[0])
        words = f"mean {values.mean():.2f}, at most {values.max()}" if len(values) else "no update"
        axes.set_title(f"{name}: {words}", fontsize=9)
        axes.grid(alpha=0.3, axis="y")
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.xaxis.get_major_locator().set_params(integer=True)
        said.append(f"{name}: {words}, {shares[0]:.0%} {'are 0' if width == 1 else f'below {width}'}")
    for axes in panels[len(runs) - columns : len(runs)]:
        axes.tick_params(labelbottom=True)
    for axes in panels[len(runs) :]:
        axes.set_axis_off()
    figure.supxlabel("staleness: updates between reading and own update", fontsize=9)
    return Picture(figure, "Staleness of the gradients. " + "; ".join(said) + ".")


def loss_curves(runs: dict, by: str = "seconds", smooth: int = 20) -> Picture:
    """Training loss of each run by time or by gradients computed, a running mean over the last gradients.

    Args:
        runs: lists of `dgc_lab.parameter_server.schedule.GradientEvent` by name, measured: simulated ones have no loss.
        by: ``"seconds"`` or ``"gradients"``.
        smooth: over how many gradients to take the mean.

    Raises:
        ValueError: no run, a run without a loss, or an argument not as said above.
    """
    check_runs(runs)
    check_choice("by", by, ("seconds", "gradients"))
    check_whole("smooth", smooth, 1, 1_000_000)
    figure = Figure(figsize=(8, 2.8), dpi=90, layout="constrained")
    axes = figure.subplots()
    said, highest = [], 0.0
    for number, (name, records) in enumerate(runs.items()):
        records = sorted(records, key=lambda record: record.done)
        losses = np.array([record.loss for record in records], float)
        if np.isnan(losses).all():
            raise ValueError(f"runs must hold losses, got none for {name!r}: a simulation computes no gradients")
        means = _running_mean(losses, smooth)
        places = [record.done for record in records] if by == "seconds" else range(1, len(records) + 1)
        width = 1.2 + 0.8 * (len(runs) - 1 - number)  # lines that lie on each other stay visible
        axes.plot(places, means, label=name, linewidth=width, **style(number))
        highest = max(highest, np.max(means, initial=0.0, where=np.isfinite(means)))
        said.append(f"{name}: {means[0]:.3f} at first, {means[-1]:.3f} after {places[-1]:.3g} {by}")
    axes.set(xlabel=by, ylabel=f"training loss, mean of {smooth}", xlim=(0, None))
    axes.set_ylim(0, min(1.05 * highest, LARGEST_LOSS_SHOWN) or 1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return Picture(figure, f"Training loss by {by}. " + "; ".join(said) + ".")


def _running_mean(values, length: int):
    """Mean of each value and those before it, ``length`` in all where there are so many; NaN or infinite from one on
    that is for as long as it is among them."""
    return np.array([values[max(0, end - length) : end].mean() for end in range(1, len(values) + 1)])
