"""A network by two terms: hops, each with its latency, and bytes that pass the busiest link one after another.

`Link.seconds` makes a time of what a collective returns for a number of workers, and for the bytes that each of them
hands over. `dgc_lab.aggregation.allreduce_topologies` counts the same of messages really sent.

Sources: R. Hockney, The communication challenge for MPP, Parallel Computing 20 (3), 1994 (latency and bandwidth);
Patarasuk and Yuan 2009 (ring allreduce).
"""

from __future__ import annotations

from dataclasses import dataclass

from dgc_lab.common import check_number

#: Bytes a second of a link of 1 Gbit/s.
GBIT = 1e9 / 8


def ring(workers: int, size: float) -> tuple[float, float]:
    """Hops, and bytes that pass a link one after another, of a ring allreduce of ``size`` bytes."""
    return 2 * (workers - 1), 2 * (workers - 1) / workers * size


def allgather(workers: int, size: float) -> tuple[float, float]:
    """As `ring`, of an allgather to which each worker gives ``size`` bytes, handed round a ring.

    Example:
        >>> allgather(4, 1000)
        (3, 3000)
    """
    return workers - 1, (workers - 1) * size


#: Ways to exchange gradients, by name: hops and bytes of each with so many workers.
COLLECTIVES = {"ring": ring, "allgather": allgather}


@dataclass(frozen=True)
class Link:
    """One worker's connection to the network. Lesson 6.

    Attributes:
        bandwidth: bytes a second, as the link is sold, above 0; infinity where nothing limits it.
        latency: seconds to begin a hop, at least 0.
        efficiency: share of the bandwidth that payload gets, above 0.
        per_byte: seconds a byte takes at either end, however fast the link is, at least 0.

    Raises:
        ValueError: a value is outside what is said above.

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
