"""The figure of lesson 8 that shows a gradient as a matrix M, its thin factors P and Q, and the product P Q^T.

The factors are those of `dgc_lab.compression.powersgd`, whose steps run here for one worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import tensorflow as tf
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from dgc_lab.common import check_list, check_some, check_whole
from dgc_lab.compression.driver import run_schemes
from dgc_lab.compression.schemes.low_rank import matrix, powersgd, thin_factors
from dgc_lab.distributed.communicators import OneWorker
from dgc_lab.ui.charts import PALETTE, Picture

SIGNED = LinearSegmentedColormap.from_list("signed", [PALETTE[0], "white", PALETTE[1]])  # negative, 0, positive
WIDE, TALL, MARGIN = 8.5, 3.6, 0.3  # inches
GAP, SPACE, THIN = 0.07, 0.3, 0.16  # inches: between a product and its factors, between ranks, for a column of P


def low_rank_products(gradient: ArrayLike, ranks: Sequence[int] = (1, 2, 4), steps: int = 1) -> Picture:
    """Draw a gradient as a matrix, and for each rank P at the left of P Q^T and Q^T above it, with the relative error.

    Blue is negative, white is 0, and red is positive. M and all products have the same scale; each factor has its own.

    Args:
        gradient: numbers in at least one dimension; the last one becomes the columns of the matrix.
        ranks: numbers of columns of P and Q: 1 to 4 of them, each at most 16, and at most 32 in total.
        steps: as in `low_rank_table`.

    Raises:
        ValueError: an argument is not allowed; the message names it.

    Example:
        >>> low_rank_products([[1.0, 2.0], [2.0, 4.0]], ranks=[1]).alt
        'A gradient as a matrix of 2 x 2, and products of thin matrices. Rank 1: 4 instead of 4 numbers, error 0 %.'

    References:
        arXiv:1905.13727, Algorithm 1 (PowerSGD).
    """
    given, ranks = _checked(gradient, ranks, steps)
    if len(ranks) > 4:
        raise ValueError(f"ranks must be at most 4 numbers, got {len(ranks)}")
    if max(ranks) > 16 or sum(ranks) > 32:  # the factors would leave no space for the matrices
        raise ValueError(f"ranks must be at most 16 each and at most 32 in total to fit in the picture, got {ranks}")
    products = {rank: _factors(given, rank, steps) for rank in ranks}
    figure = Figure(figsize=(WIDE, TALL), dpi=90)
    limit = np.quantile(np.abs(given), 0.995) or 1
    tall = TALL - MARGIN - 0.35 - THIN * max(products) - GAP  # 0.35 for the titles
    factors = sum(THIN * rank + GAP + SPACE for rank in products)
    size = (WIDE - 2 * MARGIN - factors) / (1 + len(products))

    def panel(left, bottom, wide, tall, values, limit):
        axes = figure.add_axes((left / WIDE, bottom / TALL, wide / WIDE, tall / TALL))
        axes.imshow(values, cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        return axes

    panel(MARGIN, MARGIN, size, tall, given, limit).set_xlabel("M", fontsize=9)
    said, end = [], MARGIN + size
    for rank, (left, right) in products.items():
        thick, product = THIN * rank, left @ right.T
        start = end + SPACE + thick + GAP
        error = f"{100 * _error(given, product):.0f} %"
        panel(start, MARGIN, size, tall, product, limit).set_xlabel(f"$P Q^T$, error {error}", fontsize=9)
        panel(end + SPACE, MARGIN, thick, tall, left, np.abs(left).max() or 1).set_xlabel("$P$", fontsize=9)
        above = panel(start, MARGIN + tall + GAP, size, thick, right.T, np.abs(right).max() or 1)
        end = start + size
        above.set_title(f"rank {rank}: $Q^T$", fontsize=10)
        numbers = f"{left.size + right.size} instead of {given.size} numbers"
        said.append(f"Rank {rank}: {numbers}, error {error}")
    shape = " x ".join(map(str, given.shape))
    return Picture(figure, f"A gradient as a matrix of {shape}, and products of thin matrices. {'; '.join(said)}.")


def low_rank_table(gradient: ArrayLike, ranks: Sequence[int] = (1, 2, 4), steps: int = 1) -> pd.DataFrame:
    """Return the size and the relative error of P Q^T for each rank, next to the smallest error of any such product.

    Args:
        gradient: as in `low_rank_products`.
        ranks: numbers of columns of P and Q, each at most the smaller side of the matrix.
        steps: number of steps of the power method on the same gradient. The first one starts from a random Q, and each
            other one from the Q of the step before, as PowerSGD does in training.

    Returns:
        A row for each rank: ``rank``; ``numbers sent``; ``share`` of the gradient's numbers; ``error``, the norm of
        M - P Q^T over that of M; ``smallest possible``, by singular value decomposition.

    Raises:
        ValueError: an argument is not allowed; the message names it.

    Example:
        >>> low_rank_table([[3.0, 0.0], [0.0, 4.0]], ranks=[1], steps=20).round(3).values.tolist()
        [[1.0, 4.0, 1.0, 0.6, 0.6]]

    References:
        arXiv:1905.13727, Algorithm 1 (PowerSGD).
    """
    given, ranks = _checked(gradient, ranks, steps)
    products = {rank: _factors(given, rank, steps) for rank in ranks}
    squares = np.linalg.svd(given.astype(np.float64), compute_uv=False) ** 2
    rows = [
        {
            "rank": rank,
            "numbers sent": left.size + right.size,
            "share": (left.size + right.size) / given.size,
            "error": _error(given, left @ right.T),
            "smallest possible": np.sqrt(squares[rank:].sum() / squares.sum()),
        }
        for rank, (left, right) in products.items()
    ]
    return pd.DataFrame(rows)


def _checked(gradient, ranks, steps: int) -> tuple[np.ndarray, list[int]]:
    """Return the gradient as a matrix, and the distinct ranks; raise ValueError if an argument is not allowed."""
    given = matrix(tf.convert_to_tensor(check_some("gradient", gradient), tf.float32)).numpy()
    if not np.isfinite(given).all() or not given.any():
        raise ValueError("gradient must be finite and not all zeros")
    check_whole("steps", steps, 1, 1000)
    ranks = [check_whole("ranks", rank, 1, min(given.shape)) for rank in check_list("ranks", ranks)]
    return given, list(dict.fromkeys(check_some("ranks", ranks)))


def _factors(given: np.ndarray, rank: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return P and Q after some steps of the power method on one worker."""
    right, _ = powersgd(rank).init(tf.zeros(given.shape))
    for _ in range(steps):
        [[(left, right)]], _ = run_schemes([[thin_factors(tf.constant(given), right)]], OneWorker())
    return left.numpy(), right.numpy()


def _error(given: np.ndarray, product: np.ndarray) -> float:
    return float(np.linalg.norm(given - product) / np.linalg.norm(given))
