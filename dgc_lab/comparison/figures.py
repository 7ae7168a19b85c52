"""Figures of lesson 8: bytes and accuracy of each scheme, and bias and variance of its messages."""

from __future__ import annotations

import pandas as pd

from dgc_lab.ui.charts import PALETTE, Picture, grid, label_panel, name_rows


def bytes_and_accuracy(table: pd.DataFrame) -> Picture:
    """Draw a row for each scheme: bytes per worker on the left, accuracy and its range over the seeds on the right.

    ``table`` is a result of `dgc_lab.comparison.study_table`.

    Example:
        >>> row = {"accuracy": 0.9, "least": 0.8, "greatest": 1.0, "kB a step": 153.0}
        >>> bytes_and_accuracy(pd.DataFrame([row], index=["dense"])).alt[-51:]
        ' dense: 153 kB, accuracy 0.900 from 0.800 to 1.000.'
    """
    figure, (sent, reached) = row_panels(table.index, 2, sharey=True)
    positions = range(len(table))
    sent.plot(table["kB a step"], positions, "s", color=PALETTE[1], markersize=6)
    sent.set_xscale("log")
    label_panel(sent, "what is sent", "kB a step and worker")
    reached.hlines(positions, table["least"], table["greatest"], color=PALETTE[0], linewidth=2)
    reached.plot(table["accuracy"], positions, "o", color=PALETTE[0], markersize=6)
    label_panel(reached, "test accuracy: mean, and from least to greatest seed", "test accuracy")
    texts = (
        f"{row.Index}: {row.kB:.3g} kB, accuracy {row.accuracy:.3f} from {row.least:.3f} to {row.greatest:.3f}"
        for row in table.rename(columns={"kB a step": "kB"}).itertuples()
    )
    return Picture(figure, "What each scheme sends, and the accuracy it reaches. " + "; ".join(texts) + ".")


def bias_and_variance(table: pd.DataFrame) -> Picture:
    """Draw a row for each scheme: bias and variance of its messages, relative to the gradient's squared norm.

    ``table`` is a result of `dgc_lab.comparison.errors.error_table`.

    Example:
        >>> bias_and_variance(pd.DataFrame([{"scheme": "int8", "bias": 0.001, "variance": 0.0}])).alt[-36:]
        'sends. int8: bias 0.001, variance 0.'
    """
    figure, [panel] = row_panels(table["scheme"], 1)
    styles = {"bias": ("o", PALETTE[1]), "variance": ("s", PALETTE[0])}
    for column, (mark, colour) in styles.items():
        panel.plot(table[column], range(len(table)), mark, color=colour, markersize=6, label=column)
    panel.set_xscale("symlog", linthresh=1e-3)
    label_panel(panel, "squared error of what is sent, over the squared norm of the gradient", "share of the square")
    panel.legend(fontsize=8)
    texts = (f"{row.scheme}: bias {row.bias:.3g}, variance {row.variance:.3g}" for row in table.itertuples())
    return Picture(figure, "Bias and variance of what each scheme sends. " + "; ".join(texts) + ".")


def row_panels(names, columns: int, **options):
    """Return a figure and its panels, which have a row for each name, the first one at the top."""
    names = list(names)
    figure, panels = grid(columns, columns, 9 / columns, 1 + 0.2 * len(names), **options)
    name_rows(panels[0], names, 0)
    return figure, panels
