"""Figures of lesson 9: memory and traffic by method, and clusters on a map of computation against exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dgc_lab.common import check_number, check_some
from dgc_lab.scaling.cost_model import BACKWARD
from dgc_lab.scaling.known_models import CLUSTERS, Cluster, checked_clusters
from dgc_lab.scaling.memory import fits
from dgc_lab.ui.charts import GREY, HATCHES, MARKERS, PALETTE, Picture, grid, label_panel, short

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("weights", "gradients", "optimizer")


def memory_bars(table: pd.DataFrame, memory: float) -> Picture:
    """Draw the memory of a rank by method, with a line at the memory of a device, and the time of an exchange.

    Args:
        table: the result of `dgc_lab.scaling.compare_methods`.
        memory: GB of a device, above 0.

    Raises:
        ValueError: ``table`` is empty, or ``memory`` out of range.

    Example:
        >>> from dgc_lab.scaling import GBIT, Link, compare_methods
        >>> table = compare_methods(10**9, 8, "float32", "Adam", Link(GBIT))
        >>> memory_bars(table, 10).alt.split(". ")[1]
        'data parallel: 16 GB, does not fit, 59,575 ms per exchange; ZeRO 1: 9 GB, fits, 59,575 ms per exchange; ...

    References:
        arXiv:1910.02054, figure 1.
    """
    check_some("table", table)
    check_number("memory", memory, "above 0", finite=True)
    figure, (left, right) = grid(2, 2, 4.6, 2.6, sharey=True)
    rows, start = np.arange(len(table)), np.zeros(len(table))
    for number, part in enumerate(PARTS):
        size = table[f"{part} GB"].to_numpy()
        look = {"color": PALETTE[number], "hatch": HATCHES[number], "edgecolor": "white", "linewidth": 0}
        left.barh(rows, size, 0.7, left=start, label=part, **look)
        start = start + size
    left.axvline(memory, color="black", linestyle="--", linewidth=1.2, label=f"device: {short(memory)} GB")
    drawn = right.barh(rows, table["ms per exchange"], 0.7, color=GREY)
    right.bar_label(drawn, [short(ms) for ms in table["ms per exchange"]], fontsize=8, padding=3)
    left.set_yticks(rows, table.index, fontsize=9)
    left.invert_yaxis()
    right.margins(x=0.25)
    label_panel(left, "GB per rank, without activations", "GB")
    label_panel(right, "exchange of a step, without overlap", "ms")
    figure.legend(*left.get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=4)
    room = fits(table, memory)
    said = (
        f"{method}: {short(row['GB per rank'])} GB, {'fits' if method in room else 'does not fit'}, "
        f"{short(row['ms per exchange'])} ms per exchange"
        for method, row in table.iterrows()
    )
    return Picture(figure, f"Memory of a rank and time of an exchange by method. {'; '.join(said)}.")


def cluster_map(clusters: Sequence[Cluster] = CLUSTERS, selection: float = 0.0) -> Picture:
    """Draw clusters by the time of their exchange and of their computation, both per parameter.

    Above the line, the backward pass hides the whole uncompressed exchange, so compression cannot make a step faster.
    Left of the line's foot, selecting the elements takes longer than sending all of them.

    Args:
        clusters: the points.
        selection: ns per parameter to select the elements, at least 0.

    Raises:
        ValueError: there are no clusters, one is not a `Cluster`, or ``selection`` is out of range.

    Example:
        >>> cluster_map([Cluster("rack", 2.0, 50e9, 2, 64, "example")]).alt.split(". ")[-1]
        'rack: computes 2 ns, exchanges 0.0788 ns, nothing to gain.'

    References:
        Lesson 9, section 6; arXiv:2103.00543 (6 of 200 set-ups gain).
    """
    check_number("selection", selection, "at least 0", finite=True)
    clusters = checked_clusters(clusters)
    figure, [axes] = grid(1, 1, 8, 4)
    exchange = np.geomspace(max(selection, 1e-2) * 1.001, 1e4, 200)
    line = np.maximum((exchange - selection) / BACKWARD, 1e-9)
    axes.plot(exchange, line, color="black", linewidth=1.2)
    axes.fill_between(exchange, 1e-9, line, color=PALETTE[0], alpha=0.2, linewidth=0)
    said = []
    for number, cluster in enumerate(clusters):
        look = {"color": PALETTE[number % 7], "marker": MARKERS[number % 7], "markersize": 8, "linestyle": ""}
        axes.plot([cluster.exchange], [cluster.compute], label=cluster.name, **look)
        gains = cluster.exchange - selection > BACKWARD * cluster.compute
        verdict = f"at most {short(cluster.most_gain)} times as fast" if gains else "nothing to gain"
        said.append(
            f"{cluster.name}: computes {cluster.compute:.3g} ns, exchanges {cluster.exchange:.3g} ns, {verdict}"
        )
    axes.set(xscale="log", yscale="log", xlim=(1e-2, 1e4), ylim=(0.1, 100))
    axes.set_xlabel("uncompressed exchange, ns per parameter")
    axes.set_ylabel("computation, ns per parameter")
    axes.text(0.02, 0.95, "the backward pass hides the exchange", transform=axes.transAxes, va="top", fontsize=9)
    axes.text(0.98, 0.05, "compression can save time", transform=axes.transAxes, ha="right", fontsize=9)
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    axes.grid(alpha=0.3)
    return Picture(figure, f"Clusters by computation and exchange. {'; '.join(said)}.")
