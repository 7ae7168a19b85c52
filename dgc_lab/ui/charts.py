"""What the figures of all lessons share: colours, lines, bars, rows over time, and words that say what each shows.

Drawn on ``matplotlib.figure.Figure`` without pyplot, so that they work in threads and leave the user's plots alone.
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

from dgc_lab.common import check_some, check_text

if TYPE_CHECKING:
    import pandas as pd

# To be told apart with any colour vision: of Okabe and Ito's palette what has a contrast of 3 to white, as thin lines
# need, with a violet and a brown in place of its sky blue, its orange and its yellow, which are too pale.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7A3DD0", "#7A4A1E", "#000000")
GREY = "0.55"  # for what stands beside the colours; a paler one could not be seen by everybody
# A run that diverges leaves the picture at the top, and does not flatten the other runs' curves.
LARGEST_LOSS_SHOWN = 10
DASHES = ("-", "--", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo")
WIDEST = 6  # of a line that others lie on, in points
BESIDE = {"fontsize": 8, "loc": "upper left", "bbox_to_anchor": (1, 1)}  # a legend that hides no line


def style(number: int) -> dict:
    """Colour and dash of the number-th line: they repeat together only after 21 lines."""
    rounds, colour = divmod(number, len(PALETTE))
    return {"color": PALETTE[colour], "linestyle": DASHES[rounds % len(DASHES)]}


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
    """A ``matplotlib.figure.Figure`` and its alternative text, ``alt``; the last line of a notebook cell shows both.

    Example:
        >>> Picture(Figure(), "nothing yet").alt
        'nothing yet'
    """

    def __init__(self, figure: Figure, alt: str):
        self.figure, self.alt = figure, alt

    def _repr_mimebundle_(self, include=None, exclude=None):
        image = png(self.figure)
        # JupyterLab takes the HTML, since it gives a PNG no alternative text; GitHub and nbconvert show the PNG.
        in_text = base64.b64encode(image).decode()
        data = {"text/html": image_tag(image, self.alt), "image/png": in_text, "text/plain": self.alt}
        return data, {"image/png": {"alt": self.alt}}


def grid(count: int, columns: int, width: float, height: float, **options):
    """A figure and its panels of that size in inches, in rows of so many columns; what is left over is empty."""
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), dpi=90, layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False, **options).ravel()
    for axes in every[count:]:
        axes.set_axis_off()
    return figure, every[:count]


def label_panel(axes, title: str, xlabel: str) -> None:
    """What one of several panels side by side shows, in small letters, and a grid."""
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(xlabel, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)


def thinning(labels: Iterable[str]) -> dict[str, dict]:
    """Looks of lines, by label: each thinner than those before it, so that lines on each other can all be seen."""
    labels = list(labels)
    thinner, last = min(1.2, (WIDEST - 1.2) / max(1, len(labels) - 1)), len(labels) - 1
    return {label: {**style(n), "linewidth": 1.2 + thinner * (last - n)} for n, label in enumerate(labels)}


def lines(
    title: str, curves: dict, said: dict, xlabel: str, ylabel: str, *, looks: dict | None = None, **options
) -> Picture:
    """A line for each label, and a legend beside them; ``picture.figure.axes[0]`` is there to draw more on.

    ``curves`` has x and y by label, ``said`` by the same labels what the line shows in words, ``looks`` how it is
    drawn: if None, with a colour and a marker of its own. ``options`` are of the axes, such as ``xscale="log"``.
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
    """Training loss by step, one line per run.

    ``runs`` are by label losses (steps,), or (steps, replicas), whose mean is drawn; a ValueError where one is empty.

    Example:
        >>> losses({"one replica": [3.0, 1.0], "two": [[3.0, 2.0], [1.0, 0.5]]}).alt
        'Training loss by step. one replica: from 3.000 to 1.000; two: from 2.500 to 0.750.'
    """
    curves, said = {}, {}
    for label, values in check_some("runs", runs).items():
        check_some(f"runs[{label!r}]", values)
        values = np.reshape(np.asarray(values, float), (len(values), -1)).mean(axis=1)
        curves[label] = range(1, len(values) + 1), values
        said[label] = f"from {values[0]:.3f} to {values[-1]:.3f}"
    looks = thinning(curves)
    return lines("Training loss by step", curves, said, "step", "training loss", looks=looks, ylim=(0, None))


