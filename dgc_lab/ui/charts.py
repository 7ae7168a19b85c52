"""The figures of the lessons, each with words that say what it shows.

Drawn on ``matplotlib.figure.Figure`` without pyplot, so that they work in threads and leave the user's plots alone.
"""

from __future__ import annotations

import base64
import html
import io
import textwrap

import numpy as np
from matplotlib.figure import Figure

from dgc_lab.ui.live_figure import LiveFigure

# To be told apart with any colour vision, on white: of Okabe and Ito's palette what has a contrast of 3 to white, as
# thin lines need, with a violet and a brown in place of its sky blue, its orange and its yellow, which are too pale.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7A3DD0", "#7A4A1E", "#000000")
GREY = "0.55"  # for what stands beside the colours; a paler one could not be seen by everybody
# A run that diverges leaves the picture at the top, and does not flatten the other runs' curves.
LARGEST_LOSS_SHOWN = 10
DASHES = ("-", "--", ":")
LONGEST_LINE = 30  # letters in the legend


def style(number: int) -> dict:
    """Colour and dash of the number-th line: they repeat together only after 21 lines."""
    return {
        "color": PALETTE[number % len(PALETTE)],
        "linestyle": DASHES[number // len(PALETTE) % len(DASHES)],
    }


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def image_tag(data: bytes, alt: str) -> str:
    """An ``<img>`` element that holds a PNG file and its alternative text, no wider than the page."""
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return f'<img alt="{html.escape(alt)}" style="max-width: 100%" src="{source}">'


class Picture:
    """A figure and its alternative text; the last line of a notebook cell shows both.

    Attributes:
        figure: ``matplotlib.figure.Figure``, to change or save.
        alt: what it shows, in words.
    """

    def __init__(self, figure: Figure, alt: str):
        self.figure, self.alt = figure, alt

    def _repr_mimebundle_(self, include=None, exclude=None):
        image = png(self.figure)
        # JupyterLab takes the HTML, since it gives a PNG no alternative text; GitHub and nbconvert show the PNG.
        data = {
            "text/html": image_tag(image, self.alt),
            "image/png": base64.b64encode(image).decode(),
            "text/plain": self.alt,
        }
        return data, {"image/png": {"alt": self.alt}}


class Curves(LiveFigure):
    """Two panels that grow while training runs: loss by step, accuracy on the test set by step.

    Finished runs are part of the background; a frame adds the current run's two lines to it.

    Example:
        >>> curves = Curves(steps=2)
        >>> curves.begin("ratio 0.1")
        >>> curves.add_loss(1, 2.3); curves.add_accuracy(2, 0.5)
        >>> curves.frame()[:4]
        b'\\x89PNG'
    """

    def __init__(self, steps: int):
        super().__init__(Figure(figsize=(9.0, 3.2), dpi=84, layout="constrained"))
        self.loss_axes, self.accuracy_axes = self.figure.subplots(1, 2)
        self.loss_axes.set(xlabel="step", ylabel="training loss", ylim=(0, 2.5))
        self.accuracy_axes.set(xlabel="step", ylabel="test accuracy", ylim=(0, 1.02))
        for axes in (self.loss_axes, self.accuracy_axes):
            axes.grid(alpha=0.3)
        # Laying out costs as much as drawing and comes out the same every time: do it once.
        self.figure.get_layout_engine().set(w_pad=0.16)  # inches; room for longer numbers at the right ends
        self.canvas.draw()
        self.figure.set_layout_engine("none")
        self.runs = []
        self.steps = 0
        self.fit(steps)

    def fit(self, steps: int) -> None:
        """Make room for runs of that many steps."""
        self.steps = max(self.steps, steps)
        for axes in (self.loss_axes, self.accuracy_axes):
            axes.set_xlim(0, self.steps)
            axes.locator_params(axis="x", nbins=6)  # more labels of thousands of steps run into each other
        self.background = None

    def begin(self, label: str) -> None:
        """A new run starts; the ones before become thinner."""
        self._restyle(linewidth=0.9)
        look = style(len(self.runs))
        lines = (
            self.loss_axes.plot([], [], linewidth=1.2, **look)[0],
            self.accuracy_axes.plot([], [], linewidth=2, marker="o", markersize=3.5, **look)[0],
        )
        self.runs.append({"label": label, "lines": lines, "loss": ([], []), "accuracy": ([], [])})
        self.rename(label)

    def rename(self, label: str) -> None:
        """Give the current run another name in the legend."""
        self.runs[-1]["label"] = label
        # Names that list settings are longer than a panel is wide.
        self.runs[-1]["lines"][1].set_label(textwrap.fill(label, LONGEST_LINE))
        self._legend()

    def _restyle(self, **looks) -> None:
        """Bring every run's lines up to its last point and give them all the same looks."""
        for run in self.runs:
            for line, name in zip(run["lines"], ("loss", "accuracy"), strict=True):
                line.set_data(*run[name])
                line.set(**looks)

    def _legend(self) -> None:
        if self.runs:
            self.accuracy_axes.legend(loc="lower right", fontsize=8, ncols=1 + len(self.runs) // 7, framealpha=0.8)
        self.background = None

    def add_loss(self, step: int, loss: float) -> None:
        """One more point of the current run's loss."""
        steps, values = self.runs[-1]["loss"]
        steps.append(step)
        values.append(loss)
        if self.loss_axes.get_ylim()[1] < loss <= LARGEST_LOSS_SHOWN:
            self.loss_axes.set_ylim(0, 1.2 * loss)
            self.background = None

    def add_accuracy(self, step: int, accuracy: float) -> None:
        """One more point of the current run's accuracy on the test set."""
        steps, values = self.runs[-1]["accuracy"]
        steps.append(step)
        values.append(accuracy)

    def _moving(self):
        if not self.runs:
            return []
        current = self.runs[-1]
        for line, name in zip(current["lines"], ("loss", "accuracy"), strict=True):
            line.set_data(*current[name])
        return current["lines"]

    def alt(self) -> str:
        """What the two panels show, in words."""
        said = []
        for run in self.runs:
            (steps, losses), (_, accuracies) = run["loss"], run["accuracy"]
            words = [f"loss {losses[-1]:.3f} at step {steps[-1]}"] if losses else []
            words += [f"test accuracy {accuracies[-1]:.3f}"] if accuracies else []
            said.append(f"{run['label']}: {', '.join(words) or 'starting'}")
        return "Training loss (left) and test accuracy (right) by step. " + ("; ".join(said) or "No run yet") + "."

    def picture(self) -> Picture:
        """The whole figure, every run as thick as the others."""
        self._restyle(linewidth=1.4)
        self._legend()
        return Picture(self.figure, self.alt())


def masked_vector(vector, threshold: float) -> Picture:
    """Bars of a short gradient: what the mask keeps in full colour, what it drops hatched, the threshold as two lines.

    Args:
        vector: numbers, shape (n,).
        threshold: absolute value from which an element is kept.
    """
    vector = np.asarray(vector, dtype=float)
    kept = np.abs(vector) >= threshold
    figure = Figure(figsize=(7, 2.6), dpi=90, layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(vector))
    axes.bar(places[kept], vector[kept], color=PALETTE[0], label="kept")
    axes.bar(places[~kept], vector[~kept], color="white", edgecolor=PALETTE[1], hatch="///", label="dropped")
    for side in (threshold, -threshold):
        axes.axhline(side, color="black", linestyle="--", linewidth=1)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set(xlabel="element", ylabel="gradient", xticks=places)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    names = ", ".join(str(place) for place in places[kept]) or "none"
    return Picture(figure, f"{len(vector)} gradient elements as bars; kept at threshold {threshold:.3g}: {names}.")


def gradient_histograms(gradients: dict, limits: dict | None = None) -> Picture:
    """One histogram of log10 |gradient| per tensor, with its threshold as a vertical line.

    Args:
        gradients: arrays by name; zeros have no logarithm and are counted in the title.
        limits: thresholds by the same names.
    """
    figure = Figure(figsize=(9, 1.9 * ((len(gradients) + 1) // 2)), dpi=84, layout="constrained")
    panels = figure.subplots((len(gradients) + 1) // 2, 2, sharex=True, squeeze=False).ravel()
    said = []
    for axes, (name, gradient) in zip(panels, gradients.items(), strict=False):
        sizes = np.abs(np.asarray(gradient).ravel())
        axes.hist(np.log10(sizes[sizes > 0]), bins=60, color=PALETTE[4])
        title = f"{name}: {sizes.size:,} elements, {np.mean(sizes == 0):.0%} zero"
        if limits is not None:
            axes.axvline(np.log10(limits[name]), color=PALETTE[1], linewidth=2)
            title += f", {np.mean(sizes >= limits[name]):.2%} kept"
        axes.set_title(title, fontsize=9)
        axes.set_yticks([])
        said.append(f"{title} (median size {np.median(sizes):.1e}, largest {sizes.max():.1e})")
    for axes in panels[len(gradients) :]:
        axes.set_axis_off()
    figure.supxlabel("log10 of the absolute gradient", fontsize=9)
    return Picture(figure, "Histograms of gradient sizes by tensor. " + "; ".join(said) + ".")


def accuracy_by_ratio(tables: dict) -> Picture:
    """Accuracy against the share kept, one line per table; ratio 0 stands at the left end.

    Args:
        tables: by label, a sequence of ``(ratio, accuracy)``.
    """
    figure = Figure(figsize=(8, 3.2), dpi=90, layout="constrained")
    axes = figure.subplots()
    positive = [ratio for points in tables.values() for ratio, _ in points if ratio > 0]
    zero, said = min(positive) / 3, []
    for number, (label, points) in enumerate(tables.items()):
        points = sorted(points)
        axes.plot(
            [ratio or zero for ratio, _ in points], [a for _, a in points], marker="o", label=label, **style(number)
        )
        said.append(
            f"{label}: " + ", ".join(f"{ratio:.4g} gives {accuracy:.3f}" for ratio, accuracy in reversed(points))
        )
    axes.set(xscale="log", xlabel="ratio asked for (left end: 0)", ylabel="test accuracy", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return Picture(figure, "Test accuracy by the ratio asked for. " + "; ".join(said) + ".")
