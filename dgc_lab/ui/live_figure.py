"""A figure that is redrawn several times a second and hardly slows down training."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dgc_lab.ui.charts import LARGEST_LOSS_SHOWN, Picture, style


class LiveFigure:
    """Figure with the lines of several runs, the last of which grows. The static part is drawn once, as ``background``.

    A subclass draws the legend with the current run's name (``_update_legend()``), adds moving artists (`_moving`),
    returns an alternative text (``alt()``), and sets ``background`` to None after changing the static part.
    Each of ``runs`` is a dictionary: ``label``, ``lines`` by name, and lists of x and y by the same names.
    """

    columns = 1  # panels side by side, of equal width: a narrow page shows them on several rows

    def __init__(self, figure: Figure):
        self.figure, self.canvas, self.background = figure, FigureCanvasAgg(figure), None
        self.runs = []

    def _moving(self) -> list:
        """Update the artists that change from frame to frame, and return them in drawing order."""
        return self._update_lines(self.runs[-1]) if self.runs else []

    def _begin(self, label: str, **lines) -> None:
        """Start a new run, and make the lines of earlier runs thinner. Runs with the same label share a colour.

        Args:
            label: the run's name.
            lines: axes and style of each line, by its name.
        """
        self._restyle(linewidth=0.9)
        labels = dict.fromkeys([*(run["label"] for run in self.runs), label])
        colour = style(list(labels).index(label))
        drawn = {name: axes.plot([], [], **looks, **colour)[0] for name, (axes, looks) in lines.items()}
        self.runs.append({"label": label, "lines": drawn, **{name: ([], []) for name in lines}})
        self.rename(label)

    def rename(self, label: str) -> None:
        """Rename the current run."""
        self.runs[-1]["label"] = label
        self._update_legend()
        self.background = None

    def _add(self, name: str, x: float, y: float) -> None:
        """Add a point to one of the current run's lines."""
        for values, value in zip(self.runs[-1][name], (x, y), strict=True):
            values.append(value)

    def _extend_loss_axis(self, axes, loss: float) -> None:
        """Extend the loss axis if needed, with a margin that makes this rare."""
        if axes.get_ylim()[1] < loss <= LARGEST_LOSS_SHOWN:
            axes.set_ylim(0, 1.2 * loss)
            self.background = None

    def _update_lines(self, run) -> list:
        for name, line in run["lines"].items():
            line.set_data(*run[name])
        return list(run["lines"].values())

    def _restyle(self, **looks) -> None:
        """Draw the lines of all runs up to their last points, in the same style."""
        for run in self.runs:
            for line in self._update_lines(run):
                line.set(**looks)

    def panels(self) -> list[bytes]:
        """Return the current picture as PNG files, one for each of the panels side by side, from left to right."""
        return [packed(part) for part in np.array_split(self._pixels(), self.columns, axis=1)]

    def _pixels(self) -> np.ndarray:
        """Draw the moving artists over the background, and return the picture's pixels."""
        artists = self._moving()
        if self.background is None:
            for artist in artists:
                artist.set_animated(True)
            self.canvas.draw()
            self.background = self.canvas.copy_from_bbox(self.figure.bbox)
            for artist in artists:
                artist.set_animated(False)
        self.canvas.restore_region(self.background)
        for artist in artists:
            artist.axes.draw_artist(artist)
        return np.asarray(self.canvas.buffer_rgba())

    def picture(self) -> Picture:
        """Return the whole figure, with lines of equal width."""
        self._moving()
        self._restyle(linewidth=1.4)
        if self.runs:
            self.rename(self.runs[-1]["label"])  # updates the width in the legend
        return Picture(self.figure, self.alt())


def packed(pixels: np.ndarray) -> bytes:
    """Return pixels as a small PNG file.

    A palette and light compression need a third of the default's bytes. The octree method takes a quarter of the time
    of Pillow's default, and preserves the colours of thin lines.
    """
    from PIL import Image

    file, picture = io.BytesIO(), Image.fromarray(pixels).convert("RGB")
    indexed = picture.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    indexed.save(file, "png", compress_level=3)
    return file.getvalue()
