"""Network model with two terms: hops, each with its latency, and bytes that pass the busiest link one after another.

A function for each collective returns both terms, given the number of workers and the payload of each. `Link.seconds`
converts them to a time. `dgc_lab.aggregation.allreduce_topologies` counts the same quantities for real messages.

References:
    R. Hockney, The communication challenge for MPP, Parallel Computing 20 (3), 1994 (latency and bandwidth)
    Patarasuk and Yuan 2009 (ring allreduce)
"""

from __future__ import annotations

from dataclasses import dataclass

from dgc_lab.common import check_number

#: Bytes per second of a link with 1 Gbit/s.
GBIT = 1e9 / 8


def ring(workers: int, size: float) -> tuple[float, float]:
    """Return the hops of a ring allreduce of ``size`` bytes, and the bytes that pass a link one after another."""
    return 2 * (workers - 1), 2 * (workers - 1) / workers * size


def allgather(workers: int, size: float) -> tuple[float, float]:
    """Return the same as `ring` for an allgather on a ring, with a message of ``size`` bytes from each worker.

    Example:
        >>> allgather(4, 1000)
        (3, 3000)
    """
    return workers - 1, (workers - 1) * size


#: Collectives by name: functions of the number of workers and the payload that return hops and bytes.
COLLECTIVES = {"ring": ring, "allgather": allgather}


@dataclass(frozen=True)
class Link:
    """A worker's connection to the network. Lesson 6.

    Attributes:
        bandwidth: nominal bandwidth in bytes per second, above 0; infinity for an unlimited link.
        latency: seconds to start a hop, at least 0.
        efficiency: share of the bandwidth available to the payload, above 0.
        per_byte: seconds per byte spent at the ends of a link, whatever its bandwidth, at least 0.

    Raises:
        ValueError: a value is out of range.

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
        """Return the time of ``hops`` hops in which ``size`` bytes pass the link one after another."""
        return hops * self.latency + size / (self.bandwidth * self.efficiency) + size * self.per_byte
