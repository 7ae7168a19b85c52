"""Figures of studies: accuracy of methods, bytes and accuracy of schemes, and bias and variance of their messages.

Lessons 4 to 9.
"""

from __future__ import annotations

import pandas as pd

from dgc_lab.common import check_choice, check_instance, check_number
from dgc_lab.comparison.scheme_names import family, readable
from dgc_lab.ui.charts import BESIDE, GREY, MARKERS, PALETTE, Picture, grid, label_panel, name_rows, style


def bytes_and_accuracy(table: pd.DataFrame) -> Picture:
    """Draw each scheme's test error by the kB that a worker sends per step; a line joins the schemes on the front.

    A scheme is on the Pareto front if none with at most as many bytes is more accurate; these are numbered and named.
    Marks show the family, and bars extend from the lowest to the highest error of the seeds. Both axes are logarithmic;
    larger errors are drawn at five times the median, so that a run that diverged does not hide the others.

    ``table`` is a result of `dgc_lab.comparison.stored_study` with schemes as its index. Raises ValueError if a column
    is missing.

    Example:
        >>> row = {"accuracy": 0.9, "min": 0.85, "max": 0.92, "kB per step": 153.0}
        >>> bytes_and_accuracy(pd.DataFrame([row], index=["dense"])).alt[-75:]
        'front: uncompressed. uncompressed: 153 kB, error 10.0 % from 8.0 to 15.0 %.'
    """
    check_columns(table, ["accuracy", "min", "max", "kB per step"])
    figure, [axes] = grid(1, 1, 9, 5)
    errors = (100 * (1 - table[["accuracy", "max", "min"]])).clip(lower=0.01)  # a logarithmic axis has no 0
    errors.columns = ["mean", "lowest", "highest"]
    top = 5 * errors["mean"].median()
    cut, errors = bool((errors["highest"] > top).any()), errors.clip(upper=top)
    front = pareto_front(table)
    families = [family(scheme) for scheme in table.index]
    for number, kind in enumerate(dict.fromkeys(families)):
        own = [scheme for scheme, other in zip(table.index, families, strict=True) if other == kind]
        mean, sent = errors.loc[own, "mean"], table.loc[own, "kB per step"]
        spread = [mean - errors.loc[own, "lowest"], errors.loc[own, "highest"] - mean]
        look = {"color": PALETTE[number], "marker": MARKERS[number], "markersize": 6, "linestyle": "", "elinewidth": 1}
        axes.errorbar(sent, mean, yerr=spread, label=kind, **look)
    axes.plot(table.loc[front, "kB per step"], errors.loc[front, "mean"], color=GREY, linewidth=1, zorder=0)
    for number, scheme in enumerate(front, start=1):
        place = (table.loc[scheme, "kB per step"], errors.loc[scheme, "mean"])
        axes.annotate(str(number), place, (-6, 0), textcoords="offset points", ha="right", va="center", fontsize=8)
    names = "\n".join(f"{number}  {readable(scheme)}" for number, scheme in enumerate(front, start=1))
    axes.text(1.02, 0, f"Pareto front:\n{names}", transform=axes.transAxes, fontsize=8, va="bottom")
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=8)
    axes.margins(y=0.15)
    label_panel(axes, "", "kB per step and worker")
    axes.set_ylabel(f"test error, % (larger ones at {top:.3g})" if cut else "test error, %", fontsize=9)
    axes.legend(**BESIDE)
    texts = (
        f"{readable(row.Index)}: {row.kB:.3g} kB, error {100 - 100 * row.accuracy:.1f} % from "
        f"{100 - 100 * row.max:.1f} to {100 - 100 * row.min:.1f} %"
        for row in table.rename(columns={"kB per step": "kB"}).itertuples()
    )
    on_it = ", ".join(map(readable, front))
    return Picture(figure, f"Test error and bytes of each scheme. Pareto front: {on_it}. " + "; ".join(texts) + ".")


def pareto_front(table: pd.DataFrame) -> list[str]:
    """Return the schemes that no other one beats with at most as many bytes, fewest bytes first.

    Example:
        >>> table = pd.DataFrame({"kB per step": [10, 2, 5], "accuracy": [0.9, 0.8, 0.7]}, index=["a", "b", "c"])
        >>> pareto_front(table)
        ['b', 'a']
    """
    ordered = table.sort_values(["kB per step", "accuracy"], ascending=[True, False])
    best_so_far = ordered["accuracy"].cummax()
    first = ordered["accuracy"].gt(best_so_far.shift(fill_value=-1))
    return list(ordered.index[first])


def accuracy_spread(table: pd.DataFrame) -> Picture:
    """Draw a row for each method: its mean test accuracy, and a line for the range over the seeds.

    ``table`` is a result of `dgc_lab.comparison.stored_study`. Raises ValueError if it lacks a column.

    Example:
        >>> row = {"accuracy": 0.9, "min": 0.85, "max": 0.92}
        >>> accuracy_spread(pd.DataFrame([row], index=["dropping"])).alt
        'Test accuracy, mean and range over the seeds. dropping: 0.900, from 0.850 to 0.920.'
    """
    check_columns(table, ["accuracy", "min", "max"])
    figure, panel = row_panel(table.index)
    positions = range(len(table))
    panel.hlines(positions, table["min"], table["max"], color=PALETTE[0], linewidth=2)
    panel.plot(table["accuracy"], positions, "o", color=PALETTE[0], markersize=6)
    label_panel(panel, "", "test accuracy: mean and range over the seeds")
    texts = (f"{row.Index}: {row.accuracy:.3f}, from {row.min:.3f} to {row.max:.3f}" for row in table.itertuples())
    return Picture(figure, "Test accuracy, mean and range over the seeds. " + "; ".join(texts) + ".")


