"""The cost model compared with counted messages, its break-even points, and fits to synthetic rows."""

import dataclasses
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

from dgc_lab.aggregation import allreduce_topologies as links
from dgc_lab.compression.break_even import BYTES_OF_A_HOP, break_even_ratio
from dgc_lab.scaling.calibration import Measured, fit
from dgc_lab.scaling.cost_model import (
    ELEMENTS,
    METHODS,
    Workload,
    break_even_bandwidth,
    bytes_against_dense,
    gain,
    step,
)
from dgc_lab.scaling.network import COLLECTIVES, GBIT, Link

RESNET = Workload(ELEMENTS["ResNet-50"] - 54_120, compute=0.3, selection=0.05, adding=1e-8, whole=54_120)


def steps_and_bytes(messages):
    """Return the number of steps and the summed bytes of each step's busiest port."""
    steps = {}
    for message in messages:
        ports = steps.setdefault(message.step, {})
        for port in (("out", message.sender), ("in", message.receiver)):
            ports[port] = ports.get(port, 0) + message.bytes
    return len(steps), sum(max(ports.values()) for ports in steps.values())


@pytest.mark.parametrize("workers", range(2, 10))
def test_hops_and_bytes_match_counted_messages(workers):
    elements = 2520  # divisible by 2 to 10
    _, messages = links.exchange([np.zeros(elements, np.float32)] * workers, "ring")
    assert COLLECTIVES["ring"](workers, 4 * elements) == steps_and_bytes(messages)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_single_worker_needs_no_exchange(name):
    assert COLLECTIVES[name](1, 1000) == (0, 0)


def test_break_even_with_8_bytes_per_element():
    """Break-even is at ratio x workers = 1, for example 25 % with four workers."""
    assert bytes_against_dense(4, 0.25) == 1
    for ratio in (0.25, 0.0625, 0.015625, 0.004, 0.001):
        for workers in (2, 4, 8, 64, 256, 1024):
            assert bytes_against_dense(workers, ratio) == pytest.approx(ratio * workers)


@pytest.mark.parametrize("entry_bytes", [4, 6, 8])
@pytest.mark.parametrize("workers", [2, 4, 32, 1024])
def test_step_times_break_even_at_the_rule_of_thumb(workers, entry_bytes):
    work = Workload(10**9, compute=0.1, entry_bytes=entry_bytes)  # large enough that the message header is negligible
    ratio = break_even_ratio(workers, entry_bytes)
    link = Link(GBIT, latency=0)
    assert gain(work, link, workers, 0.98 * ratio, "sparse") > 1
    assert gain(work, link, workers, min(1, 1.02 * ratio), "sparse") < 1 or entry_bytes * workers == 8
    assert gain(work, link, workers, min(1, 1.02 * ratio), "switching") == pytest.approx(1)


