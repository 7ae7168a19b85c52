"""Figures of lesson 8: what each scheme sends beside the accuracy that it reaches, and how far it is off."""

from __future__ import annotations

import pandas as pd

from dgc_lab.ui.charts import PALETTE, Picture, grid, label_panel, name_rows


def bytes_and_accuracy(table: pd.DataFrame) -> Picture:
    """A row for each scheme: at the left what a worker sends, at the right accuracy with its spread over the seeds.

    ``table`` is what `dgc_lab.comparison.table.scheme_table` gives.

    Example:
        >>> row = {"scheme": "dense", "accuracy": 0.9, "least": 0.8, "greatest": 1.0, "kB a step": 153.0}
        >>> bytes_and_accuracy(pd.DataFrame([row])).alt[-51:]
        ' dense: 153 kB, accuracy 0.900 from 0.800 to 1.000.'
    """
    figure, (sent, reached) = rows_of(table["scheme"], 2, sharey=True)
    places = range(len(table))
    sent.plot(table["kB a step"], places, "s", color=PALETTE[1], markersize=6)
    sent.set_xscale("log")
    label_panel(sent, "what is sent", "kB a step and worker")
    reached.hlines(places, table["least"], table["greatest"], color=PALETTE[0], linewidth=2)
    reached.plot(table["accuracy"], places, "o", color=PALETTE[0], markersize=6)
    label_panel(reached, "test accuracy: mean, and from least to greatest seed", "test accuracy")
    said = (
        f"{row.scheme}: {row.kB:.3g} kB, accuracy {row.accuracy:.3f} from {row.least:.3f} to {row.greatest:.3f}"
        for row in table.rename(columns={"kB a step": "kB"}).itertuples()
    )
    return Picture(figure, "What each scheme sends, and the accuracy it reaches. " + "; ".join(said) + ".")


def bias_and_variance(table: pd.DataFrame) -> Picture:
    """A row for each scheme: bias and variance of what it sends, both relative to the gradient's square.

    ``table`` is what `dgc_lab.comparison.errors.error_table` gives.

    Example:
        >>> bias_and_variance(pd.DataFrame([{"scheme": "int8", "bias": 0.001, "variance": 0.0}])).alt[-36:]
        'sends. int8: bias 0.001, variance 0.'
    """
    figure, [panel] = rows_of(table["scheme"], 1)
    looks = {"bias": ("o", PALETTE[1]), "variance": ("s", PALETTE[0])}
    for what, (mark, colour) in looks.items():
        panel.plot(table[what], range(len(table)), mark, color=colour, markersize=6, label=what)
    panel.set_xscale("symlog", linthresh=1e-3)
    label_panel(panel, "squared error of what is sent, over the squared norm of the gradient", "share of the square")
    panel.legend(fontsize=8)
    said = (f"{row.scheme}: bias {row.bias:.3g}, variance {row.variance:.3g}" for row in table.itertuples())
    return Picture(figure, "Bias and variance of what each scheme sends. " + "; ".join(said) + ".")


def rows_of(names, columns: int, **options):
    """A figure whose panels have a row for each name, the first one at the top."""
    names = list(names)
    figure, panels = grid(columns, columns, 9 / columns, 1 + 0.2 * len(names), **options)
    name_rows(panels[0], names, 0)
    return figure, panels