def accuracy_by(column: str, table: pd.DataFrame) -> Picture:
    """Draw test accuracy by a column of a study's table: a line for each group of methods, with the range of the seeds.

    ``table`` is a result of `dgc_lab.comparison.stored_study` with an additional column ``group``; ``column`` has
    numbers above 0. Raises ValueError if a column is missing.

    Example:
        >>> row = {"accuracy": 0.9, "min": 0.85, "max": 0.92, "learning rate": 0.1, "group": "1 worker"}
        >>> accuracy_by("learning rate", pd.DataFrame([row])).alt
        'Test accuracy by learning rate. 1 worker: 0.900 at 0.1.'
    """
    check_columns(table, ["accuracy", "min", "max", "group"])
    check_choice("column", column, list(table))
    figure, [axes] = grid(1, 1, 8, 3.6)
    said = []
    for number, (group, rows) in enumerate(table.groupby("group", sort=False)):
        rows = rows.sort_values(column)
        spread = [rows["accuracy"] - rows["min"], rows["max"] - rows["accuracy"]]
        look = {**style(number), "marker": MARKERS[number % len(MARKERS)], "markersize": 5, "capsize": 2}
        axes.errorbar(rows[column], rows["accuracy"], yerr=spread, label=group, **look)
        points = zip(rows["accuracy"], rows[column], strict=True)
        said.append(f"{group}: " + ", ".join(f"{accuracy:.3f} at {x:g}" for accuracy, x in points))
    axes.set_xscale("log")
    values = sorted(set(table[column]))
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    label_panel(axes, "", column)
    axes.set_ylabel("test accuracy", fontsize=9)
    axes.legend(**BESIDE)
    return Picture(figure, f"Test accuracy by {column}. " + "; ".join(said) + ".")


def bias_and_variance(table: pd.DataFrame) -> Picture:
    """Draw a row for each scheme: bias and variance of its messages, relative to the gradient's squared norm.

    ``table`` is a result of `dgc_lab.comparison.error_table`. Raises ValueError if a column is missing.

    Example:
        >>> bias_and_variance(pd.DataFrame([{"scheme": "int8", "bias": 0.001, "variance": 0.0}])).alt[-39:]
        'messages. int8: bias 0.001, variance 0.'
    """
    check_columns(table, ["scheme", "bias", "variance"])
    figure, panel = row_panel(table["scheme"])
    styles = {"bias": ("o", PALETTE[1]), "variance": ("s", PALETTE[0])}
    for column, (mark, colour) in styles.items():
        panel.plot(table[column], range(len(table)), mark, color=colour, markersize=6, label=column)
    panel.set_xscale("symlog", linthresh=1e-3)
    label_panel(panel, "bias and variance of one worker's message", "relative to the squared norm of the gradient")
    panel.legend(fontsize=8)
    texts = (f"{row.scheme}: bias {row.bias:.3g}, variance {row.variance:.3g}" for row in table.itertuples())
    return Picture(figure, "Bias and variance of each scheme's messages. " + "; ".join(texts) + ".")


def contraction(table: pd.DataFrame, guaranteed: float) -> Picture:
    """Draw a bar for each scheme: the contraction of its messages, one minus bias and variance.

    Schemes whose error is larger than the gradient have no bar. A dashed line marks ``guaranteed``, the contraction
    that the largest elements have for any vector.

    Args:
        table: the result of `dgc_lab.comparison.error_table`.
        guaranteed: contraction to mark, above 0 and at most 1.

    Raises:
        ValueError: a column is missing, or ``guaranteed`` is out of range.

    Example:
        >>> row = {"scheme": "top_k:ratio=0.01", "bias": 0.6, "variance": 0.0}
        >>> contraction(pd.DataFrame([row]), 0.01).alt[-56:]
        'Largest elements, for any vector: 0.01. top-k, 1 %: 0.4.'

    References:
        arXiv:1901.09847, assumption A (delta-approximate compressor).
    """
    check_number("guaranteed", guaranteed, "in (0, 1]")
    check_columns(table, ["scheme", "bias", "variance"])
    names = [readable(scheme) for scheme in table["scheme"]]
    values = 1 - table["bias"] - table["variance"]
    figure, panel = row_panel(names)
    panel.barh(range(len(values)), values.clip(lower=0), color=PALETTE[0], height=0.6)
    for row, value in enumerate(values):
        if value <= 0:
            panel.text(1.1e-3, row, "no contraction", va="center", fontsize=8, color=GREY)
    panel.axvline(guaranteed, color="black", linestyle="--", linewidth=1)
    panel.set(xscale="log", xlim=(1e-3, 1.1))
    label_panel(panel, "contraction on this gradient", "share of the squared norm that one message removes")
    texts = (
        f"{name}: {value:.2g}" if value > 0 else f"{name}: none" for name, value in zip(names, values, strict=True)
    )
    intro = f"Contraction of each scheme. Largest elements, for any vector: {guaranteed:g}. "
    return Picture(figure, intro + "; ".join(texts) + ".")


def check_columns(table: pd.DataFrame, columns: list[str]) -> None:
    """Raise ValueError unless the table is a DataFrame with these columns."""
    missing = [name for name in columns if name not in check_instance("table", table, pd.DataFrame)]
    if missing:
        raise ValueError(f"table must have the columns {', '.join(columns)}, got none named {', '.join(missing)}")


def row_panel(names):
    """Return a figure and its panel, which has a row for each name, the first one at the top."""
    names = list(names)
    figure, [panel] = grid(1, 1, 9, 1 + 0.2 * len(names))
    name_rows(panel, names, 0)
    return figure, panel
