"""Building blocks for the figures of all lessons: colours, lines, bars, rows over time, and alternative texts.

Figures are ``matplotlib.figure.Figure`` objects without pyplot: they work in threads and do not affect user plots.
"""

from __future__ import annotations

import base64
import html
import io
import numbers
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dgc_lab.common import check_instance, check_some, check_text

if TYPE_CHECKING:
    import pandas as pd

# Distinguishable with any colour vision: the colours of Okabe and Ito's palette that have a contrast of 3 to white, as
# thin lines need. A violet and a brown replace the sky blue, orange and yellow, which are too pale.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7A3DD0", "#7A4A1E", "#000000")
GREY = "0.55"  # for secondary elements; some readers could not see a paler grey
# A diverging run leaves the axes at the top, so it does not flatten the curves of other runs.
LARGEST_LOSS_SHOWN = 10
DASHES = ("-", "--", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo")
WIDEST = 6  # points, width of a line that other lines may cover
# CSS of a panel in a row of panels, and of a picture whose panels cannot wrap: below this width, the widget scrolls.
PANEL = "flex: 1 1 240px; min-width: 0; max-width: 450px"
WHOLE = "max-width: 100%; min-width: 540px"
BESIDE = {"fontsize": 8, "loc": "upper left", "bbox_to_anchor": (1, 1)}  # a legend outside the axes hides no line


def style(number: int) -> dict:
    """Return colour and dash of the number-th line; the combinations repeat after 21 lines."""
    rounds, colour = divmod(number, len(PALETTE))
    return {"color": PALETTE[colour], "linestyle": DASHES[rounds % len(DASHES)]}


def png(figure: Figure, enlarged: float = 1.0) -> bytes:
    """Return the figure as a PNG file, ``enlarged`` times as wide and as high as the figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=enlarged * figure.dpi)
    return file.getvalue()


def image_tag(data: bytes, alt: str, style: str = "max-width: 100%") -> str:
    """Return an ``<img>`` element with an embedded PNG file and its alternative text, no wider than the page."""
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return f'<img alt="{html.escape(alt)}" style="{style}" src="{source}">'


def panels_tag(panels: list[bytes], alt: str) -> str:
    """Return a picture's panels, PNG files, as images that share the width of the page, on several rows if narrow.

    The first image has the alternative text of the whole picture.

    Example:
        >>> panels_tag([b"left", b"right"], "Loss and accuracy.").count("<img")
        2
    """
    if len(panels) == 1:
        return image_tag(panels[0], alt, WHOLE)
    texts = [alt] + [""] * (len(panels) - 1)
    images = "".join(image_tag(panel, text, PANEL) for panel, text in zip(panels, texts, strict=True))
    return f'<div style="display: flex; flex-wrap: wrap; align-items: flex-start">{images}</div>'


class Picture:
    """A ``matplotlib.figure.Figure`` with its alternative text ``alt``. As the last line of a cell, it shows both.

    Example:
        >>> Picture(Figure(), "nothing yet").alt
        'nothing yet'
    """

    def __init__(self, figure: Figure, alt: str):
        self.figure, self.alt = figure, alt

    def _repr_mimebundle_(self, include=None, exclude=None):
        image = png(self.figure)
        # JupyterLab shows the HTML, because it gives PNGs no alternative text. GitHub and nbconvert show the PNG.
        in_text = base64.b64encode(image).decode()
        data = {"text/html": image_tag(image, self.alt), "image/png": in_text, "text/plain": self.alt}
        return data, {"image/png": {"alt": self.alt}}


def grid(count: int, columns: int, width: float, height: float, **options):
    """Return a figure and ``count`` panels of ``width`` x ``height`` inches; surplus cells of the grid stay empty."""
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), dpi=90, layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False, **options).ravel()
    for axes in every[count:]:
        axes.set_axis_off()
    return figure, every[:count]


def label_panel(axes, title: str, xlabel: str) -> None:
    """Give one of several panels a title and an axis label in a small font, and a grid."""
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(xlabel, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)


def thinning(labels: Iterable[str]) -> dict[str, dict]:
    """Return line styles by label. Each line is thinner than the previous one, so overlapping lines stay visible."""
    labels = list(labels)
    thinner, last = min(1.2, (WIDEST - 1.2) / max(1, len(labels) - 1)), len(labels) - 1
    return {label: {**style(n), "linewidth": 1.2 + thinner * (last - n)} for n, label in enumerate(labels)}


def lines(
    title: str, curves: dict, said: dict, xlabel: str, ylabel: str, *, looks: dict | None = None, **options
) -> Picture:
    """Draw a line for each label, with a legend beside the axes. To draw more, use ``picture.figure.axes[0]``.

    Args:
        title: start of the alternative text.
        curves: x and y by label.
        said: a description of each line by label, for the alternative text.
        xlabel, ylabel: the axis labels.
        looks: a style by label; if None, each line has its own colour and marker.
        options: settings of the axes, such as ``xscale="log"``.
    """
    figure, [axes] = grid(1, 1, 8, 3.3)
    for number, (label, (x, y)) in enumerate(curves.items()):
        own = {"marker": MARKERS[number % len(MARKERS)], "markersize": 5, **style(number)}
        axes.plot(x, y, label=plain(label), **(looks[label] if looks else own))
    axes.set(xlabel=xlabel, ylabel=ylabel, **options)
    axes.grid(alpha=0.3)
    axes.legend(**BESIDE)
    return Picture(figure, f"{title}. " + "; ".join(f"{label}: {words}" for label, words in said.items()) + ".")


def losses(runs: dict) -> Picture:
    """Draw training loss by step, one line per run.

    Args:
        runs: losses by label, of shape (steps,), or (steps, replicas) to draw the mean over replicas.

    Raises:
        ValueError: `runs` is not a dict, or `runs` or one of its members is empty.

    Example:
        >>> losses({"one replica": [3.0, 1.0], "two": [[3.0, 2.0], [1.0, 0.5]]}).alt
        'Training loss by step. one replica: from 3.000 to 1.000; two: from 2.500 to 0.750.'
    """
    curves, said = {}, {}
    for label, values in check_some("runs", check_instance("runs", runs, dict)).items():
        check_some(f"runs[{label!r}]", values)
        values = np.reshape(np.asarray(values, float), (len(values), -1)).mean(axis=1)
        curves[label] = range(1, len(values) + 1), values
        said[label] = f"from {values[0]:.3f} to {values[-1]:.3f}"
    looks = thinning(curves)
    return lines("Training loss by step", curves, said, "step", "training loss", looks=looks, ylim=(0, None))


def bars(table: dict | pd.DataFrame | pd.Series, xlabel: str) -> Picture:
    """Draw horizontal bars labelled with their values: a group for each row of a table, with a bar for each column.

    Args:
        table: a ``pandas.DataFrame`` of numbers, or numbers by label.
        xlabel: the meaning of the numbers.

    Raises:
        ValueError: `table` is empty or has a value that is not a number.

    Example:
        >>> bars({"replicas": 0.75, "one device": 0.5}, "test accuracy").alt
        'test accuracy. replicas: 0.75; one device: 0.5.'
    """
    import pandas as pd

    check_text("xlabel", xlabel)
    frame = table if isinstance(table, pd.DataFrame) else pd.Series(table).to_frame("")
    if not frame.size:
        raise ValueError(f"table must have at least one number, got {frame.shape[0]} rows and {frame.shape[1]} columns")
    if wrong := [value for value in frame.to_numpy().flat if not isinstance(value, numbers.Real)]:
        raise ValueError(f"table must have only numbers, got {wrong[0]!r}")
    rows, columns = frame.shape
    figure, [axes] = grid(1, 1, 8, 0.8 + rows * (0.12 + 0.2 * columns))
    thick = 0.84 / columns
    for number, column in enumerate(frame.columns):
        positions = np.arange(rows) + thick * (number - (columns - 1) / 2)
        look = {"color": PALETTE[number % 7], "hatch": HATCHES[number % 7], "edgecolor": "white", "linewidth": 0}
        drawn = axes.barh(positions, frame[column], thick * 0.92, label=plain(column), **look)
        axes.bar_label(drawn, [short(value) for value in frame[column]], fontsize=8, padding=3)
    axes.set_yticks(range(rows), [plain(row) for row in frame.index], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel(xlabel, fontsize=9)
    if columns > 1:
        axes.legend(**BESIDE)
    said = (
        f"{row}: " + ", ".join(f"{column} {short(value)}".lstrip() for column, value in zip(frame, values, strict=True))
        for row, *values in frame.itertuples()
    )
    return Picture(figure, f"{xlabel}. " + "; ".join(said) + ".")


def plain(label) -> str:
    """Escape dollar signs in a label, so that matplotlib does not parse it as a formula."""
    return str(label).replace("$", r"\$")


def short(value: float) -> str:
    """Format a number with about three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def stacked_rows(rows: dict[str, list[str]], looks: dict[str, dict], mark: str, xlabel: str, left: float, first=0):
    """Return a figure with stacked panels on a shared time axis, for bars in rows at a distance of 1.

    Args:
        rows: names of each panel's rows from top to bottom, by the panel's title.
        looks: styles of the bars, by their meaning.
        mark: meaning of a short vertical black line.
        xlabel: label of the time axis.
        left: inches for the names of the rows.
        first: y of the top row.
    """
    heights = [0.2 * len(names) for names in rows.values()]
    # A manual layout in inches, because a layout engine takes longer than drawing: 0.32 between two panels for a title
    # and tick labels, 0.25 for the first title, and 0.72 for the last axis and the legend.
    tall = sum(heights) + 0.32 * (len(rows) - 1) + 0.25 + 0.72
    figure = Figure(figsize=(9, tall), dpi=90)
    figure.subplots_adjust(left / 9, 0.72 / tall, 0.98, 1 - 0.25 / tall, hspace=0.32 / np.mean(heights))
    panels = figure.subplots(len(rows), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, (title, names) in zip(panels, rows.items(), strict=True):
        axes.set_title(title, fontsize=9, pad=3)
        name_rows(axes, names, first)
        axes.tick_params(axis="x", labelsize=8)
    panels[-1].set_xlabel(xlabel, fontsize=9, labelpad=1)
    legend_of_rows(figure, looks, mark)
    return figure, panels


def name_rows(axes, names: list[str], first: int) -> None:
    """Label rows with their names, on the left, from y = ``first`` downwards."""
    axes.set_yticks(range(first, first + len(names)), names, fontsize=8)
    axes.set_ylim(first + len(names) - 0.5, first - 0.6)


def legend_of_rows(figure: Figure, looks: dict[str, dict], mark: str) -> None:
    """Add a legend at the bottom of the figure for bars in rows and for short vertical black lines."""
    handles = [Patch(label=label, **look) for label, look in looks.items()]
    handles.append(Line2D([], [], color="black", marker="|", linestyle="", markersize=9, label=mark))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=8, frameon=False)
