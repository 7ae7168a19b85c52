"""How long a step takes with N workers, by a model of the network: when does sending less pay? Lesson 6.

The network has two terms (`dgc_lab.scaling.network`); what the workers themselves need is measured. An exchange may
hide behind a share of the backward pass. What the model leaves out makes networks look better or worse than they are:
computing gets no slower while an exchange runs beside it, links are equal, and nobody else uses them.

Sources: arXiv:2103.00543 (where compression does not pay, by such a model and by measurements); arXiv:2006.15704
(gradients that are sent while the backward pass goes on).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from dgc_lab.common import check_choice, check_flag, check_number, check_whole
from dgc_lab.compression.break_even import DENSE_ELEMENT, dense_is_shorter, one_message_is_shorter
from dgc_lab.scaling.named_shapes import SHAPES
from dgc_lab.scaling.network import Link, allgather, ring

ELEMENTS = {model: sum(map(math.prod, shapes())) for model, shapes in SHAPES.items()}  # of all trained parameters
METHODS = ("no exchange", "dense", "float16", "sparse", "switching")
DENSE_METHODS = {"dense": DENSE_ELEMENT, "float16": 2}  # bytes an element
MESSAGE_HEADER = 8
BACKWARD = 2 / 3  # of computing: the backward pass takes about twice as long as the forward pass (arXiv:2001.08361)


@dataclass(frozen=True)
class Workload:
    """What a worker does in a step, in seconds that were measured for it.

    Attributes:
        elements: of the gradients that are sent in part.
        compute: the forward and backward pass and the update, above 0.
        selection: to accumulate, select, pack and clear; only where gradients are sent in part.
        adding: to unpack and add up one received entry.
        whole: elements of the gradients that are sent whole.
        entry_bytes: of a value and of what tells its place.
        overlap: share of the backward pass that can hide an exchange, in [0, 1].
        by_tensor: gradients are compressed and sent one by one, and hide, too; else all at once at its end.

    Raises:
        ValueError: a value is outside what is said above, or below 0.

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
    """A step as the model has it, or as it was timed.

    Attributes:
        method, workers, ratio: as in `step`.
        bandwidth: of the link, bytes a second.
        seconds: of the step.
        handed: bytes that a worker hands to the collectives.
        passed: bytes that pass the busiest link one way, one after another.
        speed_up: examples a second over those of one worker alone; N would be ideal.
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
    handed: float
    passed: float
    speed_up: float
    source: str = "modelled"


def step(workload: Workload, link: Link, workers: int, method: str, ratio: float = 1.0) -> Estimate:
    """A step of N workers: dense gradients travel by a ring, sparse ones by allgather.

    With ``overlap`` a dense exchange hides behind the backward pass, as far as that goes: each gradient leaves as soon
    as it is there. A compressed exchange does so only if it is made tensor by tensor; choosing what to send is work of
    the processor that computes, and never hides.

    Args:
        workload: what each of them computes and has to send, and what of it can overlap.
        link: what they are connected by.
        workers: N, at least 1.
        method: ``"no exchange"``; ``"dense"``, whole gradients in 4 bytes an element, or in 2 as ``"float16"``;
            ``"sparse"``, the share ``ratio`` of the elements; or ``"switching"``, sparse or dense by
            `dgc_lab.compression.break_even.dense_is_shorter`, what this lab's compressor does.
        ratio: share of the elements that is sent, in [0, 1].

    Raises:
        ValueError: an argument is not as said above.

    Example:
        >>> from dgc_lab.scaling.network import GBIT
        >>> resnet, link = Workload(25_557_032, compute=0.3), Link(GBIT)
        >>> [round(step(resnet, link, 8, method, 0.001).speed_up, 1) for method in ("dense", "switching")]
        [1.4, 7.7]
    """
    check_choice("method", method, METHODS)
    check_whole("workers", workers, 1)
    check_number("ratio", ratio, "in [0, 1]")
    way, seconds, handed, parts = method, workload.compute, 0.0, []
    if method == "switching":
        way = "dense" if dense_is_shorter(ratio, workers, workload.entry_bytes) else "sparse"
    if method in ("sparse", "switching"):
        seconds += workload.selection  # what is not sent is kept, whichever way the rest travels
    if way in DENSE_METHODS:
        handed = DENSE_METHODS[way] * (workload.elements + workload.whole)
        parts = [ring(workers, handed)]
    elif way == "sparse":
        message = ratio * (workload.entry_bytes * workload.elements) + MESSAGE_HEADER
        whole = DENSE_ELEMENT * workload.whole
        handed = message + whole
        joined = one_message_is_shorter(whole, workers)
        parts = [allgather(workers, handed)] if joined else [allgather(workers, message), ring(workers, whole)]
        seconds += workload.adding * workload.elements * ratio * workers
    passed = sum(size for _, size in parts)
    exchange = link.seconds(sum(hops for hops, _ in parts), passed)
    seconds += exchange - (min(exchange, workload.hides) if workload.by_tensor or method in DENSE_METHODS else 0.0)
    speed_up = workers * workload.compute / seconds
    return Estimate(method, workers, ratio, link.bandwidth, seconds, handed, passed, speed_up)


def gain(workload: Workload, link: Link, workers: int, ratio: float, method: str = "switching") -> float:
    """How many times as fast a step is as the dense one, by the model; below 1 where compression does not pay.

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
    """The bandwidth in bytes a second above which dense steps are faster than sparse ones, by the model.

    Infinity where sparse steps are faster on every link, 0 where dense ones are; NaN where sparse ones are faster
    *above* some bandwidth: more bytes, and fewer hops. Arguments are those of `step`: ``workload``,
    ``workers``, ``ratio``; ``link`` gives all but the bandwidth.

    Example:
        >>> from dgc_lab.scaling.network import GBIT
        >>> resnet = Workload(25_557_032, compute=0.3, selection=0.05)
        >>> round(break_even_bandwidth(resnet, Link(GBIT), 8, 0.001) / GBIT)
        29
    """
    shown, free = dataclasses.replace(workload, overlap=0.0), Link(math.inf, latency=0.0)
    at_once = dataclasses.replace(link, bandwidth=math.inf)
    sparse, dense = (step(shown, at_once, workers, method, ratio) for method in ("sparse", "dense"))
    spared = (dense.passed - sparse.passed) / link.efficiency
    # How much longer sparse steps take with all bytes for nothing, where dense ones hide all that they can.
    longer = sparse.seconds - dense.seconds + (0.0 if workload.by_tensor else workload.hides)
    if spared <= 0:
        return math.nan if longer < 0 else 0.0
    # The same where the sparse exchange is hidden altogether.
    longer_hidden = step(shown, free, workers, "sparse", ratio).seconds - dense.seconds + workload.hides
    cases = ((spared, longer), (dense.passed / link.efficiency, longer_hidden))
    return min((size / more for size, more in cases if more > 0), default=math.inf)


def bytes_against_dense(workers: int, ratio: float) -> float:
    """Bytes past a link by allgather of 8-byte entries, over those of a ring allreduce of all; 1 is break-even."""
    _, sparse = allgather(workers, ratio * Workload.entry_bytes)
    _, dense = ring(workers, DENSE_ELEMENT)
    return sparse / dense if dense else math.nan