def test_compression_pays_only_on_slow_links():
    gains = [gain(RESNET, Link(gbit * GBIT, latency=20e-6), 16, 0.001) for gbit in (0.1, 1, 10, 100, 200)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 10
    assert gains[-1] < 1, "arXiv:2103.00543: on fast links it mostly does not pay"
    turn = break_even_bandwidth(RESNET, Link(GBIT, latency=20e-6), 16, 0.001)
    assert gain(RESNET, Link(0.99 * turn, latency=20e-6), 16, 0.001, "sparse") > 1
    assert gain(RESNET, Link(1.01 * turn, latency=20e-6), 16, 0.001, "sparse") < 1
    free = dataclasses.replace(RESNET, selection=0, adding=0, whole=0)
    assert break_even_bandwidth(free, Link(GBIT), 16, 0.001) == math.inf, "fewer hops, fewer bytes, no work"
    assert break_even_bandwidth(RESNET, Link(GBIT), 1024, 0.25) == 0
    few = Workload(3_274_634, compute=0.03, selection=0.0005)
    far = Link(200 * GBIT, latency=1e-3)
    assert gain(few, far, 8, 0.25, "sparse") > 1, "more bytes, but half the hops"
    assert math.isnan(break_even_bandwidth(few, far, 8, 0.25))


def test_only_allgather_grows_with_the_workers():
    at = {n: {m: step(RESNET, Link(GBIT, latency=0), n, m, 0.001) for m in ("dense", "sparse")} for n in (2, 512, 1024)}
    assert at[1024]["dense"].passed / at[512]["dense"].passed < 1.01
    entries = 8 * 0.001 * RESNET.elements
    assert at[1024]["sparse"].passed - at[512]["sparse"].passed == pytest.approx(512 * entries, rel=0.01)
    assert at[1024]["sparse"].payload_bytes == at[2]["sparse"].payload_bytes, "bytes sent per worker must stay constant"


def test_estimates_are_valid_for_the_whole_range():
    links_ = [Link(gbit * GBIT) for gbit in (0.1, 1, 10, 25, 100, 200)]
    every = itertools.product(links_, [2**i for i in range(11)], METHODS, (0.01, 0.001))
    found = [step(RESNET, link, workers, method, ratio) for link, workers, method, ratio in every]
    for estimate in found:
        assert estimate.source == "modelled"
        assert 0 < estimate.speed_up <= estimate.workers
        assert estimate.seconds >= RESNET.compute
    assert {e.speed_up for e in found if e.method == "no exchange"} == {2.0**i for i in range(11)}


def test_switching_uses_sparse_or_dense():
    for ratio in (0.001, 0.01, 0.25, 1.0):
        for workers in (2, 8, 64, 1024):
            link = Link(GBIT)
            sparse, dense, switching = (step(RESNET, link, workers, m, ratio) for m in ("sparse", "dense", "switching"))
            if ratio * workers < 1:
                assert dataclasses.replace(switching, method="sparse") == sparse
            else:
                assert switching.passed == dense.passed
                assert switching.seconds == pytest.approx(dense.seconds + RESNET.selection)


# Overlap ------------------------------------------------------------------------------------------------------------


def exchange_alone(method, link, workers, ratio):
    """Return the exchange time of RESNET: its step time minus that with a free network."""
    free = Link(math.inf, latency=0)
    return step(RESNET, link, workers, method, ratio).seconds - step(RESNET, free, workers, method, ratio).seconds


@pytest.mark.parametrize("by_tensor", [False, True])
def test_overlap_shortens_steps_within_bounds(by_tensor):
    at = {share: dataclasses.replace(RESNET, overlap=share, by_tensor=by_tensor) for share in (0, 0.5, 1)}
    for method, workers, gbit in itertools.product(METHODS, (1, 2, 32, 1024), (0.01, 1, 100, 1e6)):
        link = Link(gbit * GBIT)
        seconds = [step(work, link, workers, method, 0.001).seconds for work in at.values()]
        assert seconds[0] == step(RESNET, link, workers, method, 0.001).seconds
        assert seconds == sorted(seconds, reverse=True)
        assert seconds[-1] >= max(RESNET.compute, exchange_alone(method, link, workers, 0.001))


def test_dense_exchange_overlaps_only_the_backward_pass():
    whole = dataclasses.replace(RESNET, overlap=1)
    assert whole.hides == pytest.approx(0.2), "two thirds of the compute time"
    short, long = Link(100 * GBIT), Link(GBIT)
    assert exchange_alone("dense", short, 32, 1) < 0.2 < exchange_alone("dense", long, 32, 1)
    assert step(whole, short, 32, "dense").seconds == pytest.approx(RESNET.compute)
    assert step(whole, long, 32, "dense").seconds == pytest.approx(0.1 + exchange_alone("dense", long, 32, 1))


@pytest.mark.parametrize("method", ["sparse", "switching"])
@pytest.mark.parametrize("workers", [8, 1024])  # by allgather, and by dense allreduce
def test_compressed_exchange_overlaps_only_tensor_by_tensor(method, workers):
    at_the_end = dataclasses.replace(RESNET, overlap=1)
    by_tensor = dataclasses.replace(at_the_end, by_tensor=True)
    link = Link(10 * GBIT)
    assert step(at_the_end, link, workers, method, 0.001) == step(RESNET, link, workers, method, 0.001)
    hidden = step(RESNET, link, workers, method, 0.001).seconds - step(by_tensor, link, workers, method, 0.001).seconds
    assert hidden == pytest.approx(min(0.2, exchange_alone(method, link, workers, 0.001)))
    assert step(by_tensor, link, workers, method, 0.001).seconds >= RESNET.compute + RESNET.selection


@pytest.mark.parametrize("overlap", [0, 0.3, 1])
@pytest.mark.parametrize("by_tensor", [False, True])
@pytest.mark.parametrize("selection", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("latency", [0, 20e-6])
def test_step_times_are_equal_at_break_even_bandwidth(overlap, by_tensor, selection, latency):
    work = dataclasses.replace(RESNET, overlap=overlap, by_tensor=by_tensor, selection=selection)
    link = Link(GBIT, latency, efficiency=0.9, per_byte=1e-10)
    turn = break_even_bandwidth(work, link, 16, 0.001)
    if turn < math.inf:
        at = dataclasses.replace(link, bandwidth=turn)
        assert gain(work, at, 16, 0.001, "sparse") == pytest.approx(1)
    for gbit in (0.1, 1, 3, 10, 30, 100, 1000):
        faster = gain(work, dataclasses.replace(link, bandwidth=gbit * GBIT), 16, 0.001, "sparse") > 1
        assert faster == (gbit * GBIT < turn)


def test_overlap_moves_the_break_even_to_slower_links():
    turns = [
        break_even_bandwidth(dataclasses.replace(RESNET, overlap=share, by_tensor=by_tensor), Link(GBIT), 32, 0.001)
        for share, by_tensor in ((0, False), (1, True), (1, False))
    ]
    assert turns == sorted(turns, reverse=True)
    assert len(set(turns)) == 3


def test_bytes_of_a_hop_match_the_reference_link():
    """The compressor's constant is the latency of a hop at 2.5 Gbit/s."""
    assert pytest.approx(2.5 * GBIT * Link(GBIT).latency) == BYTES_OF_A_HOP


def test_mnist_cnn_has_the_listed_number_of_elements():
    from dgc_lab.workloads.models import mnist_cnn

    assert mnist_cnn().count_params() == ELEMENTS["mnist_cnn"]


# The fit ------------------------------------------------------------------------------------------------------------


def rows_of(true, bandwidths=(1.25e6, 1.25e7, 1.25e8, math.inf), noise=0.0):
    """Generate exchanges over a link with these parameters, with multiplicative noise."""
    rng, rows = np.random.default_rng(0), []
    for bandwidth in bandwidths:
        link = dataclasses.replace(true, bandwidth=bandwidth)
        for collective, size in (("ring", 13e6), ("ring", 6.5e6), ("allgather", 34e3), ("allgather", 3e5)):
            seconds = link.seconds(*COLLECTIVES[collective](2, size)) * math.exp(noise * rng.normal())
            rows.append(Measured(collective, 2, size, bandwidth, seconds))
    return rows


def largest_error(found, rows):
    """Return the largest absolute error of the modelled steps, relative to the step."""
    links_ = [dataclasses.replace(found, bandwidth=row.bandwidth) for row in rows]
    modelled = [link.seconds(*row.hops_and_bytes) for link, row in zip(links_, rows, strict=True)]
    return max(abs(seconds - row.seconds) / row.step for seconds, row in zip(modelled, rows, strict=True))


@pytest.mark.parametrize(
    "true",
    [
        Link(1, latency=2e-4, efficiency=0.9, per_byte=2e-9),
        Link(1, latency=0, efficiency=0.8, per_byte=1e-9),
        Link(1, latency=1e-3, efficiency=1.0, per_byte=0),
    ],
)
def test_fit_recovers_parameters_and_predicts_held_out_rows(true):
    rows = rows_of(true)
    found, left_out = fit(rows[:11]), rows[11:]
    assert (found.latency, found.efficiency, found.per_byte) == pytest.approx(
        (true.latency, true.efficiency, true.per_byte), abs=1e-12
    )
    assert len(left_out) == 5
    assert largest_error(found, left_out) < 1e-6


def test_fit_error_grows_with_the_noise():
    true = Link(1, latency=2e-4, efficiency=0.9, per_byte=2e-9)
    small, large = (rows_of(true, noise=noise) for noise in (0.01, 0.2))
    assert len(small[1::2]) == 8
    assert 0.001 < largest_error(fit(small[::2]), small[1::2]) < 0.1 < largest_error(fit(large[::2]), large[1::2])


def test_fitted_parameters_are_never_negative():
    rows = [Measured("ring", 2, size, 1e6, seconds) for size, seconds in ((1e3, 1e-5), (1e6, 2.0), (2e6, 4.1))]
    found = fit(rows)
    assert found.latency == 0
    assert dataclasses.replace(found, bandwidth=1e6).seconds(2, 1e6) > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Link(0), r"bandwidth must be above 0, got 0"),
        (lambda: Link(1, latency=-1), r"latency must be at least 0 and finite, got -1"),
        (lambda: Link(1, latency=math.inf), r"latency must be at least 0 and finite, got inf"),
        (lambda: Link(1, per_byte=math.inf), r"per_byte must be at least 0 and finite, got inf"),
        (lambda: Link(1, efficiency=math.nan), r"efficiency must be above 0, got nan"),
        (lambda: Workload(1, 1.0, overlap=1.5), r"overlap must be in \[0, 1\], got 1.5"),
        (lambda: step(RESNET, Link(1), 2, "dgc"), r"method must be one of no exchange, .* got 'dgc'"),
        (lambda: step(RESNET, Link(1), 0, "dense"), r"workers must be a whole number of at least 1, got 0"),
        (lambda: step(RESNET, Link(1), 2, "sparse", 2), r"ratio must be in \[0, 1\], got 2"),
        (lambda: Measured("star", 2, 1, 1, 1), r"collective must be one of ring, allgather, got 'star'"),
        (lambda: Measured("ring", 1, 1, 1, 1), r"workers must be a whole number of at least 2, got 1"),
        (lambda: Measured("ring", 2, 1, 1, 0), r"seconds must be above 0, got 0"),
        (lambda: fit(rows_of(Link(1))[:1]), r"rows must contain at least 2 exchanges, got 1"),
    ],
)
def test_invalid_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_import_does_not_load_tensorflow():
    code = "import sys, dgc_lab.scaling.calibration; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