def bars(table: dict | pd.DataFrame | pd.Series, xlabel: str) -> Picture:
    """Horizontal bars, the number beside each: a group for each row of a table, in it a bar for each column.

    ``table`` is a ``pandas.DataFrame`` of numbers, or numbers by label; a ValueError where it is empty, or holds
    anything else. ``xlabel`` says what the numbers are.

    Example:
        >>> bars({"replicas": 0.75, "one device": 0.5}, "test accuracy").alt
        'test accuracy. replicas: 0.75; one device: 0.5.'
    """
    import pandas as pd

    check_text("xlabel", xlabel)
    frame = table if isinstance(table, pd.DataFrame) else pd.Series(table).to_frame("")
    if not frame.size:
        raise ValueError(f"table must hold at least one number, got {frame.shape[0]} rows and {frame.shape[1]} columns")
    if wrong := [value for value in frame.to_numpy().flat if not isinstance(value, numbers.Real)]:
        raise ValueError(f"table must hold numbers only, got {wrong[0]!r}")
    rows, columns = frame.shape
    figure, [axes] = grid(1, 1, 8, 0.8 + rows * (0.12 + 0.2 * columns))
    thick = 0.84 / columns
    for number, column in enumerate(frame.columns):
        places = np.arange(rows) + thick * (number - (columns - 1) / 2)
        look = {"color": PALETTE[number % 7], "hatch": HATCHES[number % 7], "edgecolor": "white", "linewidth": 0}
        drawn = axes.barh(places, frame[column], thick * 0.92, label=plain(column), **look)
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
    """A label as it is: between two dollar signs matplotlib would look for a formula."""
    return str(label).replace("$", r"\$")


def short(value: float) -> str:
    """A number with about three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def stacked_rows(rows: dict[str, list[str]], looks: dict[str, dict], mark: str, xlabel: str, left: float, first=0):
    """A figure with panels under one another on one scale of time, for bars in rows that are a step of 1 apart.

    ``rows``: by a panel's title, the names of its rows from the top, where y is ``first``; they take ``left`` inches.
    ``looks`` has how bars are drawn by what they mean; ``mark`` is what a short black upright line means.
    """
    heights = [0.2 * len(names) for names in rows.values()]
    # Laid out by hand, in inches, since a layout engine takes longer than the drawing: a title and the numbers of an
    # axis have 0.32 between two panels, the first title 0.25, the last axis and the legend 0.72.
    tall = sum(heights) + 0.32 * (len(rows) - 1) + 0.25 + 0.72
    figure = Figure(figsize=(9, tall), dpi=90)
    figure.subplots_adjust(left / 9, 0.72 / tall, 0.99, 1 - 0.25 / tall, hspace=0.32 / np.mean(heights))
    panels = figure.subplots(len(rows), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, (title, names) in zip(panels, rows.items(), strict=True):
        axes.set_title(title, fontsize=9, pad=3)
        name_rows(axes, names, first)
        axes.tick_params(axis="x", labelsize=8)
    panels[-1].set_xlabel(xlabel, fontsize=9, labelpad=1)
    legend_of_rows(figure, looks, mark)
    return figure, panels


def name_rows(axes, names: list[str], first: int) -> None:
    """Names at the left of rows for bars, from y = first downwards."""
    axes.set_yticks(range(first, first + len(names)), names, fontsize=8)
    axes.set_ylim(first + len(names) - 0.5, first - 0.6)


def legend_of_rows(figure: Figure, looks: dict[str, dict], mark: str) -> None:
    """What bars in rows mean, and what a short black upright line does, at the foot of the figure."""
    handles = [Patch(label=label, **look) for label, look in looks.items()]
    handles.append(Line2D([], [], color="black", marker="|", linestyle="", markersize=9, label=mark))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=8, frameon=False)
