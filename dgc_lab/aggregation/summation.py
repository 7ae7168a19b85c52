"""Lesson 1, section 2: add up the contributions to a gradient in several ways, and draw addends to try them on.

Each method takes n >= 1 tensors of one floating-point dtype and one shape, else a ValueError, and gives their sum in
that dtype. Call them eagerly to compare them: inside a ``tf.function`` TensorFlow's graph optimizer (Grappler) may turn
a chain of additions into a single ``AddN``.
"""

from __future__ import annotations

import numpy as np
import psutil
import tensorflow as tf
from numpy.typing import ArrayLike

from dgc_lab.common import check_choice, check_list, check_number, check_whole

DTYPES = ("float16", "bfloat16", "float32", "float64")
#: What `make_addends` draws: positive numbers alone, or both signs.
SIGNS = ("positive", "mixed")
#: In which order `make_addends` gives them.
ORDERS = ("drawn", "ascending", "descending")
MOST_ADDENDS = 1_000_000


def sequential_sum(addends: list[ArrayLike]):
    """One addend after the other, ``((a + b) + c) + d``: n - 1 additions, each waiting for the one before.

    ``addends``: at least one tensor, all of one floating-point dtype and one shape; else a ValueError.

    Example:
        >>> float(sequential_sum([tf.constant(1.0), tf.constant(2.0), tf.constant(3.0)]))
        6.0
    """
    total, *others = check_addends(addends)
    for addend in others:
        total = total + addend
    return total


def pairwise_sum(addends: list[ArrayLike]):
    """Pairs, then pairs of pairs, ``(a + b) + (c + d)``: n - 1 additions in ceil(log2 n) levels, a true tree.

    ``addends``: at least one tensor, all of one floating-point dtype and one shape; else a ValueError.

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
    """``tf.add_n``: one operation for all addends."""
    return tf.add_n(check_addends(addends))


def accumulate_n_sum(addends):
    """``tf.math.accumulate_n``, which since TensorFlow 2 calls ``tf.add_n``."""
    return tf.math.accumulate_n(check_addends(addends))


def kahan_sum(addends: list[ArrayLike]):
    """One after the other, with what each addition rounds away kept and added to the next addend.

    About four times the work of `sequential_sum` for an error that does not grow with the number of addends.
    ``addends``: at least one tensor, all of one floating-point dtype and one shape; else a ValueError.

    Source: W. Kahan, Further remarks on reducing truncation errors, Communications of the ACM 8 (1), 1965.

    Example:
        >>> addends = [tf.constant(1.0)] + 100 * [tf.constant(2.0**-25)]
        >>> float(sequential_sum(addends)), float(kahan_sum(addends)) == 1 + 100 * 2.0**-25
        (1.0, True)
    """
    total, *others = check_addends(addends)
    lost = tf.zeros_like(total)
    for addend in others:
        addend = addend - lost
        bigger = total + addend
        lost = (bigger - total) - addend
        total = bigger
    return total


#: Ways to add up, by name: functions of a list of tensors that return its sum, in their own dtype.
METHODS = {
    "sequential": sequential_sum,
    "pairwise": pairwise_sum,
    "add_n": add_n_sum,
    "accumulate_n": accumulate_n_sum,
    "kahan": kahan_sum,
}


def check_addends(addends) -> list:
    """The addends as a list of tensors; a ValueError when there are none or their dtypes or shapes differ."""
    addends = [tf.convert_to_tensor(addend) for addend in check_list("addends", addends)]
    if not addends:
        raise ValueError("addends must hold at least one tensor, got none")
    first = addends[0]
    if not first.dtype.is_floating:
        raise ValueError(f"addends must be floating point, got {first.dtype.name}")
    for place, addend in enumerate(addends):
        for what in ("dtype", "shape"):
            if getattr(addend, what) != getattr(first, what):
                names = [getattr(getattr(one, what), "name", getattr(one, what)) for one in (first, addend)]
                raise ValueError(f"addends must have one {what}, got {names[0]} first and {names[1]} at place {place}")
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
    """Draw addends whose sizes are spread over some powers of ten, the largest about 1.

    Args:
        count: number of addends, 1 to 1 000 000.
        size: elements of each; each is a sum of its own, so that an error is a mean over ``size`` sums.
        dtype: ``"float16"``, ``"bfloat16"``, ``"float32"`` or ``"float64"``.
        spread: decades: sizes are ``m * 10 ** -u``, with m uniform in [0.5, 1) and u in [0, spread]. 0 to 30.
        signs: ``"positive"``, or ``"mixed"`` for a fair coin each.
        order: ``"drawn"``, or sorted by size, ``"ascending"`` or ``"descending"``, for each element.
        seed: integer of at least 0.

    Returns:
        List of ``count`` tensors of shape (size,), rounded to ``dtype``.

    Raises:
        ValueError: an argument is outside what is said above, or the addends do not fit in the memory that is free.

    Example:
        >>> [tensor.dtype.name for tensor in make_addends(2, dtype="float16")]
        ['float16', 'float16']
    """
    check_whole("count", count, 1, MOST_ADDENDS)
    check_whole("size", size, 1, 2**40)
    check_whole("seed", seed, 0, 2**63)
    check_choice("dtype", dtype, DTYPES)
    check_choice("signs", signs, SIGNS)
    check_choice("order", order, ORDERS)
    check_number("spread", spread, "at least 0 and at most 30 decades")
    needed, free = 4 * 8 * count * size, psutil.virtual_memory().available  # drawn, sorted and rounded, in float64
    if needed > free:
        raise ValueError(
            f"count x size must fit in memory: {count} addends of {size} elements need {needed / 1e9:.3g} GB while "
            f"they are made, {free / 1e9:.3g} GB are free"
        )
    random = np.random.default_rng(seed)
    # Mantissas in [0.5, 1): with spread 0 the addends would else all be 1, and their sums exact.
    values = random.uniform(0.5, 1, (count, size)) * 10.0 ** -random.uniform(0, spread, (count, size))
    if order != "drawn":
        values.sort(axis=0)
        values = values[::-1] if order == "descending" else values
    if signs == "mixed":
        values = values * random.choice([-1.0, 1.0], (count, size))
    return tf.unstack(tf.cast(values, dtype))
