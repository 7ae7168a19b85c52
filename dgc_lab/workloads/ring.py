"""Points around eight centres on a ring, and scores for a generator's points.

This is a classic test of generative models (Metz et al. 2017, arXiv:1611.02163). A bad model misses centres, places
points between them, or moves from one centre to the next forever; all three failures can be measured.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from dgc_lab.common import check_whole

MODES = 8  # centres on the ring
RADIUS = 2.0
DEVIATION = 0.2  # standard deviation of the points from their centre, along each axis
GOOD_WITHIN = 3 * DEVIATION  # 98.9 % of the real points are within this distance of their centre
LEAST_SHARE = 0.2  # a centre counts as covered with this share of its 1/8 of the points
COMPARED_WITH = 1000  # number of real points in the energy distance


def centres() -> np.ndarray:
    """Return the eight centres, float64 (8, 2)."""
    angles = 2 * np.pi * np.arange(MODES) / MODES
    return RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def ring_points(count: int, seed: int = 0) -> np.ndarray:
    """Draw real points, float32 (count, 2): a random centre plus a normally distributed deviation.

    Raises:
        ValueError: ``count`` is below 1, or ``seed`` is below 0.

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
    """Return the mean distance between points of two sets; for one set twice, between two different points."""
    from sklearn.metrics import pairwise_distances_chunked

    total = sum(part.sum() for part in pairwise_distances_chunked(one, other, working_memory=64))  # in MiB
    return float(total / (len(one) * (len(other) - 1 if one is other else len(other))))


@cache
def reference_points() -> tuple[np.ndarray, float]:
    """Return real points that are in no training set, the same for every score, and their mean distance."""
    points = ring_points(COMPARED_WITH, seed=2**31 - 1).astype(np.float64)
    return points, mean_distance(points, points)


def quality(points: ArrayLike) -> dict[str, float]:
    """Compare points, a float array (count, 2), with the real distribution, and return three scores by name.

    - ``"modes covered"``: number of the 8 centres that have at least a fifth of their share of the points; only good
      points count;
    - ``"good samples"``: share of the points within 3 standard deviations of a centre. It is 0.99 for real points, and
      0.77 for points spread evenly on the circle through the centres, although these form no clusters at all;
    - ``"energy distance"``: 2 E|x - y| - E|x - x'| - E|y - y'| between these points x and 1 000 real points y; 0 for
      the same distribution. It is an estimate and can be negative: 1 000 real points give less than 0.01 either way. It
      is infinite if a coordinate is infinite or not a number, as after training that diverged.

    Raises:
        ValueError: ``points`` has a different shape, or fewer than two points.

    Example:
        >>> score = quality(ring_points(1000, seed=1))
        >>> score["modes covered"], score["good samples"]
        (8.0, 0.983)

    References:
        G. J. Székely, M. L. Rizzo, "Energy statistics", 2013
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 2:
        raise ValueError(f"points must have shape (count, 2) with at least two points, got {points.shape}")
    distances = np.linalg.norm(np.where(np.isfinite(points), points, np.inf)[:, None] - centres(), axis=2)
    good = distances.min(axis=1) <= GOOD_WITHIN
    counts = np.bincount(distances.argmin(axis=1)[good], minlength=MODES)
    energy = np.inf
    if np.isfinite(points).all():
        real, real_distance = reference_points()
        energy = 2 * mean_distance(points, real) - mean_distance(points, points) - real_distance
    covered = np.sum(counts >= LEAST_SHARE * len(points) / MODES)
    return {"modes covered": float(covered), "good samples": float(good.mean()), "energy distance": float(energy)}
