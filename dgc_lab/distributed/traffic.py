"""Bytes that go to Horovod's collectives, counted where they are handed over, whoever does it."""

from __future__ import annotations

import contextlib

import tensorflow as tf

from dgc_lab.compression.wire_format import nbytes

OPEN_COUNTS = []  # of `count_collective_bytes`


class Handed(dict):
    """Bytes by collective, and in ``calls`` how often each was called: Horovod exchanges a group in one call."""

    def __init__(self):
        super().__init__(allreduce=0, allgather=0)
        self.calls = dict(self)


@contextlib.contextmanager
def count_collective_bytes():
    """Count what is handed to Horovod's collectives meanwhile, by whomever, in a `Handed` that grows.

    Counts what runs, eagerly or in a ``tf.function``; one that was traced before this was ever used is not seen.

    Example:
        >>> with count_collective_bytes() as sent:  # doctest: +SKIP
        ...     _ = hvd.allreduce(tf.zeros([10]))
        >>> sent["allreduce"], sent.calls["allreduce"]  # doctest: +SKIP
        (40, 1)
    """
    import horovod.tensorflow as hvd

    sent = Handed()

    def counted(collective, name):
        def add(size):
            for count in OPEN_COUNTS:  # Horovod keeps its traced functions: they must serve the next count, too
                count[name] += int(size)
                count.calls[name] += 1

        def call(tensors, *args, **kwargs):
            every = tensors if isinstance(tensors, list | tuple) else [tensors]
            tf.numpy_function(add, [nbytes(every)], [])  # runs with the step, Horovod's are traced functions
            return collective(tensors, *args, **kwargs)

        return call

    # All of Horovod's functions, its optimizer included, reach the collectives by these names of its module.
    own = {"_allreduce": "allreduce", "_grouped_allreduce": "allreduce", "allgather": "allgather"}
    before = {function: getattr(hvd, function) for function in own if not OPEN_COUNTS}  # one within another counts once
    for function, collective in before.items():
        setattr(hvd, function, counted(collective, own[function]))
    OPEN_COUNTS.append(sent)
    try:
        yield sent
    finally:
        OPEN_COUNTS.remove(sent)
        for function, collective in before.items():
            setattr(hvd, function, collective)
