"""Lesson 1, section 2: methods to sum the contributions to a gradient, and random addends to compare them.

Each method takes n >= 1 tensors of one floating-point dtype and one shape, and returns their sum in that dtype; it
raises ValueError for other tensors. Compare the methods eagerly: inside a ``tf.function``, TensorFlow's graph optimizer
(Grappler) may replace a chain of additions by a single ``AddN``.
"""

from __future__ import annotations

import numpy as np
import psutil
import tensorflow as tf
from numpy.typing import ArrayLike

from dgc_lab.common import check_choice, check_list, check_number, check_whole

DTYPES = ("float16", "bfloat16", "float32", "float64")
#: Signs of the addends of `make_addends`: positive numbers only, or both signs.
SIGNS = ("positive", "mixed")
#: Orders of the addends of `make_addends`.
ORDERS = ("drawn", "ascending", "descending")
MAX_ADDENDS = 1_000_000


def sequential_sum(addends: list[ArrayLike]):
    """Sum one addend after the other, ``((a + b) + c) + d``, in n - 1 dependent additions.

    Raises ValueError if ``addends`` is empty or does not have one floating-point dtype and one shape.

    Example:
        >>> float(sequential_sum([tf.constant(1.0), tf.constant(2.0), tf.constant(3.0)]))
        6.0
    """
    total, *others = check_addends(addends)
    for addend in others:
        total = total + addend
    return total


def pairwise_sum(addends: list[ArrayLike]):
    """Sum pairs, then pairs of pairs, ``(a + b) + (c + d)``: a tree of n - 1 additions in ceil(log2 n) levels.

    Raises ValueError if ``addends`` is empty or does not have one floating-point dtype and one shape.

    Example:
        >>> float(pairwise_sum([tf.constant(1.0), tf.constant(2.0), tf.constant(3.0)]))
        6.0
    """
    level = check_addends(addends)
    while len(level) > 1:
        left_over = level[len(level) // 2 * 2 :]
        level = [a + b for a, b in zip(level[::2], level[1::2], strict=False)] + left_over
    return level[0]


def add_n_sum(addends):
    """Sum with ``tf.add_n``, one operation for all addends."""
    return tf.add_n(check_addends(addends))


def accumulate_n_sum(addends):
    """Sum with ``tf.math.accumulate_n``, which calls ``tf.add_n`` since TensorFlow 2."""
    return tf.math.accumulate_n(check_addends(addends))


def kahan_sum(addends: list[ArrayLike]):
    """Sum one addend after the other, and add the rounding error of each addition to the next addend.

    The work is about four times that of `sequential_sum`, but the error does not grow with the number of addends.
    Raises ValueError if ``addends`` is empty or does not have one floating-point dtype and one shape.

    Example:
        >>> addends = [tf.constant(1.0)] + 100 * [tf.constant(2.0**-25)]
        >>> float(sequential_sum(addends)), float(kahan_sum(addends)) == 1 + 100 * 2.0**-25
        (1.0, True)

    References:
        W. Kahan, Further remarks on reducing truncation errors, Communications of the ACM 8 (1), 1965.
    """
    total, *others = check_addends(addends)
    lost = tf.zeros_like(total)
    for addend in others:
        addend = addend - lost
        bigger = total + addend
        lost = (bigger - total) - addend
        total = bigger
    return total


#: Summation methods, by name: functions that return the sum of a list of tensors, in the tensors' dtype.
METHODS = {
    "sequential": sequential_sum,
    "pairwise": pairwise_sum,
    "add_n": add_n_sum,
    "accumulate_n": accumulate_n_sum,
    "kahan": kahan_sum,
}


def check_addends(addends) -> list:
    """Return the addends as a list of tensors; raise ValueError if it is empty, or if dtypes or shapes differ."""
    addends = [tf.convert_to_tensor(addend) for addend in check_list("addends", addends)]
    if not addends:
        raise ValueError("addends must hold at least one tensor, got none")
    first = addends[0]
    if not first.dtype.is_floating:
        raise ValueError(f"addends must be floating point, got {first.dtype.name}")
    for index, addend in enumerate(addends):
        for what in ("dtype", "shape"):
            if getattr(addend, what) != getattr(first, what):
                names = [getattr(getattr(one, what), "name", getattr(one, what)) for one in (first, addend)]
                raise ValueError(f"addends must have one {what}, got {names[0]} first and {names[1]} at index {index}")
    return addends


def make_addends(
    count: int,
    size: int = 256,
    dtype: str = "float32",
    spread: float = 0.0,
    signs: str = "mixed",
    order: str = "drawn",
    seed: int = 0,
) -> list:
    """Draw random addends whose magnitudes spread over several powers of ten, the largest about 1.

    Args:
        count: number of addends, from 1 to 1 000 000.
        size: number of elements of each; each element has its own sum, so errors are averages over ``size`` sums.
        dtype: ``"float16"``, ``"bfloat16"``, ``"float32"`` or ``"float64"``.
        spread: decades, from 0 to 30: magnitudes are ``m * 10 ** -u``, m uniform in [0.5, 1) and u in [0, spread].
        signs: ``"positive"``, or ``"mixed"`` for both signs with equal probability.
        order: ``"drawn"``, or each element sorted by magnitude, ``"ascending"`` or ``"descending"``.
        seed: integer of at least 0.

    Returns:
        List of ``count`` tensors of shape (size,), rounded to ``dtype``.

    Raises:
        ValueError: an argument is not in its range, or the addends do not fit in the free memory.

    Example:
        >>> [tensor.dtype.name for tensor in make_addends(2, dtype="float16")]
        ['float16', 'float16']
    """
    check_whole("count", count, 1, MAX_ADDENDS)
    check_whole("size", size, 1, 2**40)
    check_whole("seed", seed, 0, 2**63 - 1)
    check_choice("dtype", dtype, DTYPES)
    check_choice("signs", signs, SIGNS)
    check_choice("order", order, ORDERS)
    check_number("spread", spread, "at least 0 and at most 30 decades")
    needed, free = 4 * 8 * count * size, psutil.virtual_memory().available  # float64 copies: drawn, sorted, rounded
    if needed > free:
        raise ValueError(
            f"count x size must fit in memory, got {count} addends of {size} elements: they need "
            f"{needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free"
        )
    random = np.random.default_rng(seed)
    # Random mantissas, because with spread 0 all addends would otherwise be 1, and their sums exact.
    values = random.uniform(0.5, 1, (count, size)) * 10.0 ** -random.uniform(0, spread, (count, size))
    if order != "drawn":
        values.sort(axis=0)
        values = values[::-1] if order == "descending" else values
    if signs == "mixed":
        values = values * random.choice([-1.0, 1.0], (count, size))
    return tf.unstack(tf.cast(values, dtype))
