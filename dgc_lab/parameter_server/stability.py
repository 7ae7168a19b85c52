"""How high a learning rate stale gradients allow: in theory, and on a quadratic. Lesson 3, section 4.

Gradient descent on L w^2 / 2, with gradients that are s updates old, is w[k+1] = w[k] - rate L w[k-s]. All rates here
are times the curvature L.
"""

from __future__ import annotations

import math

from dgc_lab.common import check_whole
from dgc_lab.parameter_server.metrics import check_runs, stalenesses
from dgc_lab.parameter_server.schedule import GradientEvent

BISECTIONS = 14
FAR_AWAY = 1e6  # from a start at 1, on the way to infinity


def stable_rate(staleness: int) -> float:
    """The rate below which descent on the quadratic comes to rest, where every gradient has that staleness.

    ``staleness`` counts updates, 0 to a million, else a ValueError.

    Source: S. A. Levin, R. M. May, "A note on difference-delay equations", Theoretical Population Biology 9, 1976:
    2 cos(s pi / (2 s + 1)), here as the sine of the angle that is left.

    Example:
        >>> [round(stable_rate(staleness), 2) for staleness in (0, 1, 3, 7)]
        [2.0, 1.0, 0.45, 0.21]
    """
    return 2 * math.sin(math.pi / (4 * check_whole("staleness", staleness, 0, 1_000_000) + 2))


def guaranteed_rate(staleness: int) -> float:
    """The rate up to which a theorem promises convergence on any loss whose gradient is L-Lipschitz, noise or not.

    ``staleness`` is the largest that occurs, 0 to a million, else a ValueError. Source: Lian et al. 2015
    (arXiv:1506.08272), Theorem 1, with one gradient an update and a constant rate: rate L + 2 (rate L s)^2 <= 1.

    Example:
        >>> [round(guaranteed_rate(staleness), 2) for staleness in (0, 1, 3, 7)]
        [1.0, 0.5, 0.21, 0.1]
    """
    most = check_whole("staleness", staleness, 0, 1_000_000)
    return 2 / (1 + math.sqrt(1 + 8 * most**2))


def largest_stable_rate(records: list[GradientEvent]) -> float:
    """The rate, up to 4, below which descent on the quadratic comes to rest with the stalenesses of these records.

    Found by bisection: whether the last quarter of the way, from a start at 1, is nearer to 0 than the second one. So
    there have to be many times more updates than the staleness; fewer than three are a ValueError, and so are records
    without those of the first updates.

    Example:
        >>> fresh = [GradientEvent(0, n, n, n, n + 1, n + 1, version=n, update=n, loss=2.3) for n in range(40)]
        >>> round(largest_stable_rate(fresh), 2)
        2.0
    """
    check_runs({"records": records})
    stale = stalenesses(sorted(records, key=lambda record: record.update))
    if len(stale) < 3:
        raise ValueError(f"records must hold 3 updates or more, got {len(stale)}")
    if any(staleness > before for before, staleness in enumerate(stale)):
        raise ValueError("records must be those from the first update on, got some that read weights from before")
    low, high = 0.0, 4.0
    for _ in range(BISECTIONS):
        rate = (low + high) / 2
        low, high = (rate, high) if _comes_to_rest(stale, rate) else (low, rate)
    return low


def _comes_to_rest(stale: list[int], rate: float) -> bool:
    way = [1.0]
    for staleness in stale:
        way.append(way[-1] - rate * way[-1 - staleness])
        if abs(way[-1]) > FAR_AWAY:
            return False
    quarter = len(way) // 4
    return max(map(abs, way[-quarter:])) <= max(map(abs, way[quarter : 2 * quarter]))
