"""Lesson 9: which allreduce is fastest, by message size and number of hosts, in the model of latency and bandwidth.

A cluster has hosts with several workers each. Inside a host they share fast links; all messages between hosts pass the
host's one link to the network. The algorithms are those of `dgc_lab.scaling.network`:

- a ring or two trees over all workers, which ignore the hosts: every hop takes as long as one over the network. The
  ring enters and leaves each host once. The trees connect the workers of one host to several others, so about 3 S
  bytes pass a host's link instead of 2 S;
- hierarchical: a ring inside each host, then the fastest allreduce between hosts, as in
  `dgc_lab.distributed.hierarchical`.

References:
    arXiv:1810.11112 (hierarchical allreduce on rings)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dgc_lab.common import check_instance, check_list, check_number, check_some, check_whole
from dgc_lab.scaling.network import Link, fastest, ring, tree

if TYPE_CHECKING:
    import pandas as pd


#: Bytes of two trees through a host's link over those through a worker's: 3 S over 2 S. With 128 workers, eight to a
#: host in order, about three edges of each tree leave a host, with S / 2 on each.
TREES_OVER_HOSTS = 1.5


def allreduce_seconds(size: float, hosts: int, per_host: int, network: Link, inside: Link) -> dict[str, float]:
    """Return the seconds of an allreduce by algorithm.

    Args:
        size: payload of each worker in bytes, at least 0.
        hosts: number of hosts, at least 1.
        per_host: workers on each host, at least 1.
        network: the link of a host to the network.
        inside: the link of a worker to the others on its host.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> slow, fast = Link(125e6, latency=20e-6), Link(125e9, latency=2e-6)
        >>> times = allreduce_seconds(1000, 16, 8, slow, fast)
        >>> min(times, key=times.get)
        'hierarchical'

    References:
        R. Hockney 1994; `dgc_lab.scaling.network` has the others.
    """
    check_number("size", size, "at least 0", finite=True)
    check_whole("hosts", hosts, 1)
    check_whole("per_host", per_host, 1)
    check_instance("network", network, Link)
    check_instance("inside", inside, Link)
    workers = hosts * per_host
    between = fastest(network, "allreduce", hosts, size)
    hops, passed = tree(workers, size)
    return {
        "ring": network.seconds(*ring(workers, size)),
        "two trees": network.seconds(hops, TREES_OVER_HOSTS * passed if per_host > 1 else passed),
        "hierarchical": inside.seconds(*ring(per_host, size)) + network.seconds(*between),
    }


def allreduce_curves(sizes: Sequence[float], hosts: int, per_host: int, network: Link, inside: Link) -> pd.DataFrame:
    """Return the ms of each algorithm by size, for `dgc_lab.scaling.figures.lines_and_marks`, with x in MB.

    Args:
        sizes: payloads in bytes.
        hosts, per_host, network, inside: as in `allreduce_seconds`.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> frame = allreduce_curves([1e6], 4, 8, Link(125e6), Link(125e9))
        >>> frame[["curve", "x"]].values.tolist()
        [['ring', 1.0], ['two trees', 1.0], ['hierarchical', 1.0]]

    References:
        As in `allreduce_seconds`.
    """
    import pandas as pd

    lines = [
        (algorithm, "modelled", size / 1e6, 1000 * seconds)
        for size in check_some("sizes", check_list("sizes", sizes))
        for algorithm, seconds in allreduce_seconds(size, hosts, per_host, network, inside).items()
    ]
    return pd.DataFrame(lines, columns=["curve", "source", "x", "y"])


def fastest_allreduce(
    sizes: Sequence[float], hosts: Sequence[int], per_host: int, network: Link, inside: Link
) -> pd.DataFrame:
    """Return the name of the fastest algorithm: a row for each size in bytes, a column for each number of hosts.

    Args:
        sizes: payloads in bytes.
        hosts: numbers of hosts.
        per_host, network, inside: as in `allreduce_seconds`.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> fastest_allreduce([1e3, 1e9], [2, 64], 1, Link(125e6), Link(125e9)).loc[1e9].tolist()
        ['ring', 'ring']

    References:
        As in `allreduce_seconds`.
    """
    import pandas as pd

    sizes, hosts = check_some("sizes", check_list("sizes", sizes)), check_some("hosts", check_list("hosts", hosts))

    def winner(size, number):
        times = allreduce_seconds(size, number, per_host, network, inside)
        return min(times, key=times.get)

    names = [[winner(size, number) for number in hosts] for size in sizes]
    return pd.DataFrame(names, index=pd.Index(sizes, name="bytes"), columns=pd.Index(hosts, name="hosts"))
