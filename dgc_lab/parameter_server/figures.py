"""The figures of lesson 3 about schedules: timelines of workers, staleness, stable rates, scaling to many workers."""

from __future__ import annotations

import itertools
import math

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from dgc_lab.common import check_number
from dgc_lab.parameter_server.metrics import check_runs, stalenesses, table_of, update_times
from dgc_lab.parameter_server.schedule import DROPPED
from dgc_lab.parameter_server.stability import guaranteed_rate, stable_rate
from dgc_lab.ui import charts
from dgc_lab.ui.charts import GREY, MARKERS, PALETTE, Picture, short

MAX_ROWS = 16  # workers drawn per run; the rows of more would be too thin
STROKES = ("-", "--", "-.", (0, (1, 1)))  # lines that coincide stay distinguishable
LOOKS = {
    "computing": {"facecolor": PALETTE[0]},
    "computing, then dropped": {"facecolor": "white", "edgecolor": PALETTE[1], "hatch": "//////", "linewidth": 0.6},
    "waiting, then reading": {"facecolor": GREY},
    "submitting": {"facecolor": PALETTE[5]},
}


def timelines(runs: dict, seconds: float | None = None) -> Picture:
    """Draw the first seconds of each run: a row of activities per worker, and a mark for each update above them.

    Args:
        runs: lists of `dgc_lab.parameter_server.GradientEvent` by name. The first 16 workers of each are drawn.
        seconds: length of the time axis, above 0; if None, as long as a few gradients of the slowest worker take.

    Raises:
        ValueError: there are no runs, a run has no records, or ``seconds`` is out of range.
    """
    check_runs(runs)
    if seconds is not None:
        check_number("seconds", seconds, "above 0 and finite")
    end, rows = seconds or _seconds_to_draw(runs), {}
    for name, records in runs.items():
        workers = sorted({record.worker for record in records})
        some = f" (the first {MAX_ROWS} of {len(workers)} workers)" * (len(workers) > MAX_ROWS)
        rows[f"{name}{some}"] = workers[:MAX_ROWS]
    names = {title: ["updates", *(f"worker {worker}" for worker in workers)] for title, workers in rows.items()}
    figure, panels = charts.stacked_rows(names, LOOKS, "update", "seconds", left=0.81, first=-1)
    said = []
    for axes, (title, workers), records in zip(panels, rows.items(), runs.values(), strict=True):
        shares = _draw_workers(axes, records, workers, end)
        moments = [moment for moment in update_times(records).values() if moment <= end * (1 + 1e-9)]
        axes.plot(moments, np.full(len(moments), -1), "|", color="black", markersize=9)
        axes.set_xlim(0, end)
        doing = ", ".join(f"{what} {share:.0%}" for what, share in shares.items() if share)
        said.append(f"{title}: {len(moments)} updates; of the workers' time {doing or 'nothing yet'}")
    return Picture(figure, f"What workers did from second 0 to {end:.3g}. " + "; ".join(said) + ".")


def spans(records, workers, start: float, end: float) -> dict[tuple, list[tuple[float, float]]]:
    """Return the workers' activities in a time window: starts and lengths in seconds, by worker and activity."""
    found = {(worker, look): [] for worker in workers for look in LOOKS}
    for record in records:
        if record.worker in workers and record.began < end and record.done > start:
            computing = "computing, then dropped" if record.update == DROPPED else "computing"
            moments = [min(max(m, start), end) for m in (record.began, record.read, record.computed, record.done)]
            looks = ("waiting, then reading", computing, "submitting")
            for look, (begin, stop) in zip(looks, itertools.pairwise(moments), strict=True):
                if stop > begin:
                    found[record.worker, look].append((begin, stop - begin))
    return found


