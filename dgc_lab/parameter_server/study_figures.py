"""The figures of lesson 3 about results of training: scores by time and by seed, and samples of a GAN."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.patches import Circle

from dgc_lab.common import check_some
from dgc_lab.parameter_server.metrics import seconds_to
from dgc_lab.ui import charts
from dgc_lab.ui.charts import GREY, PALETTE, Picture, short
from dgc_lab.workloads.ring import COMPARED_WITH, GOOD_WITHIN, MODES, RADIUS, centres, quality, ring_points

EDGE = 1.7 * RADIUS  # limit of a panel of points; the title counts points outside of it
COLUMNS = 3  # of such panels


def score_curves(runs: dict, name: str, target: float) -> Picture:
    """Draw a score of each run by time, with a dashed line at the target.

    Args:
        runs: `dgc_lab.parameter_server.Training` by name, with the scores that `dgc_lab.parameter_server.replay` or a
            training on servers has collected.
        name: name of the score, such as ``"accuracy"``.
        target: the value of the dashed line.

    Raises:
        ValueError: there are no runs, or a run has no score of that name.
    """
    curves, said = {}, {}
    for label, training in check_some("runs", runs).items():
        reached = seconds_to(training.scores, name, target)
        curves[label] = zip(*((score.seconds, score.values[name]) for score in training.scores), strict=True)
        when = "never" if math.isinf(reached) else f"after {reached:.3g} seconds"
        said[label] = f"reaches {target:g} {when}, ends at {training.scores[-1].values[name]:.3f}"
    picture = charts.lines(f"Test {name} by seconds", curves, said, "seconds", f"test {name}", xlim=(0, None))
    [axes] = picture.figure.axes
    axes.axhline(target, color=GREY, linestyle="--", label=f"target {target:g}")
    axes.legend(**charts.BESIDE)
    return picture


def each_seed(values, xlabel: str) -> Picture:
    """Draw a row for each kind of run, with a dot for each seed and a line at their mean.

    Args:
        values: a list of numbers by label, such as a ``pandas.Series`` of lists. NaN means that the run has no value.
        xlabel: the meaning of the numbers.

    Raises:
        ValueError: ``values`` is empty.

    Example:
        >>> each_seed({"synchronous": [3.0, 5.0]}, "seconds").alt
        'seconds. synchronous: mean 4, from 3 to 5 (2 runs).'
    """
    values = {label: np.asarray(each, float) for label, each in check_some("values", dict(values)).items()}
    figure, [axes] = charts.grid(1, 1, 8, 0.8 + 0.3 * len(values))
    said = []
    for row, (label, every) in enumerate(values.items()):
        each = every[~np.isnan(every)]
        look = {"color": PALETTE[row % len(PALETTE)]}
        axes.plot(each, np.full(len(each), row), "o", markersize=5, alpha=0.7, **look)
        missing = f", {len(every) - len(each)} without a value" if len(each) < len(every) else ""
        words = "no value"
        if len(each):
            axes.plot([each.mean()] * 2, [row - 0.35, row + 0.35], linewidth=2, **look)
            low, mean, high = (short(value) for value in (each.min(), each.mean(), each.max()))
            words = f"mean {mean}, from {low} to {high} ({len(each)} run{'s' * (len(each) > 1)})"
        said.append(f"{label}: {words}{missing}")
    charts.name_rows(axes, list(values), 0)
    charts.label_panel(axes, "", xlabel)
    return Picture(figure, f"{xlabel}. " + "; ".join(said) + ".")


def samples_beside_real(samples: dict) -> Picture:
    """Draw a panel of real points, and a panel of generated points per run, with circles around the centres.

    ``samples`` are float arrays (count, 2) by label, such as the results of `dgc_lab.workloads.gan.RingGAN.sample`.
    Raises ValueError if there are no samples, or an array has a different shape.

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
        words = f"{modes:.0f} of {MODES} modes covered, {good:.0%} good samples, energy distance {apart:.3f}"
        words += f", {outside} points outside the panel" if outside else ""
        axes.set_title(f"{label}\n" + words.replace(" covered, ", "\n").replace(", ", "\n"), fontsize=8)
        axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=[], yticks=[], aspect="equal")
        said.append(f"{label}: {words}")
    return Picture(figure, "Points on the plane. " + "; ".join(said) + ".")
