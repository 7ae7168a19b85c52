"""A figure that is drawn several times a second while training runs, and leaves the training its time."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dgc_lab.ui.charts import LARGEST_LOSS_SHOWN, Picture, style


class LiveFigure:
    """Lines of several runs, of which the last one grows: what does not move is drawn once and kept as ``background``.

    A subclass draws the legend with the current run's name (``_named()``), says what else moves (`_moving`) and what
    the figure shows in words (``alt()``), and sets ``background`` to None where it has changed.
    Each of ``runs`` is a dictionary: ``label``, ``lines`` by name, and by the same names lists of x and y.
    """

    def __init__(self, figure: Figure):
        self.figure, self.canvas, self.background = figure, FigureCanvasAgg(figure), None
        self.runs = []

    def _moving(self) -> list:
        """The artists that change from frame to frame, brought up to date, in the order of drawing."""
        return self._up_to_date(self.runs[-1]) if self.runs else []

    def _begin(self, label: str, **lines) -> None:
        """A new run starts, with a line for each name given: its axes and looks. The runs before become thinner.

        Runs of one label have one colour.
        """
        self._restyle(linewidth=0.9)
        labels = dict.fromkeys([*(run["label"] for run in self.runs), label])
        colour = style(list(labels).index(label))
        drawn = {name: axes.plot([], [], **looks, **colour)[0] for name, (axes, looks) in lines.items()}
        self.runs.append({"label": label, "lines": drawn, **{name: ([], []) for name in lines}})
        self.rename(label)

    def rename(self, label: str) -> None:
        """Give the current run another name."""
        self.runs[-1]["label"] = label
        self._named()
        self.background = None

    def _add(self, name: str, x: float, y: float) -> None:
        """One more point of one of the current run's lines."""
        for values, value in zip(self.runs[-1][name], (x, y), strict=True):
            values.append(value)

    def _make_room(self, axes, loss: float) -> None:
        """The loss axis grows at once by so much that it seldom does."""
        if axes.get_ylim()[1] < loss <= LARGEST_LOSS_SHOWN:
            axes.set_ylim(0, 1.2 * loss)
            self.background = None

    def _up_to_date(self, run) -> list:
        for name, line in run["lines"].items():
            line.set_data(*run[name])
        return list(run["lines"].values())

    def _restyle(self, **looks) -> None:
        """Bring every run's lines up to its last point and give them all the same looks."""
        for run in self.runs:
            for line in self._up_to_date(run):
                line.set(**looks)

    def frame(self) -> bytes:
        """The picture as it stands, as a PNG file."""
        from PIL import Image

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
        file = io.BytesIO()
        # A palette and light packing: a third of the bytes of the default. The octree takes a quarter of the time of
        # Pillow's default, and gets thin lines' colours right.
        picture = Image.fromarray(np.asarray(self.canvas.buffer_rgba())).convert("RGB")
        packed = picture.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        packed.save(file, "png", compress_level=3)
        return file.getvalue()

    def picture(self) -> Picture:
        """The whole figure, every run as thick as the others."""
        self._moving()
        self._restyle(linewidth=1.4)
        if self.runs:
            self.rename(self.runs[-1]["label"])  # the legend has the lines' new looks
        return Picture(self.figure, self.alt())
