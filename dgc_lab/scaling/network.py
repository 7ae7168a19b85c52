"""A network by two terms: hops, each with its latency, and bytes that pass the busiest link one after another.

Each collective is a function of the number of workers and of the bytes that each of them hands over; `Link.seconds`
makes a time of what it returns. `dgc_lab.aggregation.allreduce_topologies` counts the same of messages really sent.

Sources: R. Hockney, The communication challenge for MPP, Parallel Computing 20 (3), 1994 (latency and bandwidth);
Patarasuk and Yuan 2009 (ring allreduce).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dgc_lab.common import check_number

GBIT = 1e9 / 8  # bytes a second


def ring(workers: int, size: float) -> tuple[float, float]:
    """Hops, and bytes that pass a link one after another, of a ring allreduce of ``size`` bytes."""
    return 2 * (workers - 1), 2 * (workers - 1) / workers * size


def tree(workers: int, size: float) -> tuple[float, float]:
    """As `ring`, of an allreduce up a binary tree and down again."""
    hops = 2 * math.ceil(math.log2(workers))
    return hops, hops * size


def allgather(workers: int, size: float) -> tuple[float, float]:
    """As `ring`, of an allgather to which each worker gives ``size`` bytes, handed round a ring.

    Example:
        >>> allgather(4, 1000)
        (3, 3000)
    """
    return workers - 1, (workers - 1) * size


def parameter_server(workers: int, size: float, answer: float | None = None) -> tuple[float, float]:
    """As `ring`, with one server at the first worker's place; all others' bytes pass its link.

    A worker gets ``answer`` bytes back, as many as it sends if None.
    """
    return 2 * (workers > 1), (workers - 1) * (size + (size if answer is None else answer))


COLLECTIVES = {"ring": ring, "tree": tree, "allgather": allgather, "parameter server": parameter_server}


@dataclass(frozen=True)
class Link:
    """One worker's connection to the network.

    Attributes:
        bandwidth: bytes a second, as the link is sold; infinity where nothing limits it.
        latency: seconds to begin a hop.
        efficiency: share of the bandwidth that payload gets.
        per_byte: seconds a byte takes at either end, however fast the link is.

    Example:
        >>> Link(bandwidth=1e6, latency=0.5).seconds(*ring(2, 1000))
        1.001
    """

    bandwidth: float
    latency: float = 50e-6
    efficiency: float = 1.0
    per_byte: float = 0.0

    def __post_init__(self):
        for name in ("bandwidth", "efficiency"):
            check_number(name, getattr(self, name), "above 0")
        for name in ("latency", "per_byte"):
            check_number(name, getattr(self, name), "at least 0")

    def seconds(self, hops: float, size: float) -> float:
        """Time of that many hops, with ``size`` bytes one after another."""
        return hops * self.latency + size / (self.bandwidth * self.efficiency) + size * self.per_byte
