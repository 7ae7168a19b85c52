"""Lesson 1, section 4: how long one sum takes, its additions arranged as one operation, as a chain or as a tree."""

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
    """Seconds that one sum takes, with the additions arranged in three ways, in a graph that nobody rewrites.

    Args:
        count: number of addends, 2 to 4 096.
        size: float32 elements of each, 1 to 2**28; together at most 2**28, else a ValueError.
        repeats: the shortest of that many runs, the three in turns.

    Returns:
        By name: ``"one AddN"`` (what ADD_N makes), ``"chain"`` (what EXPERIMENTAL_TREE makes) and ``"pairs"``.

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
        addends = [v1.get_variable(f"addend{place}", initializer=drawn, use_resource=False) for place in range(count)]
        sums = {shape: arranged(addends, shape).op for shape in SHAPES}
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


def arranged(addends, shape: str):
    """The sum of symbolic addends as one of `SHAPES`: one ``AddN``, a chain of two-input ``AddN`` or a tree of them."""
    check_choice("shape", shape, SHAPES)
    level = list(addends)
    if shape == "one AddN":
        return tf.add_n(level)
    while len(level) > 1:
        if shape == "chain":
            level = [tf.add_n(level[:2]), *level[2:]]
        else:
            pairs = [level[place : place + 2] for place in range(0, len(level), 2)]
            level = [tf.add_n(pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


def crossing(sizes: Sequence[float], first: Sequence[float], second: Sequence[float]) -> float | None:
    """The last size at which two lines of times cross on logarithmic axes; None where one is faster at all sizes.

    ``sizes`` rise; ``first`` and ``second`` are the times at each of them, above 0.
    A ValueError for other numbers of times than of sizes.

    Example:
        >>> round(crossing([1, 100], [1.0, 4.0], [2.0, 2.0]), 6)
        10.0
    """
    check_some("sizes", check_list("sizes", sizes))
    for name, times in (("sizes", sizes), ("first", first), ("second", second)):
        for number in check_list(name, times):
            check_number(name, number, "above 0")
        if len(times) != len(sizes):
            raise ValueError(f"{name} must hold a time for each of {len(sizes)} sizes, got {len(times)}")
    sizes, gaps = np.log(np.asarray(sizes, float)), np.log(np.asarray(first, float) / np.asarray(second, float))
    for place in range(len(gaps) - 1, 0, -1):
        left, right = gaps[place - 1], gaps[place]
        if left * right <= 0 and left != right:
            return float(np.exp(sizes[place - 1] + (sizes[place] - sizes[place - 1]) * left / (left - right)))
    return None