def _draw_workers(axes, records, workers, end) -> dict[str, float]:
    """Draw bars up to second ``end``; return each activity's share of these workers' time until then."""
    total = dict.fromkeys(LOOKS, 0.0)
    for (worker, look), bars in spans(records, workers, 0.0, end).items():
        if bars:
            axes.broken_barh(bars, (workers.index(worker) - 0.4, 0.8), **LOOKS[look])
            total[look] += sum(length for _, length in bars)
    return {look: spent / (len(workers) * end) for look, spent in total.items()}


def _seconds_to_draw(runs) -> float:
    """Return the seconds that show several gradients of each worker in each run, or all if the runs are shorter."""
    length = last = 0.0
    for frame in map(table_of, runs.values()):
        typical = (frame["done"] - frame["read"]).groupby(frame["worker"]).median()
        length = max(length, 3 * typical.max(), 10 * typical.min())
        last = max(last, frame["done"].max())
    return min(length, last)


def staleness_histograms(runs: dict) -> Picture:
    """Draw a histogram per run of the staleness of the gradients in its updates; ``runs`` are as in `timelines`.

    The shares have a logarithmic axis, on which rare gradients are visible. A dashed line marks the mean.
    """
    check_runs(runs)
    stale = {name: np.array(stalenesses(records), int) for name, records in runs.items()}
    most = max(values.max(initial=0) for values in stale.values())
    width = math.ceil((most + 1) / 30)  # one staleness per bar, or several if the range is wide
    edges = np.arange(0, most + 1 + width, width) - 0.5
    columns = min(len(runs), 3)
    figure, panels = charts.grid(len(runs), columns, 9 / columns, 2.4, sharex=True, sharey=True)
    said = []
    for axes, (name, values) in zip(panels, stale.items(), strict=True):
        shares = np.histogram(values, edges)[0] / max(len(values), 1)
        axes.set(yscale="log", ylim=(0.002, 1.3))
        axes.bar(edges[:-1] + width / 2, shares, width * 0.9, color=PALETTE[0])
        words = f"mean {values.mean():.2f}, largest {values.max()}" if len(values) else "no update"
        if len(values):
            axes.axvline(values.mean(), color=PALETTE[1], linestyle="--")
        charts.label_panel(axes, f"{name}\n{words}", "")
        said.append(f"{name}: {words}, {shares[0]:.0%} {'are 0' if width == 1 else f'below {width}'}")
    for axes in panels:
        axes.set(yticks=[0.01, 0.1, 1])
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.minorticks_off()
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.tick_params(labelbottom=True)
    panels[0].set_ylabel("share of the gradients", fontsize=9)
    figure.supxlabel(
        "staleness: updates by others between reading the weights and the gradient's own update", fontsize=9
    )
    return Picture(figure, "Staleness of the gradients. " + "; ".join(said) + ".")


def stable_rates(frame) -> Picture:
    """Draw the largest stable learning rate by staleness on logarithmic axes: results as marks, theory as lines.

    ``frame`` has a row per run with its ``mean staleness`` and its ``largest stable rate``, such as the result of
    `dgc_lab.parameter_server.stability_table`.
    """
    stale, found = frame["mean staleness"], frame["largest stable rate"]
    whole = sorted({round(staleness) for staleness in stale})
    theory = {"limit if all are equally stale": stable_rate, "guaranteed for any loss (Lian et al.)": guaranteed_rate}
    points = {"found on simulated schedules": list(zip(stale, found, strict=True))}
    points |= {label: [(staleness, rate(staleness)) for staleness in whole] for label, rate in theory.items()}
    curves = {label: zip(*((1 + x, y) for x, y in pairs), strict=True) for label, pairs in points.items()}
    said = {label: ", ".join(f"{short(x)} allows {short(y)}" for x, y in pairs) for label, pairs in points.items()}
    looks = {label: charts.style(number) for number, label in enumerate(points)}
    looks["found on simulated schedules"] |= {"linestyle": "", "marker": MARKERS[0]}
    title, options = "Largest stable learning rate by staleness", {"xscale": "log", "yscale": "log"}
    picture = charts.lines(title, curves, said, "staleness + 1", "largest rate times curvature", looks=looks, **options)
    [axes] = picture.figure.axes
    axes.set_xticks(places := [1 + staleness for staleness in whole], [str(place) for place in places])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    return picture


