"""What a GAN made, beside the real points, with words that say what it shows."""

from __future__ import annotations

from matplotlib.figure import Figure

from dgc_lab.ui.charts import PALETTE, Picture
from dgc_lab.workloads.ring import COMPARED_WITH, GOOD_WITHIN, MODES, RADIUS, centres, quality, ring_points

EDGE = 1.7 * RADIUS  # of a panel; what lies outside is counted in the title
COLUMNS = 4


def samples_beside_real(samples: dict) -> Picture:
    """One panel of real points, and one per run of those that its generator made, with circles around the centres.

    Args:
        samples: by label, a float array (count, 2) such as `dgc_lab.workloads.gan.RingGAN.sample` gives.

    Raises:
        ValueError: no run, or points of another shape.

    Example:
        >>> import numpy as np
        >>> samples_beside_real({"every point at 0": np.zeros((100, 2))}).alt.split("; ")[1]
        'every point at 0: 0 of 8 modes covered, 0% good samples, energy distance 1.455.'
    """
    if not samples:
        raise ValueError("samples must hold at least one run, got none")
    panels = {"real points": ring_points(COMPARED_WITH), **samples}
    scores = {label: quality(points) for label, points in panels.items()}
    rows = -(-len(panels) // COLUMNS)
    columns = min(COLUMNS, len(panels))
    figure = Figure(figsize=(2.4 * columns, 2.8 * rows), dpi=90, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    said = []
    for number, (axes, (label, points)) in enumerate(zip(grid, panels.items(), strict=False)):
        axes.scatter(points[:, 0], points[:, 1], s=3, alpha=0.5, color=PALETTE[0 if number else 2], linewidths=0)
        for x, y in centres():
            axes.add_artist(circle(x, y))
        outside = int((~(abs(points) <= EDGE).all(axis=1)).sum())
        modes, good, apart = scores[label].values()
        words = f"{modes:.0f} of {MODES} modes covered, {good:.0%} good samples, energy distance {apart:.3f}"
        words += f", {outside} points outside the panel" if outside else ""
        axes.set_title(f"{label}\n" + words.replace(" covered, ", "\n").replace(", ", "\n"), fontsize=8)
        axes.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), xticks=[], yticks=[], aspect="equal")
        said.append(f"{label}: {words}")
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    return Picture(figure, "Points on the plane. " + "; ".join(said) + ".")


def circle(x: float, y: float):
    """Points inside it are good."""
    from matplotlib.patches import Circle

    return Circle((x, y), GOOD_WITHIN, fill=False, color="0.4", linewidth=0.6)
