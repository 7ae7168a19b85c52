"""The figures of lesson 3: timelines of workers, staleness, loss, scaling to many workers, and samples of a GAN."""

from __future__ import annotations

import itertools
import math

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from matplotlib.ticker import LogLocator

from dgc_lab.common import check_choice, check_some
from dgc_lab.parameter_server.metrics import check_runs, stalenesses, table_of, update_times
from dgc_lab.parameter_server.schedule import DROPPED
from dgc_lab.parameter_server.stability import guaranteed_rate, stable_rate
from dgc_lab.ui import charts
from dgc_lab.ui.charts import GREY, LARGEST_LOSS_SHOWN, MARKERS, PALETTE, Picture, short, thinning
from dgc_lab.workloads.ring import COMPARED_WITH, GOOD_WITHIN, RADIUS, centres, quality, ring_points
from dgc_lab.workloads.ring import MODES as MODES_OF_RING

SMOOTH = 20  # gradients in the loss's moving average
MAX_ROWS = 16  # workers drawn per run; the rows of more would be too thin
EDGE = 1.7 * RADIUS  # limit of a panel of points; the title counts points outside of it
COLUMNS = 4  # of such panels
LOOKS = {
    "computing": {"facecolor": PALETTE[0]},
    "computing, then dropped": {"facecolor": "white", "edgecolor": PALETTE[1], "hatch": "//////", "linewidth": 0.6},
    "waiting, then reading": {"facecolor": GREY},
    "handing in": {"facecolor": PALETTE[5]},
}


def timelines(runs: dict) -> Picture:
    """Draw the first seconds of each run: a row of activities per worker, and a mark for each update above them.

    Args:
        runs: lists of `dgc_lab.parameter_server.GradientEvent` by name. The first 16 workers of each are drawn, for as
            long as a few gradients of the slowest worker take.

    Raises:
        ValueError: there are no runs, or a run has no records.
    """
    check_runs(runs)
    end, rows = _seconds_to_draw(runs), {}
    for name, records in runs.items():
        workers = sorted({record.worker for record in records})
        some = f" (the first {MAX_ROWS} of {len(workers)} workers)" * (len(workers) > MAX_ROWS)
        rows[f"{name}{some}"] = workers[:MAX_ROWS]
    names = {title: ["updates", *(f"worker {worker}" for worker in workers)] for title, workers in rows.items()}
    figure, panels = charts.stacked_rows(names, LOOKS, "update", "seconds", left=0.81, first=-1)
    said = []
    for axes, (title, workers), records in zip(panels, rows.items(), runs.values(), strict=True):
        shares = _draw_workers(axes, records, workers, end)
        moments = [moment for moment in update_times(records).values() if moment <= end]
        axes.plot(moments, np.full(len(moments), -1), "|", color="black", markersize=9)
        axes.set_xlim(0, end)
        doing = ", ".join(f"{what} {share:.0%}" for what, share in shares.items() if share)
        said.append(f"{title}: {len(moments)} updates; of the workers' time {doing or 'nothing yet'}")
    return Picture(figure, f"What workers did from second 0 to {end:.3g}. " + "; ".join(said) + ".")


