"""What carrying a scheme's messages costs as workers join: an allreduce stays, an allgather grows with each of them.

The network is that of lesson 6 (`dgc_lab.scaling.network`): a model. The bytes are those that a step really hands over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from dgc_lab.common import check_choice, check_list, check_number, check_whole
from dgc_lab.compression.scheme import Scheme
from dgc_lab.scaling.named_shapes import SHAPES
from dgc_lab.scaling.network import GBIT, Link, allgather, ring

METADATA = 4  # bytes with which a worker says once a step whether its gradient is finite


class Message(NamedTuple):
    """What a worker hands over in a step: bytes to allreduces and to allgathers, and how many of each there are.

    Example:
        >>> Message(reduced=10**6, gathered=0).allreduces
        1
    """

    reduced: float
    gathered: float
    allreduces: int = 1
    allgathers: int = 1


def message(scheme: Scheme, model: str) -> Message:
    """What a worker hands to allreduce and to allgather in a step, for gradients of a named model's shapes.

    A step is really made for each shape, of a random gradient whose elements' sizes differ widely; a step of all
    tensors at once hands over as much, and takes a gigabyte for a large model.

    Args:
        scheme: a `dgc_lab.compression.Scheme` that exchanges in every step.
        model: one of `dgc_lab.scaling.SHAPES`, by name; a ValueError names them for another one.

    Example:
        >>> from dgc_lab.compression import dense, sign
        >>> message(dense(), "mnist_cnn")[0], message(sign(), "mnist_cnn")[1] < 0.04 * message(dense(), "mnist_cnn")[0]
        (13098540, True)
    """
    import tensorflow as tf

    from dgc_lab.compression import Compressor
    from dgc_lab.distributed import OneWorker

    reduces, gathers = set(), set()  # their names, which tell rounds and types: all tensors travel in the same ones

    class Counted(OneWorker):
        def allreduce(self, groups, name=None):
            reduces.add(name)
            return super().allreduce(groups, name)

        def allgather(self, tensors, name=None):
            gathers.add(name)
            return super().allgather(tensors, name)

    reduced = gathered = 0
    for shape, times in Counter(SHAPES[check_choice("model", model, SHAPES)]()).items():
        compressor = Compressor(scheme, [tf.Variable(tf.zeros(shape), name="weight")], Counted())
        _, report = compressor([[tf.random.stateless_normal(shape, (0, 0)) ** 3]])
        sent = [int(report.allreduce_bytes), int(report.allgather_bytes)]
        sent[bool(sent[1])] -= METADATA  # they travel with the message, if there is one
        reduced, gathered = reduced + times * sent[0], gathered + times * sent[1]
    reduced, gathered = (reduced, gathered + METADATA) if gathered else (reduced + METADATA, 0)
    return Message(reduced, gathered, len(reduces), len(gathers))


def exchange_table(
    messages: dict[str, tuple[float, ...]], gbit: float, workers: Sequence[int] = (2, 32, 1024)
) -> pd.DataFrame:
    """How long the exchange of a step takes, by the model of the network, for each number of workers.

    Args:
        messages: what a worker hands over (`message`, or bytes for allreduce and allgather alone), by scheme.
        gbit: bandwidth of each worker's link in Gbit/s; a hop takes `Link.latency` to begin.
        workers: numbers of them, each at least 1.

    Returns:
        A line for each scheme: ``scheme``, ``kB`` handed over, ``allreduce``, the share of these that an allreduce
        carries, and for each number of workers the milliseconds.

    Raises:
        ValueError: a number of workers is no whole number of at least 1, or the bandwidth is not above 0; a message has
            fewer bytes than none, or none at all.

    Source: arXiv:2103.00543, section 2, on which schemes an allreduce can carry.

    Example:
        >>> table = exchange_table({"summed": (10**6, 0), "gathered": (0, 10**6)}, 1, (2, 100))
        >>> table.round(1).values.tolist()
        [['summed', 1000.0, 1.0, 8.1, 25.7], ['gathered', 1000.0, 0.0, 8.0, 797.0]]
    """
    for number in check_list("workers", workers):
        check_whole("workers", number, 1)
    link, lines = Link(check_number("gbit", gbit, "above 0") * GBIT), []
    for scheme, given in messages.items():
        reduced, gathered, allreduces, allgathers = Message(*given)
        for size in (reduced, gathered):
            check_number(f"messages[{scheme!r}]", size, "at least 0")
        together = check_number(f"messages[{scheme!r}], together", reduced + gathered, "above 0")
        line = {"scheme": scheme, "kB": together / 1000, "allreduce": reduced / together}
        ways = (ring, reduced, allreduces), (allgather, gathered, allgathers)
        for number in workers:
            parts = [(times, *how(number, size)) for how, size, times in ways if size]
            seconds = sum(link.seconds(times * hops, bytes_passed) for times, hops, bytes_passed in parts)
            line[f"ms, {number} workers"] = 1000 * seconds
        lines.append(line)
    return pd.DataFrame(lines)
