"""Points around eight centres on a ring, and how close a generator's points come to them.

The classic test of generative models (Metz et al. 2017, arXiv:1611.02163): one that learns badly leaves centres out,
puts points between them or moves from one to another for ever, and all three can be counted.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from dgc_lab.common import check_whole

MODES = 8  # centres on the ring
RADIUS = 2.0
DEVIATION = 0.2  # of the points around their centre, along each axis
GOOD_WITHIN = 3 * DEVIATION  # 98.9 % of the real points are no farther from their centre
LEAST_SHARE = 0.2  # of its 1/8 of the points, for a centre to count as covered
COMPARED_WITH = 1000  # real points, in the energy distance


def centres() -> np.ndarray:
    """The eight centres, float64 (8, 2)."""
    angles = 2 * np.pi * np.arange(MODES) / MODES
    return RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def ring_points(count: int, seed: int = 0) -> np.ndarray:
    """Real points, float32 (count, 2): a centre drawn at random, and a normal deviation from it.

    Raises:
        ValueError: count is below 1, or seed below 0.

    Example:
        >>> ring_points(100).shape
        (100, 2)
    """
    check_whole("count", count, 1, 10_000_000)
    check_whole("seed", seed, 0, 2**31 - 1)
    random = np.random.default_rng(seed)
    points = centres()[random.integers(0, MODES, count)] + random.normal(0, DEVIATION, (count, 2))
    return points.astype(np.float32)


def mean_distance(one, other) -> float:
    """Mean distance between a point of one set and a point of the other; of one set, between two different ones."""
    from sklearn.metrics import pairwise_distances_chunked

    total = sum(part.sum() for part in pairwise_distances_chunked(one, other, working_memory=64))  # in MiB
    return float(total / (len(one) * (len(other) - 1 if one is other else len(other))))


@cache
def compared_with() -> tuple[np.ndarray, float]:
    """Real points that no training set holds, the same for every score, and their mean distance."""
    points = ring_points(COMPARED_WITH, seed=2**31 - 1).astype(np.float64)
    return points, mean_distance(points, points)


def quality(points: ArrayLike) -> dict[str, float]:
    """How close points, a float array (count, 2), come to the real distribution; three numbers by name.

    - ``"modes covered"``: of the 8 centres, those that got at least a fifth of their share of the points, counting good
      ones alone;
    - ``"good samples"``: share of the points that lie within 3 standard deviations of a centre. Of real ones 0.99; of
      points spread evenly on the circle through the centres 0.77, though they show no centre at all;
    - ``"energy distance"``: 2 E|x - y| - E|x - x'| - E|y - y'| between these points x and 1 000 real ones y: 0 for the
      same distribution. It is an estimate and can come out below 0: 1 000 real points give less than 0.01 either way.
      Infinite where a coordinate is infinite or not a number, as after training that diverged.

    Raises:
        ValueError: another shape, or fewer than two points.

    Source: G. J. Székely, M. L. Rizzo, "Energy statistics", 2013.

    Example:
        >>> score = quality(ring_points(1000, seed=1))
        >>> score["modes covered"], score["good samples"]
        (8.0, 0.983)
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 2:
        raise ValueError(f"points must have shape (count, 2) with at least two points, got {points.shape}")
    distances = np.linalg.norm(np.where(np.isfinite(points), points, np.inf)[:, None] - centres(), axis=2)
    good = distances.min(axis=1) <= GOOD_WITHIN
    counts = np.bincount(distances.argmin(axis=1)[good], minlength=MODES)
    apart = np.inf
    if np.isfinite(points).all():
        real, real_apart = compared_with()
        apart = 2 * mean_distance(points, real) - mean_distance(points, points) - real_apart
    covered = np.sum(counts >= LEAST_SHARE * len(points) / MODES)
    return {"modes covered": float(covered), "good samples": float(good.mean()), "energy distance": float(apart)}
