"""Largest learning rates that stale gradients allow: in theory, and on a quadratic. Lesson 3, section 4.

Gradient descent on L w^2 / 2 with gradients that are s updates old is w[k+1] = w[k] - rate L w[k-s]. All rates here are
multiplied by the curvature L.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import pandas as pd

from dgc_lab.common import check_list, check_some, check_whole
from dgc_lab.parameter_server.metrics import check_runs, stalenesses
from dgc_lab.parameter_server.schedule import GradientEvent, Schedule
from dgc_lab.parameter_server.simulation import MAX_WORKERS, StepCosts, simulate

BISECTIONS = 14
DIVERGED_ABOVE = 1e6  # absolute value, from a start at 1


def stable_rate(staleness: int) -> float:
    """Return the rate below which descent on the quadratic converges if all gradients have the same ``staleness``.

    Staleness is a number of updates. Raises ValueError if it is not from 0 to a million.

    References:
        S. A. Levin, R. M. May, "A note on difference-delay equations", Theoretical Population Biology 9, 1976:
        2 cos(s pi / (2 s + 1)), here as the sine of the complementary angle.

    Example:
        >>> [round(stable_rate(staleness), 2) for staleness in (0, 1, 3, 7)]
        [2.0, 1.0, 0.45, 0.21]
    """
    return 2 * math.sin(math.pi / (4 * check_whole("staleness", staleness, 0, 1_000_000) + 2))


def guaranteed_rate(staleness: int) -> float:
    """Return the rate up to which a theorem guarantees convergence on any loss with an L-Lipschitz gradient.

    The gradient may be noisy. ``staleness`` is the largest that occurs. Raises ValueError if it is not from 0 to a
    million.

    References:
        Lian et al. 2015 (arXiv:1506.08272), Theorem 1, with one gradient per update and a constant rate:
        rate L + 2 (rate L s)^2 <= 1.

    Example:
        >>> [round(guaranteed_rate(staleness), 2) for staleness in (0, 1, 3, 7)]
        [1.0, 0.5, 0.21, 0.1]
    """
    most = check_whole("staleness", staleness, 0, 1_000_000)
    return 2 / (1 + math.sqrt(1 + 8 * most**2))


def largest_stable_rate(records: list[GradientEvent]) -> float:
    """Return the rate, up to 4, below which descent on the quadratic converges with the staleness of these ``records``.

    Bisection tests whether the last quarter of the iterates, from a start at 1, is nearer to 0 than the second quarter.
    So there must be many times more updates than the staleness. Raises ValueError if there are fewer than three, or if
    records of the first updates are missing.

    Example:
        >>> fresh = [GradientEvent(0, n, n, n, n + 1, n + 1, version=n, update=n, loss=2.3) for n in range(40)]
        >>> round(largest_stable_rate(fresh), 2)
        2.0
    """
    check_runs({"records": records})
    stale = stalenesses(sorted(records, key=lambda record: record.update))
    if len(stale) < 3:
        raise ValueError(f"records must have at least 3 updates, got {len(stale)}")
    if any(staleness > before for before, staleness in enumerate(stale)):
        raise ValueError("records must start with the first update, got some that read weights of earlier updates")
    low, high = 0.0, 4.0
    for _ in range(BISECTIONS):
        rate = (low + high) / 2
        low, high = (rate, high) if _converges(stale, rate) else (low, rate)
    return low


def stability_table(workers: Sequence[int], costs: StepCosts) -> pd.DataFrame:
    """Return the largest stable rate of simulated asynchronous schedules, for three seeds each.

    Args:
        workers: numbers of workers, from 1 to 1024; the schedules have 60 gradients for each worker.
        costs: how long each part of a step takes.

    Returns:
        A row per number of workers and seed, with the columns ``workers``, ``mean staleness``, ``largest stable rate``,
        and the product ``rate x (staleness + 1)``.

    Raises:
        ValueError: there are no numbers of workers, or one is not allowed.

    Example:
        >>> stability_table([1], StepCosts(1.0))["largest stable rate"].round(2).tolist()
        [2.0, 2.0, 2.0]
    """
    rows = []
    for number, seed in itertools.product(check_some("workers", check_list("workers", workers)), range(3)):
        check_whole("workers", number, 1, MAX_WORKERS)
        order = simulate(Schedule("asynchronous"), number, 60 * number, costs, seed)
        mean, rate = statistics.mean(stalenesses(order)), largest_stable_rate(order)
        rows.append((number, mean, rate, rate * (mean + 1)))
    return pd.DataFrame(rows, columns=["workers", "mean staleness", "largest stable rate", "rate x (staleness + 1)"])


def _converges(stale: list[int], rate: float) -> bool:
    iterates = [1.0]
    for staleness in stale:
        iterates.append(iterates[-1] - rate * iterates[-1 - staleness])
        if abs(iterates[-1]) > DIVERGED_ABOVE:
            return False
    quarter = len(iterates) // 4
    return max(map(abs, iterates[-quarter:])) <= max(map(abs, iterates[quarter : 2 * quarter]))
