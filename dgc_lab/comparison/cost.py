"""Communication cost of a scheme by number of workers: almost constant for an allreduce, growing for an allgather.

Times come from the network model of lesson 6 (`dgc_lab.scaling.network`). The bytes are counted in a real step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from dgc_lab.common import check_choice, check_instance, check_list, check_number, check_some, check_whole
from dgc_lab.compression.scheme import Scheme
from dgc_lab.scaling.named_shapes import SHAPES
from dgc_lab.scaling.network import GBIT, Link, fastest

METADATA_BYTES = 4  # sent by a worker once per step: whether its gradient is finite


class Message(NamedTuple):
    """Payload of a worker in a step: bytes sent by allreduce and by allgather, and how often each is called.

    Example:
        >>> Message(reduced=10**6, gathered=0).allreduces
        1
    """

    reduced: float
    gathered: float
    allreduces: int = 1
    allgathers: int = 1


def message(scheme: Scheme, model: str) -> Message:
    """Return a worker's payload in a step, for gradients with the shapes of a named model.

    The function runs a real step for each distinct shape, on a random gradient whose elements differ widely in size.
    A step with all tensors at once has the same payload, but needs a gigabyte of memory for a large model.

    Args:
        scheme: a `dgc_lab.compression.Scheme` that exchanges in every step.
        model: a name in `dgc_lab.scaling.SHAPES`.

    Raises:
        ValueError: `model` is not in `SHAPES`; the message lists the names.

    Example:
        >>> from dgc_lab.compression import dense, sign
        >>> message(dense(), "mnist_cnn")[0], message(sign(), "mnist_cnn")[1] < 0.04 * message(dense(), "mnist_cnn")[0]
        (13098540, True)
    """
    import tensorflow as tf

    from dgc_lab.compression import Compressor
    from dgc_lab.distributed import OneWorker

    reduces, gathers = set(), set()  # names of the collectives, one per round and dtype; all tensors share them

    class CountingWorker(OneWorker):
        def allreduce(self, groups, name=None):
            reduces.add(name)
            return super().allreduce(groups, name)

        def allgather(self, tensors, name=None):
            gathers.add(name)
            return super().allgather(tensors, name)

    reduced = gathered = 0
    for shape, times in Counter(SHAPES[check_choice("model", model, SHAPES)]()).items():
        compressor = Compressor(scheme, [tf.Variable(tf.zeros(shape), name="weight")], CountingWorker())
        _, report = compressor([[tf.random.stateless_normal(shape, (0, 0)) ** 3]])
        sent = [int(report.allreduce_bytes), int(report.allgather_bytes)]
        sent[bool(sent[1])] -= METADATA_BYTES  # part of the allgather if there is one, otherwise of the allreduce
        reduced, gathered = reduced + times * sent[0], gathered + times * sent[1]
    reduced, gathered = (reduced, gathered + METADATA_BYTES) if gathered else (reduced + METADATA_BYTES, 0)
    return Message(reduced, gathered, len(reduces), len(gathers))


def exchange_table(
    messages: dict[str, tuple[float, ...]], gbit: float, workers: Sequence[int] = (2, 32, 1024)
) -> pd.DataFrame:
    """Return the time of a step's exchange in the network model, for each scheme and number of workers.

    Each collective uses the algorithm that is `dgc_lab.scaling.network.fastest`. If a scheme needs several collectives
    of a kind, each of them carries the same share of the bytes.

    Args:
        messages: a worker's payload by scheme: a `message`, or only its bytes for allreduce and allgather.
        gbit: bandwidth of each worker's link in Gbit/s; its other values are the defaults of `Link`.
        workers: numbers of workers, each at least 1.

    Returns:
        A row for each scheme: ``scheme``; ``kB``, its payload; ``allreduce``, the share of the payload sent by
        allreduce; and the milliseconds for each number of workers.

    Raises:
        ValueError: `messages` is not a dict or is empty, a number of workers is not a whole number of at least 1,
            `gbit` is not above 0, or a message has a negative number of bytes or none at all.

    References:
        arXiv:2103.00543, section 2 (schemes whose messages an allreduce can sum).

    Example:
        >>> table = exchange_table({"summed": (10**6, 0), "gathered": (0, 10**6)}, 1, (2, 100))
        >>> table.round(1).values.tolist()
        [['summed', 1000.0, 1.0, 8.6, 17.3], ['gathered', 1000.0, 0.0, 8.5, 842.7]]
    """
    check_some("messages", check_instance("messages", messages, dict))
    workers = check_list("workers", workers)
    for number in workers:
        check_whole("workers", number, 1)
    link, lines = Link(check_number("gbit", gbit, "above 0") * GBIT), []
    for scheme, payload in messages.items():
        reduced, gathered, allreduces, allgathers = Message(*payload)
        for size in (reduced, gathered):
            check_number(f"messages[{scheme!r}]", size, "at least 0")
        total = check_number(f"messages[{scheme!r}] in total", reduced + gathered, "above 0")
        line = {"scheme": scheme, "kB": total / 1000, "allreduce": reduced / total}
        collectives = ("allreduce", reduced, allreduces), ("allgather", gathered, allgathers)
        for number in workers:
            seconds = sum(
                times * link.seconds(*fastest(link, collective, number, size / times))
                for collective, size, times in collectives
                if size
            )
            line[f"ms, {number} workers"] = 1000 * seconds
        lines.append(line)
    return pd.DataFrame(lines)
