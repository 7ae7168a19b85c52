"""The link's figures in the cost model, from exchanges that were timed, and how far the model is off on others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dgc_lab.common import check_choice, check_number, check_whole
from dgc_lab.scaling.network import COLLECTIVES, Link


@dataclass(frozen=True)
class Measured:
    """An exchange that was timed: a step with it less a step without any exchange, and less the selection.

    Errors are shares of the whole step: a clock cannot tell a short exchange from the rest of a long step.
    """

    collective: str  # one of `dgc_lab.scaling.network.COLLECTIVES`
    workers: int
    handed: float  # bytes that each worker handed over
    bandwidth: float  # of the link, bytes a second; infinity where nothing limited it
    seconds: float
    beside: float = 0.0  # seconds of the step that the exchange did not take

    def __post_init__(self):
        check_choice("collective", self.collective, COLLECTIVES)
        check_whole("workers", self.workers, 2)
        for name, allowed in {"bandwidth": "above 0", "seconds": "above 0", "beside": "at least 0"}.items():
            check_number(name, getattr(self, name), allowed)

    @property
    def step(self) -> float:
        """Seconds of the whole step."""
        return self.seconds + self.beside

    @property
    def hops_and_bytes(self) -> tuple[float, float]:
        """Hops, and bytes that passed a link one after another."""
        return COLLECTIVES[self.collective](self.workers, self.handed)


@dataclass(frozen=True)
class Fit:
    """What was found for a link (`dgc_lab.scaling.network.Link`), and how good it is.

    ``errors`` are (modelled - measured) / measured of the whole step, for each row that was left out.
    """

    latency: float
    efficiency: float
    per_byte: float
    errors: tuple[float, ...] = ()

    def link(self, bandwidth: float) -> Link:
        """A link of some bandwidth with what was found."""
        return Link(bandwidth, self.latency, self.efficiency, self.per_byte)


def fit(rows: Sequence[Measured], left_out: Sequence[Measured] = ()) -> Fit:
    """Latency, efficiency and time per byte that make the model's times come nearest to the measured ones.

    Least squares of the steps' relative errors, with no figure below zero. Where rows cannot tell two of them apart
    (all on one bandwidth, for example), the one that explains more gets all. ``rows`` are fitted, at least 2; on those
    that were ``left_out`` it is checked.

    Example:
        >>> link = Link(1e6, latency=0.001, efficiency=0.8)
        >>> rows = [Measured("ring", 2, size, 1e6, link.seconds(2, size)) for size in (1e3, 1e5, 1e6)]
        >>> found = fit(rows[:2], rows[2:])
        >>> round(found.latency, 6), round(found.efficiency, 6), abs(found.errors[0]) < 1e-9
        (0.001, 0.8, True)
    """
    from scipy.optimize import nnls

    if len(rows) < 2:
        raise ValueError(f"rows must be at least 2, got {len(rows)}")
    if set(rows) & set(left_out):
        raise ValueError("left_out must hold none of the rows that are fitted")
    steps = np.array([row.step for row in rows])
    hops, sizes = np.array([row.hops_and_bytes for row in rows]).T
    # What latency, 1 / efficiency and time per byte are multiplied by in the time of an exchange.
    terms = np.stack([hops, sizes / [row.bandwidth for row in rows], sizes], axis=1) / steps[:, None]
    scale = np.abs(terms).max(axis=0)
    scale[scale == 0] = 1
    weights, _ = nnls(terms / scale, np.array([row.seconds for row in rows]) / steps)
    latency, inverse, per_byte = map(float, weights / scale)
    found = Fit(latency, 1 / inverse if inverse else math.inf, per_byte)
    modelled = [found.link(row.bandwidth).seconds(*row.hops_and_bytes) for row in left_out]
    errors = [(seconds - row.seconds) / row.step for seconds, row in zip(modelled, left_out, strict=True)]
    return replace(found, errors=tuple(errors))