def by_workers(frame, lock_seconds: float) -> Picture:
    """Draw gradients per second, mean staleness and idle share by number of workers.

    Simulated runs are lines, measured ones large marks. A dotted line marks the largest speed that the servers' lock
    allows. Schedules whose gradients are never stale have no line in the middle panel, which names them.

    Args:
        frame: rows of `dgc_lab.parameter_server.scale_row`.
        lock_seconds: mean time for which a gradient holds the lock, above 0.

    Raises:
        ValueError: ``frame`` is empty, or ``lock_seconds`` is out of range.
    """
    if not frame.size:
        raise ValueError("frame must have at least one row, got none")
    check_number("lock_seconds", lock_seconds, "above 0 and finite")
    figure, (speed, staleness, idle) = charts.grid(3, 3, 3, 3.3)
    panels = {"gradients/s": speed, "mean staleness": staleness, "idle share": idle}
    schedules = dict(list(frame.sort_values("workers", kind="stable").groupby("schedule", sort=False)))
    fresh = [name for name, rows in schedules.items() if not rows["mean staleness"].any()]
    handles, said = [], []
    for number, (name, rows) in enumerate(schedules.items()):
        colour, marker, stroke = (looks[number % len(looks)] for looks in (PALETTE, MARKERS, STROKES))
        look = {"color": colour, "marker": marker, "fillstyle": "none"}
        handles.append(Line2D([], [], label=name, linestyle=stroke, **look))
        for source, points in rows.groupby("source"):
            shape = {"linewidth": 1.5, "markersize": 5, "linestyle": stroke}
            if source == "measured":
                shape = {"linestyle": "", "markersize": 9, "fillstyle": "full", "markeredgecolor": "black", "zorder": 3}
            for column, axes in panels.items():
                if column != "mean staleness" or name not in fresh:
                    axes.plot(points["workers"], points[column], **{**look, **shape})
            for _, row in points.iloc[[0, -1]].iterrows():
                rate, stale = short(row["gradients/s"]), short(row["mean staleness"])
                words = f"{row['workers']} workers {rate} gradients/s, mean staleness {stale}, idle"
                said.append(f"{name}, {source}: {words} {row['idle share']:.0%}")
    speed.axhline(1 / lock_seconds, color="black", linestyle=":", linewidth=1)
    handles.append(Line2D([], [], color="black", linestyle=":", label="limit of the servers' lock"))
    workers = sorted(set(frame["workers"]))
    shown = workers[:: math.ceil(len(workers) / 5)]
    titles = "gradients per second", "mean staleness", "share of time without computing"
    for axes, title in zip(panels.values(), titles, strict=True):
        axes.set_xscale("log")
        axes.set_xticks(shown, shown)
        charts.label_panel(axes, title, "workers")
    speed.set_yscale("log")
    speed.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    staleness.set_yscale("log")
    staleness.text(
        0.04,
        0.9,
        "\n".join(f"{name}: always 0" for name in fresh),
        transform=staleness.transAxes,
        fontsize=8,
        verticalalignment="top",
    )
    idle.set_ylim(0, 1.05)
    for axes in panels.values():
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,.5g}")
    grey = {"color": GREY, "marker": "o", "markeredgecolor": "black", "markersize": 9}
    if "measured" in set(frame["source"]):
        handles.append(Line2D([], [], linestyle="", label="measured", **grey))
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=3)
    limit = f"The servers' lock allows {short(1 / lock_seconds)} gradients/s"
    said = "; ".join(dict.fromkeys(said))
    return Picture(figure, f"Speed, staleness and idle share by number of workers. {limit}. {said}.")