def spans(records, workers, start: float, end: float) -> dict[tuple, list[tuple[float, float]]]:
    """Return what workers did in a time window: start and length of each span in seconds, by worker and activity."""
    found = {(worker, look): [] for worker in workers for look in LOOKS}
    for record in records:
        if record.worker in workers and record.began < end and record.done > start:
            computing = "computing, then dropped" if record.update == DROPPED else "computing"
            moments = [min(max(m, start), end) for m in (record.began, record.read, record.computed, record.done)]
            looks = ("waiting, then reading", computing, "handing in")
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
    """Draw a histogram per run of the staleness of the gradients in its updates; ``runs`` are as in `timelines`."""
    check_runs(runs)
    stale = {name: np.array(stalenesses(records), int) for name, records in runs.items()}
    most = max(values.max(initial=0) for values in stale.values())
    width = math.ceil((most + 1) / 30)  # one staleness per bar, or several if the range is wide
    edges = np.arange(0, most + 1 + width, width) - 0.5
    columns = min(len(runs), 2)
    figure, panels = charts.grid(len(runs), columns, 9 / columns, 1.9, sharex=True, sharey=True)
    said = []
    for axes, (name, values) in zip(panels, stale.items(), strict=True):
        shares = np.histogram(values, edges)[0] / max(len(values), 1)
        axes.bar(edges[:-1] + width / 2, shares, width * 0.9, color=PALETTE[0])
        words = f"mean {values.mean():.2f}, at most {values.max()}" if len(values) else "no update"
        axes.set_title(f"{name}: {words}", fontsize=9)
        axes.grid(alpha=0.3, axis="y")
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.xaxis.get_major_locator().set_params(integer=True)
        said.append(f"{name}: {words}, {shares[0]:.0%} {'are 0' if width == 1 else f'below {width}'}")
    for axes in panels[-columns:]:
        axes.tick_params(labelbottom=True)
    figure.supxlabel("staleness: updates between reading and own update", fontsize=9)
    return Picture(figure, "Staleness of the gradients. " + "; ".join(said) + ".")


def loss_curves(runs: dict, by: str = "seconds") -> Picture:
    """Draw each run's training loss by time or by number of gradients, averaged over the last 20 gradients.

    Args:
        runs: lists of measured `dgc_lab.parameter_server.GradientEvent` by name; simulated ones have no loss.
        by: ``"seconds"`` or ``"gradients"``.

    Raises:
        ValueError: there are no runs, a run has no loss, or ``by`` has another value.
    """
    check_runs(runs)
    check_choice("by", by, ("seconds", "gradients"))
    curves, said, highest = {}, {}, 0.0
    for name, records in runs.items():
        records = sorted(records, key=lambda record: record.done)
        losses = np.array([record.loss for record in records], float)
        if np.isnan(losses).all():
            raise ValueError(f"runs must have losses, got none for {name!r}: a simulation computes no gradients")
        # An infinite or NaN loss affects only the means that include it.
        means = np.array([losses[max(0, last - SMOOTH) : last].mean() for last in range(1, len(losses) + 1)])
        positions = [record.done for record in records] if by == "seconds" else range(1, len(records) + 1)
        curves[name] = positions, means
        highest = max(highest, np.max(means, initial=0.0, where=np.isfinite(means)))
        said[name] = f"{means[0]:.3f} at first, {means[-1]:.3f} after {positions[-1]:.3g} {by}"
    limits = {"xlim": (0, None), "ylim": (0, min(1.05 * highest, LARGEST_LOSS_SHOWN) or 1)}
    ylabel = f"training loss, mean of {SMOOTH}"
    return charts.lines(f"Training loss by {by}", curves, said, by, ylabel, looks=thinning(curves), **limits)


def stable_rates(frame) -> Picture:
    """Draw the largest stable learning rate by staleness on logarithmic axes: results as marks, theory as lines.

    ``frame`` has a row per run with its ``mean staleness`` and its ``largest stable rate``, such as the result of
    `dgc_lab.parameter_server.largest_stable_rate`.
    """
    stale, found = frame["mean staleness"], frame["largest stable rate"]
    whole = sorted({round(staleness) for staleness in stale})
    theory = {"always as stale: the limit": stable_rate, "any loss: guaranteed (Lian et al.)": guaranteed_rate}
    points = {"found on simulated schedules": list(zip(stale, found, strict=True))}
    points |= {label: [(staleness, rate(staleness)) for staleness in whole] for label, rate in theory.items()}
    curves = {label: zip(*((1 + x, y) for x, y in pairs), strict=True) for label, pairs in points.items()}
    said = {label: ", ".join(f"{short(x)} allows {short(y)}" for x, y in pairs) for label, pairs in points.items()}
    looks = {label: charts.style(number) for number, label in enumerate(points)}
    looks["found on simulated schedules"] |= {"linestyle": "", "marker": MARKERS[0]}
    title, options = "Largest stable learning rate by staleness", {"xscale": "log", "yscale": "log"}
    return charts.lines(title, curves, said, "staleness + 1", "rate times curvature", looks=looks, **options)


