"""Rounding errors of floating-point sums, their bounds, and the time of each method: lesson 1, section 2.

Source for the bounds: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, chapter 4.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

from dgc_lab.aggregation.summation import DTYPES, MAX_ADDENDS, METHODS, check_addends
from dgc_lab.common import check_choice, check_list, check_some, check_whole


def exact_sum(addends: list[ArrayLike]) -> np.ndarray:
    """Return the exact sum, rounded once to float64 (``math.fsum``): the reference for all methods.

    Raises ValueError if ``addends`` is empty or does not have one floating-point dtype and one shape, or if float64
    cannot represent a sum.

    Example:
        >>> import tensorflow as tf
        >>> exact_sum([tf.constant([1e8]), tf.constant([1.0]), tf.constant([-1e8])])
        array([1.])
    """
    addends = check_addends(addends)
    stack = np.stack([np.asarray(addend, np.float64).ravel() for addend in addends])
    try:
        return np.array([math.fsum(column) for column in stack.T]).reshape(addends[0].shape)
    except (OverflowError, ValueError) as error:  # infinities of both signs
        raise ValueError(f"addends must have sums that float64 can represent, got {error}") from None


def relative_error(total: ArrayLike, exact: ArrayLike) -> float:
    """Return the relative error of a sum: ``|total - exact| / |exact|`` with L2 norms over the elements.

    The result is infinite if ``total`` contains infinity or NaN (overflow), or if ``exact`` is 0 and ``total`` is not.
    Raises ValueError if the shapes differ, or if ``total`` is finite and ``exact`` is not.

    Example:
        >>> import tensorflow as tf
        >>> relative_error(tf.constant([1.0, 1.5]), [1.0, 1.0])
        0.35355339059327373
    """
    total, exact = np.asarray(total, np.float64), np.asarray(exact, np.float64)
    if total.shape != exact.shape:
        raise ValueError(f"total must have the same shape as exact, {exact.shape}, got {total.shape}")
    if not np.isfinite(total).all():
        return math.inf
    if not np.isfinite(exact).all():
        raise ValueError("exact must contain only finite numbers, got infinity or NaN")
    if not exact.any():
        return math.inf if total.any() else 0.0
    scale = np.ldexp(1.0, np.frexp(np.abs(exact).max())[1] - 1)  # scaled, so that float64 can represent the squares
    return float(np.linalg.norm((total - exact) / scale) / np.linalg.norm(exact / scale))


def error_bound(method: str, count: int, dtype: str) -> float:
    """Return Higham's bound on the error, relative to the sum of absolute values.

    With unit roundoff u, the bound is ``d u / (1 - d u)`` for a method in which an addend passes through at most d
    additions (n - 1, or ceil(log2 n) for pairwise summation), and ``2 u + n u**2`` to first order for Kahan summation.
    There is no bound if ``d u >= 1``, or ``n u >= 1`` for Kahan summation; the result is then infinite. Raises
    ValueError if ``method`` or ``dtype`` is unknown, or ``count`` is not from 1 to 1 000 000.

    Example:
        >>> error_bound("pairwise", 1024, "float32") < error_bound("sequential", 1024, "float32") / 100
        True
    """
    check_choice("method", method, METHODS)
    check_whole("count", count, 1, MAX_ADDENDS)
    unit = float(ml_dtypes.finfo(check_choice("dtype", dtype, DTYPES)).eps) / 2
    if method == "kahan":
        return 2 * unit + count * unit**2 if count * unit < 1 else math.inf
    depth = math.ceil(math.log2(count)) if method == "pairwise" else count - 1
    return depth * unit / (1 - depth * unit) if depth * unit < 1 else math.inf


def errors(addends: list[ArrayLike]) -> dict[str, float]:
    """Return the `relative_error` of each of the `METHODS` on the same addends.

    Raises ValueError if the tensors in ``addends`` do not have one dtype and shape.

    Example:
        >>> import tensorflow as tf
        >>> errors([tf.constant([1.0]), tf.constant([2.0])])["pairwise"]
        0.0
    """
    addends = check_addends(addends)
    exact = exact_sum(addends)
    return {name: relative_error(method(addends), exact) for name, method in METHODS.items()}


def apart_by_order(add: Callable, addends: Sequence, orders: Iterable[Sequence[int]]) -> dict[str, float]:
    """Compare sums of the same addends in several orders.

    Args:
        add: function of a list of addends, such as one of the `METHODS`, or Python's own ``sum``, which compensates for
            the rounding of plain floats since Python 3.12.
        addends: tensors or arrays of the same shape and dtype.
        orders: for each sum, the indices of the addends in the order of summation.

    Returns:
        ``"different sums"``: number of distinct sums, compared bit by bit;
        ``"elements that differ"``: share of the elements that are not the same in all sums;
        ``"farthest apart"``: the largest difference of two sums in any element, as a share of the largest element.

    Raises:
        ValueError: ``orders`` is empty, or contains an index outside ``addends``.

    Example:
        >>> apart_by_order(sum, np.array([1e16, 1.0, -1e16]), [(0, 2, 1), (0, 1, 2)])["different sums"]
        2
    """
    orders = [check_list("orders", order) for order in check_some("orders", check_list("orders", orders))]
    for index in itertools.chain(*orders):
        check_whole("orders", index, 0, len(addends) - 1)
    sums = np.stack([np.asarray(add([addends[index] for index in order]), np.float64) for order in orders])
    apart, largest = np.ptp(sums, axis=0), np.abs(sums).max()
    return {
        "different sums": len({total.tobytes() for total in sums}),
        "elements that differ": float(np.mean(apart > 0)),
        "farthest apart": float(apart.max() / largest) if largest else 0.0,
    }


def measure(addends: list[ArrayLike]) -> list[dict]:
    """Measure error and time of each of the `METHODS` on the same addends.

    Returns one dict per method: ``method``, ``error`` (`relative_error`), and ``seconds`` of the second eager call.
    Raises ValueError if the tensors in ``addends`` do not have one dtype and shape.

    Example:
        >>> from dgc_lab.aggregation.summation import make_addends
        >>> [row["method"] for row in measure(make_addends(8))]
        ['sequential', 'pairwise', 'add_n', 'accumulate_n', 'kahan']
    """
    rows, addends = [], check_addends(addends)
    for name, error in errors(addends).items():
        start = time.perf_counter()
        np.asarray(METHODS[name](addends))  # waits for the value, even on a GPU
        rows.append({"method": name, "error": error, "seconds": time.perf_counter() - start})
    return rows
