"""Lesson 1, section 4: the time of one sum, with its additions in one operation, in a chain or in a tree."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

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
        repeats: number of runs of each arrangement, in alternation; the shortest time counts.

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


def fastest(rounds: dict[str, Sequence[float]]) -> str:
    """Return the label that is faster than all others in every round, or ``"undecided"`` if the ranges overlap.

    ``rounds`` are times above 0 by label, measured several times each. A label is the fastest if its longest time is
    below the shortest time of every other label. Raises ValueError if there are fewer than two labels, or a label has
    no times.

    Example:
        >>> fastest({"chain": [3.0, 4.0], "pairs": [1.0, 2.0]}), fastest({"chain": [1.5, 4.0], "pairs": [1.0, 2.0]})
        ('pairs', 'undecided')
    """
    if len(rounds) < 2:
        raise ValueError(f"rounds must have at least two labels, got {list(rounds)}")
    checked = {}
    for label, times in rounds.items():
        name = f"rounds[{label!r}]"
        checked[label] = [check_number(name, each, "above 0") for each in check_some(name, check_list(name, times))]
    first, second = sorted(checked, key=lambda label: min(checked[label]))[:2]
    return first if max(checked[first]) < min(checked[second]) else "undecided"
