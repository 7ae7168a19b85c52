"""Algorithms of the collectives, the choice between them, and the reference link, with hand-computed values."""

import math

import pytest

from dgc_lab.scaling.cost_model import Workload, break_even_bandwidth, gain, step
from dgc_lab.scaling.network import GBIT, Link, fastest, recursive_doubling, ring, ring_allgather, tree


@pytest.mark.parametrize(
    ("algorithm", "workers", "hops", "size"),
    [
        (ring, 2, 2, 1000),
        (ring, 4, 6, 1500),
        (ring, 1024, 2046, 1998.046875),
        (tree, 1, 0, 0),
        (tree, 2, 2, 2000),
        (tree, 4, 4, 2000),
        (tree, 5, 6, 2000),
        (tree, 1024, 20, 2000),
        (ring_allgather, 4, 3, 3000),
        (recursive_doubling, 1, 0, 0),
        (recursive_doubling, 2, 1, 1000),
        (recursive_doubling, 4, 2, 3000),
        (recursive_doubling, 5, 3, 4000),
        (recursive_doubling, 1024, 10, 1_023_000),
    ],
)
def test_hops_and_bytes_of_an_algorithm(algorithm, workers, hops, size):
    assert algorithm(workers, 1000) == (hops, size)


def test_allreduce_uses_tree_for_short_ring_for_long_messages():
    """With 4 workers and 1 us per kB, the 2 hops saved are worth 2 ms, and half a payload takes 2 ms at 4 kB."""
    link = Link(1e6, latency=1e-3, efficiency=1)
    assert fastest(link, "allreduce", 4, 3900) == (4, 7800)
    assert fastest(link, "allreduce", 4, 4100) == (6, 6150)
    assert link.seconds(*fastest(link, "allreduce", 4, 4000)) == pytest.approx(0.012)
    assert fastest(Link(math.inf), "allreduce", 4, 1e9) == (4, 2e9), "hops alone count on an unlimited link"
    assert fastest(Link(GBIT, latency=0), "allreduce", 4, 1000) == (6, 1500), "bytes alone count without latency"


@pytest.mark.parametrize("size", [8, 1e6])
def test_allgather_takes_the_fewest_hops(size):
    assert fastest(Link(GBIT), "allgather", 32, size) == (5, 31 * size)


@pytest.mark.parametrize("size", [0, 8, 1e9])
@pytest.mark.parametrize("link", [Link(GBIT), Link(math.inf), Link(GBIT, 0), Link(1.0, 7e-3, 0.9, 1e-9)])
def test_two_workers_use_the_ring(link, size):
    """Fits to measurements with two ranks do not depend on the choice."""
    assert fastest(link, "allreduce", 2, size) == ring(2, size) == (2, size)
    assert fastest(link, "allgather", 2, size) == ring_allgather(2, size) == (1, size)


def test_reference_link_has_20_us_per_hop_and_94_percent():
    assert Link(10 * GBIT).seconds(3, 1.175e6) == pytest.approx(1.06e-3)
    flag = Link(10 * GBIT).seconds(*fastest(Link(10 * GBIT), "allreduce", 1024, 8))
    assert flag == pytest.approx(0.4e-3, rel=1e-3), "20 hops, not the 2 046 of a ring"


def test_steps_use_the_fastest_algorithm():
    work, link = Workload(10**6, compute=0.1, selection=0.01), Link(10 * GBIT)
    dense = step(work, link, 1024, "dense")
    assert dense.passed == 8_000_000
    assert dense.seconds == pytest.approx(0.1 + 20 * 20e-6 + 8e6 / 1.175e9)
    assert step(work, link, 4, "dense").passed == 6_000_000, "a ring with few workers"
    sparse = step(work, link, 1024, "sparse", 0.0001)
    assert sparse.payload_bytes == 808
    assert sparse.seconds == pytest.approx(0.11 + 10 * 20e-6 + 1023 * 808 / 1.175e9)


def test_break_even_is_nan_if_sparse_pays_only_in_between():
    """Dense steps use a tree on fast links, a ring on slow ones, and lose only near 1 GB/s."""
    work = Workload(10**6, compute=0.1, selection=2.4e-3)
    links = [Link(bandwidth, latency=1e-3, efficiency=1) for bandwidth in (1e11, 1e9, 1e7)]
    assert [gain(work, link, 4, 0.3, "sparse") > 1 for link in links] == [False, True, False]
    assert math.isnan(break_even_bandwidth(work, links[0], 4, 0.3))
