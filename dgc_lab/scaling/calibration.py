"""The link's figures in the cost model, from exchanges that were timed. Lesson 6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dgc_lab.common import check_choice, check_number, check_whole
from dgc_lab.scaling.network import COLLECTIVES, Link


@dataclass(frozen=True)
class Measured:
    """An exchange that was timed: a step with it less a step without any exchange, and less the selection.

    Attributes:
        collective: one of `dgc_lab.scaling.network.COLLECTIVES`.
        workers: how many, at least 2.
        handed: bytes that each worker handed over.
        bandwidth: of the link, bytes a second; infinity where nothing limited it.
        seconds: that the exchange took, above 0.
        beside: seconds of the step that the exchange did not take.

    Raises:
        ValueError: a value is outside what is said above.

    Example:
        >>> Measured("ring", 2, handed=4000, bandwidth=1e6, seconds=0.01, beside=0.04).step
        0.05
    """

    collective: str
    workers: int
    handed: float
    bandwidth: float
    seconds: float
    beside: float = 0.0

    def __post_init__(self):
        check_choice("collective", self.collective, COLLECTIVES)
        check_whole("workers", self.workers, 2)
        for name, allowed in {
            "handed": "at least 0",
            "bandwidth": "above 0",
            "seconds": "above 0",
            "beside": "at least 0",
        }.items():
            check_number(name, getattr(self, name), allowed)

    @property
    def step(self) -> float:
        """Seconds of the whole step."""
        return self.seconds + self.beside

    @property
    def hops_and_bytes(self) -> tuple[float, float]:
        """Hops, and bytes that passed a link one after another."""
        return COLLECTIVES[self.collective](self.workers, self.handed)


def fit(rows: Sequence[Measured]) -> Link:
    """A link that nothing limits, of the latency, efficiency and time per byte that explain at least 2 rows best.

    Least squares of the errors as shares of the whole steps, since a clock cannot tell a short exchange from the rest
    of a long step; no figure is below zero. Where rows cannot tell two of them apart (all on one bandwidth, for
    example), the one that explains more gets all. A ValueError for fewer rows.

    Example:
        >>> link = Link(1e6, latency=0.001, efficiency=0.8)
        >>> found = fit([Measured("ring", 2, size, 1e6, link.seconds(2, size)) for size in (1e3, 1e5)])
        >>> round(found.latency, 6), round(found.efficiency, 6)
        (0.001, 0.8)
    """
    from scipy.optimize import nnls

    if len(rows) < 2:
        raise ValueError(f"rows must be at least 2, got {len(rows)}")
    steps = np.array([row.step for row in rows])
    hops, sizes = np.array([row.hops_and_bytes for row in rows]).T
    # What latency, 1 / efficiency and time per byte are multiplied by in the time of an exchange.
    terms = np.stack([hops, sizes / [row.bandwidth for row in rows], sizes], axis=1) / steps[:, None]
    scale = np.abs(terms).max(axis=0)
    scale[scale == 0] = 1
    found, _ = nnls(terms / scale, np.array([row.seconds for row in rows]) / steps)
    latency, inverse, per_byte = map(float, found / scale)
    return Link(math.inf, latency, 1 / inverse if inverse else math.inf, per_byte)
