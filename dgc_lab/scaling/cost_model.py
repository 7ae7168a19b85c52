"""Model of the time of a step with N workers: when does sending less pay? Lesson 6.

The network has two terms (`dgc_lab.scaling.network`); the workers' own times are measured. An exchange may overlap with
a share of the backward pass. The model's assumptions make networks look better or worse than they are: computation does
not slow down during an exchange, links are equal, and they carry no other traffic.

References:
    arXiv:2103.00543 (when compression does not pay, by such a model and by measurements)
    arXiv:2006.15704 (gradients sent during the backward pass)
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from dgc_lab.common import check_choice, check_flag, check_number, check_whole
from dgc_lab.compression.break_even import DENSE_ELEMENT, dense_is_shorter, one_message_is_shorter
from dgc_lab.scaling.named_shapes import SHAPES
from dgc_lab.scaling.network import Link, fastest, ring, ring_allgather

ELEMENTS = {model: sum(map(math.prod, shapes())) for model, shapes in SHAPES.items()}  # number of trained parameters
METHODS = ("no exchange", "dense", "float16", "sparse", "switching")
DENSE_METHODS = {"dense": DENSE_ELEMENT, "float16": 2}  # bytes per element
MESSAGE_HEADER = 8
BACKWARD = 2 / 3  # of the computation: a backward pass takes about twice as long as a forward pass (arXiv:2001.08361)


@dataclass(frozen=True)
class Workload:
    """Work of one worker in a step; times are measured, in seconds.

    Attributes:
        elements: number of gradient elements that are compressed.
        compute: time of the forward pass, the backward pass and the update, above 0.
        selection: time to accumulate, select, pack and clear; only compressed gradients need it.
        adding: time to unpack and add up one received entry.
        whole: number of gradient elements that are sent uncompressed.
        entry_bytes: bytes of a value and its position.
        overlap: share of the backward pass that can hide an exchange, in [0, 1].
        by_tensor: compress and send gradients tensor by tensor, so that these exchanges can be hidden, too; otherwise
            all at once after the backward pass.

    Raises:
        ValueError: a value is negative or outside its range.

    Example:
        >>> Workload(1000, compute=0)
        Traceback (most recent call last):
        ValueError: compute must be above 0, got 0
    """

    elements: int
    compute: float
    selection: float = 0.0
    adding: float = 0.0
    whole: int = 0
    entry_bytes: int = 8
    overlap: float = 0.0
    by_tensor: bool = False

    def __post_init__(self):
        check_number("compute", self.compute, "above 0", finite=True)
        check_number("overlap", self.overlap, "in [0, 1]")
        for name in ("selection", "adding"):
            check_number(name, getattr(self, name), "at least 0", finite=True)
        for name in ("elements", "whole", "entry_bytes"):
            check_whole(name, getattr(self, name), 0)
        check_flag("by_tensor", self.by_tensor)

    @property
    def hides(self) -> float:
        """Seconds of an exchange that the backward pass can hide.

        Example:
            >>> round(Workload(1000, compute=0.3, overlap=0.5).hides, 3)
            0.1
        """
        return self.overlap * BACKWARD * self.compute


@dataclass(frozen=True)
class Estimate:
    """Modelled or measured step.

    Attributes:
        method, workers, ratio: as in `step`.
        bandwidth: bandwidth of the link in bytes per second.
        seconds: duration of the step.
        payload_bytes: payload of a worker in bytes.
        passed: bytes that pass the busiest link in one direction, one after another.
        speed_up: examples per second, relative to those of a single worker; N would be ideal.
        source: ``"modelled"`` or ``"measured"``.

    Example:
        >>> alone = step(Workload(1000, compute=0.1), Link(1e6), 1, "no exchange")
        >>> alone.seconds, alone.source
        (0.1, 'modelled')
    """

    method: str
    workers: int
    ratio: float
    bandwidth: float
    seconds: float
    payload_bytes: float
    passed: float
    speed_up: float
    source: str = "modelled"


def step(workload: Workload, link: Link, workers: int, method: str, ratio: float = 1.0) -> Estimate:
    """Estimate a step of N workers that exchange dense gradients by allreduce and sparse ones by allgather.

    Each collective uses the algorithm that is `dgc_lab.scaling.network.fastest` for its payload on this link.
    With ``overlap``, the backward pass hides as much of a dense exchange as it can, because each gradient is sent as
    soon as it is computed. It hides a compressed exchange only if that is made tensor by tensor. It never hides the
    selection, which runs on the processor that computes the gradients.

    Args:
        workload: computation, gradients and overlap of each worker.
        link: the link of each worker.
        workers: N, at least 1.
        method: ``"no exchange"``; ``"dense"``, uncompressed gradients with 4 bytes per element, or 2 as ``"float16"``;
            ``"sparse"``, the share ``ratio`` of the elements; or ``"switching"``, sparse or dense as chosen by
            `dgc_lab.compression.break_even.dense_is_shorter`, like this lab's compressor.
        ratio: share of the elements that is sent, in [0, 1].

    Raises:
        ValueError: the method is unknown, or another argument is out of range.

    Example:
        >>> from dgc_lab.scaling.network import GBIT
        >>> resnet, link = Workload(25_557_032, compute=0.3), Link(GBIT)
        >>> [round(step(resnet, link, 8, method, 0.001).speed_up, 1) for method in ("dense", "switching")]
        [1.3, 7.7]
    """
    check_choice("method", method, METHODS)
    check_whole("workers", workers, 1)
    check_number("ratio", ratio, "in [0, 1]")
    encoding, seconds, payload_bytes, payloads = method, workload.compute, 0.0, []
    if method == "switching":
        encoding = "dense" if dense_is_shorter(ratio, workers, workload.entry_bytes) else "sparse"
    if method in ("sparse", "switching"):
        seconds += workload.selection  # either collective needs it, to store residuals
    if encoding in DENSE_METHODS:
        payload_bytes = DENSE_METHODS[encoding] * (workload.elements + workload.whole)
        payloads = [("allreduce", payload_bytes)]
    elif encoding == "sparse":
        message = ratio * (workload.entry_bytes * workload.elements) + MESSAGE_HEADER
        whole = DENSE_ELEMENT * workload.whole
        payload_bytes = message + whole
        joined = one_message_is_shorter(whole, workers)
        payloads = [("allgather", payload_bytes)] if joined else [("allgather", message), ("allreduce", whole)]
        seconds += workload.adding * workload.elements * ratio * workers
    parts = [fastest(link, collective, workers, size) for collective, size in payloads]
    passed = sum(size for _, size in parts)
    exchange = link.seconds(sum(hops for hops, _ in parts), passed)
    seconds += exchange - (min(exchange, workload.hides) if workload.by_tensor or method in DENSE_METHODS else 0.0)
    speed_up = workers * workload.compute / seconds
    return Estimate(method, workers, ratio, link.bandwidth, seconds, payload_bytes, passed, speed_up)


def gain(workload: Workload, link: Link, workers: int, ratio: float, method: str = "switching") -> float:
    """Return the modelled speed-up of a step over the dense one; it is below 1 if compression does not pay.

    ``workload``, ``link``, ``workers``, ``ratio`` and ``method`` are those of `step`.

    Example:
        >>> from dgc_lab.scaling.network import GBIT
        >>> slow, fast = Link(GBIT / 10), Link(100 * GBIT)
        >>> resnet = Workload(25_557_032, compute=0.3, selection=0.05)
        >>> gain(resnet, slow, 8, 0.001) > 20, gain(resnet, fast, 8, 0.001) < 1
        (True, True)
    """
    return step(workload, link, workers, "dense").seconds / step(workload, link, workers, method, ratio).seconds


def break_even_bandwidth(workload: Workload, link: Link, workers: int, ratio: float) -> float:
    """Return the bandwidth in bytes per second above which, in the model, dense steps are faster than sparse ones.

    It is infinity if sparse steps are faster on every link, and 0 if dense ones are. It is NaN if there is no such
    bandwidth: sparse steps that send more bytes in fewer hops can be faster *above* some bandwidth, or only between
    two. The function compares steps on links from 1 byte to 10^15 bytes per second. ``workload``, ``workers`` and
    ``ratio`` are those of `step`. The bandwidth of ``link`` is ignored.

    Example:
        >>> from dgc_lab.scaling.network import GBIT
        >>> resnet = Workload(25_557_032, compute=0.3, selection=0.05)
        >>> round(break_even_bandwidth(resnet, Link(GBIT), 8, 0.001) / GBIT)
        30
    """

    def sparse_is_faster(bandwidth):
        return gain(workload, dataclasses.replace(link, bandwidth=bandwidth), workers, ratio, "sparse") > 1

    bandwidths = [10 ** (power / 4) for power in range(60, -1, -1)]
    faster = [sparse_is_faster(bandwidth) for bandwidth in bandwidths]
    if faster[0]:
        return math.inf if all(faster) else math.nan
    if not any(faster):
        return 0.0
    first = faster.index(True)
    if not all(faster[first:]):
        return math.nan
    high, low = bandwidths[first - 1], bandwidths[first]
    while high - low > 1e-12 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if sparse_is_faster(middle) else (low, middle)
    return low


def bytes_against_dense(workers: int, ratio: float) -> float:
    """Return the bytes per link in an allgather of 8-byte entries, relative to a ring allreduce; 1 is break-even."""
    _, sparse = ring_allgather(workers, ratio * Workload.entry_bytes)
    _, dense = ring(workers, DENSE_ELEMENT)
    return sparse / dense if dense else math.nan
