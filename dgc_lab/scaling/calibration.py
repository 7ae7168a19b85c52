"""Fit of the cost model's link parameters to measured exchanges. Lesson 6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dgc_lab.common import check_choice, check_number, check_whole
from dgc_lab.scaling.network import COLLECTIVES, Link


@dataclass(frozen=True)
class Measured:
    """Measured exchange: the time of a step, minus that of a step without exchange and that of the selection.

    Attributes:
        collective: one of `dgc_lab.scaling.network.COLLECTIVES`.
        workers: number of workers, at least 2.
        payload_bytes: payload of each worker in bytes, at least 0.
        bandwidth: bandwidth of the link in bytes per second, above 0; infinity if the link was unlimited.
        seconds: duration of the exchange, above 0.
        other_seconds: duration of the rest of the step in seconds, at least 0.

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> Measured("ring", 2, payload_bytes=4000, bandwidth=1e6, seconds=0.01, other_seconds=0.04).step
        0.05
    """

    collective: str
    workers: int
    payload_bytes: float
    bandwidth: float
    seconds: float
    other_seconds: float = 0.0

    def __post_init__(self):
        check_choice("collective", self.collective, COLLECTIVES)
        check_whole("workers", self.workers, 2)
        for name, allowed in {
            "payload_bytes": "at least 0",
            "bandwidth": "above 0",
            "seconds": "above 0",
            "other_seconds": "at least 0",
        }.items():
            check_number(name, getattr(self, name), allowed)

    @property
    def step(self) -> float:
        """Duration of the whole step in seconds."""
        return self.seconds + self.other_seconds

    @property
    def hops_and_bytes(self) -> tuple[float, float]:
        """Number of hops, and of bytes that passed a link one after another."""
        return COLLECTIVES[self.collective](self.workers, self.payload_bytes)


def fit(rows: Sequence[Measured]) -> Link:
    """Return an unlimited link with the latency, efficiency and time per byte that best explain ``rows``.

    The fit minimizes squared errors relative to the whole steps, because a clock cannot separate a short exchange from
    the rest of a long step. No parameter is negative. If the rows cannot separate two parameters (all have one
    bandwidth, for example), the whole effect is attributed to the one that explains more. Raises ValueError for
    fewer than 2 rows.

    Example:
        >>> link = Link(1e6, latency=0.001, efficiency=0.8)
        >>> found = fit([Measured("ring", 2, size, 1e6, link.seconds(2, size)) for size in (1e3, 1e5)])
        >>> round(found.latency, 6), round(found.efficiency, 6)
        (0.001, 0.8)
    """
    from scipy.optimize import nnls

    if len(rows) < 2:
        raise ValueError(f"rows must contain at least 2 exchanges, got {len(rows)}")
    steps = np.array([row.step for row in rows])
    hops, sizes = np.array([row.hops_and_bytes for row in rows]).T
    # Coefficients of latency, 1 / efficiency and time per byte in an exchange's share of the step.
    terms = np.stack([hops, sizes / [row.bandwidth for row in rows], sizes], axis=1) / steps[:, None]
    scale = np.abs(terms).max(axis=0)
    scale[scale == 0] = 1
    found, _ = nnls(terms / scale, np.array([row.seconds for row in rows]) / steps)
    latency, inverse, per_byte = map(float, found / scale)
    return Link(math.inf, latency, 1 / inverse if inverse else math.inf, per_byte)