def by_workers(frame) -> Picture:
    """Draw gradients per second, mean staleness and idle share by number of workers.

    Simulated runs are lines, measured ones large marks. ``frame`` has rows of `dgc_lab.parameter_server.scale_row`.
    Raises ValueError if it is empty.
    """
    if not frame.size:
        raise ValueError("frame must have at least one row, got none")
    figure, (speed, staleness, idle) = charts.grid(3, 3, 3, 3.3)
    panels = {"gradients/s": speed, "mean staleness": staleness, "idle share": idle}
    schedules = dict(list(frame.sort_values("workers", kind="stable").groupby("schedule", sort=False)))
    looks, handles, said = thinning(schedules), [], []
    for number, (name, rows) in enumerate(schedules.items()):
        look = {"color": looks[name]["color"], "marker": MARKERS[number % len(MARKERS)]}
        handles.append(Line2D([], [], label=name, **look))
        for source, points in rows.groupby("source"):
            shape = {"linewidth": looks[name]["linewidth"], "markersize": 4}
            if source == "measured":
                shape = {"linestyle": "", "markersize": 9, "markeredgecolor": "black", "zorder": 3}
            for column, axes in panels.items():
                axes.plot(points["workers"], points[column], **look, **shape)
            for _, row in points.iloc[[0, -1]].iterrows():
                rate, stale = short(row["gradients/s"]), short(row["mean staleness"])
                words = f"{row['workers']} workers {rate} gradients/s, mean staleness {stale}, idle"
                said.append(f"{name}, {source}: {words} {row['idle share']:.0%}")
    workers = sorted(set(frame["workers"]))
    for column, axes in panels.items():
        axes.set_xscale("log")
        axes.set_xticks(*[workers[:: math.ceil(len(workers) / 5)]] * 2)
        charts.label_panel(axes, column, "workers")
    speed.set_yscale("log")
    speed.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    staleness.set_yscale("symlog", linthresh=1)
    staleness.set_ylim(-0.2, None)
    idle.set_ylim(0, 1)
    for axes in panels.values():
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,.5g}")
    grey = {"color": GREY, "marker": "o", "markeredgecolor": "black", "markersize": 9}
    handles.append(Line2D([], [], linestyle="", label="measured", **grey))
    handles.append(Line2D([], [], color=GREY, label="simulated"))
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=3)
    said = "; ".join(dict.fromkeys(said))
    return Picture(figure, f"Speed, staleness and idle share by number of workers. {said}.")


def samples_beside_real(samples: dict) -> Picture:
    """Draw a panel of real points, and a panel of generated points per run, with circles around the centres.

    ``samples`` are float arrays (count, 2) by label, such as the results of `dgc_lab.workloads.gan.RingGAN.sample`.
    Raises ValueError if there are no samples, or an array has another shape.

    Example:
        >>> samples_beside_real({"every point at 0": np.zeros((100, 2))}).alt.split("; ")[1]
        'every point at 0: 0 of 8 modes covered, 0% good samples, energy distance 1.455.'
    """
    shown = {"real points": ring_points(COMPARED_WITH), **check_some("samples", samples)}
    figure, panels = charts.grid(len(shown), min(COLUMNS, len(shown)), 2.4, 2.8)
    said = []
    for axes, (label, points) in zip(panels, shown.items(), strict=True):
        colour = PALETTE[0 if said else 2]
        axes.scatter(points[:, 0], points[:, 1], s=3, alpha=0.5, color=colour, linewidths=0)
        for centre in centres():  # points inside a circle are good
            axes.add_artist(Circle(centre, GOOD_WITHIN, fill=False, color="0.4", linewidth=0.6))
        outside = int((~(abs(points) <= EDGE).all(axis=1)).sum())
        modes, good, apart = quality(points).values()
        words = f"{modes:.0f} of {MODES_OF_RING} modes covered, {good:.0%} good samples, energy distance {apart:.3f}"
        words += f", {outside} points outside the panel" if outside else ""
        axes.set_title(f"{label}\n" + words.replace(" covered, ", "\n").replace(", ", "\n"), fontsize=8)
        axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=[], yticks=[], aspect="equal")
        said.append(f"{label}: {words}")
    return Picture(figure, "Points on the plane. " + "; ".join(said) + ".")
