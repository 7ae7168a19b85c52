"""Network model with two terms: hops, each with its latency, and bytes that pass the busiest link one after another.

Each function for an algorithm returns both terms, given the number of workers and the payload of each. `fastest`
chooses between the algorithms of a collective, as communication libraries do, and `Link.seconds` converts the terms to
a time. `dgc_lab.aggregation.allreduce_topologies` counts the same quantities for real messages.

References:
    R. Hockney, The communication challenge for MPP, Parallel Computing 20 (3), 1994 (latency and bandwidth)
    Patarasuk and Yuan 2009 (ring allreduce)
    P. Sanders, J. Speck, J. L. Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel
        Computing 35 (12), 2009 (NCCL's double binary trees)
    R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19 (1),
        2005 (recursive doubling, and the choice of an algorithm by size)
"""

from __future__ import annotations

from dataclasses import dataclass

from dgc_lab.common import check_choice, check_number

#: Bytes per second of a link with 1 Gbit/s.
GBIT = 1e9 / 8
#: Seconds per hop on the reference link of all lessons. For long messages between machines, NCCL's own model assumes 10
#: to 14 us per hop of a ring and 28 to 50 us per hop of a tree, depending on its version (``hwLat`` in
#: ``src/graph/tuning.cc``); 20 us is in between.
LATENCY = 20e-6
#: Share of the reference link's bandwidth for the payload: TCP sends 1 448 bytes of it in a frame, which occupies an
#: Ethernet link for 1 538 bytes.
EFFICIENCY = 0.94


def ring(workers: int, size: float) -> tuple[float, float]:
    """Return the hops of a ring allreduce of ``size`` bytes, and the bytes that pass a link one after another."""
    return 2 * (workers - 1), 2 * (workers - 1) / workers * size


def tree(workers: int, size: float) -> tuple[float, float]:
    """Return the same as `ring` for two binary trees, each of which sums and returns half of the ``size`` bytes.

    A worker that passes on sums in one tree is a leaf of the other. The halves are sent in many short pieces, so that
    all workers send at the same time.

    Example:
        >>> tree(1024, 1000), ring(1024, 1000)[0]
        ((20, 2000), 2046)
    """
    return 2 * levels(workers), 2 * size * (workers > 1)


def ring_allgather(workers: int, size: float) -> tuple[float, float]:
    """Return the same as `ring` for an allgather on a ring, with a message of ``size`` bytes from each worker.

    Example:
        >>> ring_allgather(4, 1000)
        (3, 3000)
    """
    return workers - 1, (workers - 1) * size


def recursive_doubling(workers: int, size: float) -> tuple[float, float]:
    """Return the same as `ring_allgather` if each hop doubles the number of messages that a worker has.

    Example:
        >>> recursive_doubling(4, 1000)
        (2, 3000)
    """
    return levels(workers), (workers - 1) * size


def levels(workers: int) -> int:
    """Return the logarithm to base 2 of ``workers``, rounded up.

    Example:
        >>> [levels(workers) for workers in (1, 2, 3, 4, 5)]
        [0, 1, 2, 2, 3]
    """
    return (int(workers) - 1).bit_length()


#: Collectives of measured exchanges by name: functions of the workers and the payload that return hops and bytes. Two
#: ranks measured them; for two workers, the other algorithms have equally many hops and at least as many bytes.
COLLECTIVES = {"ring": ring, "allgather": ring_allgather}
#: Algorithms of each collective, from which `fastest` chooses.
ALGORITHMS = {"allreduce": (ring, tree), "allgather": (ring_allgather, recursive_doubling)}


@dataclass(frozen=True)
class Link:
    """A worker's connection to the network; by default with the values of the lessons' reference link. Lesson 6.

    Attributes:
        bandwidth: nominal bandwidth in bytes per second, above 0; infinity for an unlimited link.
        latency: seconds to start a hop, at least 0 and finite.
        efficiency: share of the bandwidth available to the payload, above 0.
        per_byte: seconds per byte spent at the ends of a link, whatever its bandwidth; at least 0 and finite.

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> Link(bandwidth=1e6, latency=0.5, efficiency=1).seconds(*ring(2, 1000))
        1.001
    """

    bandwidth: float
    latency: float = LATENCY
    efficiency: float = EFFICIENCY
    per_byte: float = 0.0

    def __post_init__(self):
        for name in ("bandwidth", "efficiency"):
            check_number(name, getattr(self, name), "above 0")
        for name in ("latency", "per_byte"):
            check_number(name, getattr(self, name), "at least 0 and finite")

    def seconds(self, hops: float, size: float) -> float:
        """Return the time of ``hops`` hops in which ``size`` bytes pass the link one after another."""
        return hops * self.latency + size / (self.bandwidth * self.efficiency) + size * self.per_byte


def fastest(link: Link, collective: str, workers: int, size: float) -> tuple[float, float]:
    """Return the hops and bytes of the collective's fastest algorithm for a payload of ``size`` bytes on this link.

    Args:
        link: the link of each worker.
        collective: ``"allreduce"``, a ring or two trees; or ``"allgather"``, a ring or recursive doubling.
        workers: N, at least 1.
        size: payload of each worker in bytes.

    Raises:
        ValueError: the collective is unknown.

    Example:
        >>> [fastest(Link(GBIT), "allreduce", 4, size) for size in (1000, 1_000_000)]  # a tree and a ring
        [(4, 2000), (6, 1500000.0)]
    """
    algorithms = ALGORITHMS[check_choice("collective", collective, ALGORITHMS)]
    return min((algorithm(workers, size) for algorithm in algorithms), key=lambda terms: link.seconds(*terms))
