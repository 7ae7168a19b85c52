"""Lesson 1, section 4: the time of one sum, with its additions in one operation, in a chain or in a tree."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from dgc_lab.aggregation.profiling import session
from dgc_lab.common import check_choice, check_list, check_number, check_some, check_whole

SHAPES = ("one AddN", "chain", "pairs")
v1 = tf.compat.v1


def time_sums(count: int, size: int, repeats: int = 15) -> dict[str, float]:
    """Measure the time of one sum in seconds for three arrangements of its additions, without Grappler.

    Args:
        count: number of addends, from 2 to 4 096.
        size: number of float32 elements of each addend, from 1 to 2**28; all addends together have at most 2**28.
        repeats: number of runs, the three arrangements in turn; the shortest counts.

    Returns:
        Times by arrangement: ``"one AddN"`` (as with ADD_N), ``"chain"`` (as with EXPERIMENTAL_TREE), ``"pairs"``.

    Raises:
        ValueError: an argument is not in its range.

    Example:
        >>> sorted(time_sums(count=2, size=4, repeats=1))
        ['chain', 'one AddN', 'pairs']
    """
    check_whole("count", count, 2, 4096)
    check_whole("size", size, 1, 2**28)
    check_whole("count x size", count * size, 1, 2**28)
    check_whole("repeats", repeats, 1, 10_000)
    with tf.Graph().as_default() as graph:
        drawn = tf.random.stateless_uniform([size], (0, count))
        addends = [v1.get_variable(f"addend{index}", initializer=drawn, use_resource=False) for index in range(count)]
        sums = {shape: build_sum(addends, shape).op for shape in SHAPES}
    shortest = dict.fromkeys(SHAPES, math.inf)
    with session(graph, grappler=False) as running:
        calls = {shape: running.make_callable(operation) for shape, operation in sums.items()}
        for call in [*calls.values(), *calls.values()]:
            call()
        for _ in range(repeats):
            for shape, call in calls.items():
                start = time.perf_counter()
                call()
                shortest[shape] = min(shortest[shape], time.perf_counter() - start)
    return shortest


def build_sum(addends, shape: str):
    """Sum symbolic addends in one of the `SHAPES`: one ``AddN``, a chain of two-input ``AddN`` or a tree of them."""
    check_choice("shape", shape, SHAPES)
    level = list(addends)
    if shape == "one AddN":
        return tf.add_n(level)
    while len(level) > 1:
        if shape == "chain":
            level = [tf.add_n(level[:2]), *level[2:]]
        else:
            pairs = [level[start : start + 2] for start in range(0, len(level), 2)]
            level = [tf.add_n(pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


def crossing(sizes: Sequence[float], first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the last size at which two curves of times cross on logarithmic axes, or None if they do not cross.

    ``sizes`` are ascending; ``first`` and ``second`` have a time above 0 for each size. Raises ValueError if there are
    not as many times as sizes.

    Example:
        >>> round(crossing([1, 100], [1.0, 4.0], [2.0, 2.0]), 6)
        10.0
    """
    check_some("sizes", check_list("sizes", sizes))
    for name, times in (("sizes", sizes), ("first", first), ("second", second)):
        for number in check_list(name, times):
            check_number(name, number, "above 0")
        if len(times) != len(sizes):
            raise ValueError(f"{name} must have one time for each of the {len(sizes)} sizes, got {len(times)}")
    sizes, gaps = np.log(np.asarray(sizes, float)), np.log(np.asarray(first, float) / np.asarray(second, float))
    for index in range(len(gaps) - 1, 0, -1):
        left, right = gaps[index - 1], gaps[index]
        if left * right <= 0 and left != right:
            return float(np.exp(sizes[index - 1] + (sizes[index] - sizes[index - 1]) * left / (left - right)))
    return None
