"""Counter for the bytes that any code passes to Horovod's allreduce, allgather and reducescatter."""

from __future__ import annotations

import contextlib

import tensorflow as tf

from dgc_lab.compression.wire_format import nbytes

ACTIVE_COUNTS = []  # one for each active `count_collective_bytes`


class CollectiveBytes(dict):
    """Bytes by collective, with the number of calls in ``calls``: Horovod exchanges a group in one call."""

    def __init__(self):
        super().__init__(allreduce=0, allgather=0, reducescatter=0)
        self.calls = dict(self)


@contextlib.contextmanager
def count_collective_bytes():
    """Count the bytes that any code passes to Horovod's collectives, in a `CollectiveBytes` that grows.

    It counts each allreduce, allgather and reducescatter as it runs, eagerly or in a ``tf.function``, but not broadcast
    and alltoall. Functions traced while no count was active are never counted.

    Example:
        >>> with count_collective_bytes() as sent:  # doctest: +SKIP
        ...     _ = hvd.allreduce(tf.zeros([10]))
        >>> sent["allreduce"], sent.calls["allreduce"]  # doctest: +SKIP
        (40, 1)
    """
    import horovod.tensorflow as hvd

    sent = CollectiveBytes()

    def counted(collective, name):
        def add(size):
            for count in ACTIVE_COUNTS:  # Horovod caches traced functions, which must update later counts, too
                count[name] += int(size)
                count.calls[name] += 1

        def call(tensors, *args, **kwargs):
            every = tensors if isinstance(tensors, list | tuple) else [tensors]
            tf.numpy_function(add, [nbytes(every)], [])  # runs with the step: Horovod traces its functions
            return collective(tensors, *args, **kwargs)

        return call

    # All of Horovod's functions, including its optimizer, look up the collectives by these names in its module.
    own = {name: name for name in ("allgather", "reducescatter")}
    own |= dict.fromkeys(("_allreduce", "_grouped_allreduce"), "allreduce")
    before = {function: getattr(hvd, function) for function in own if not ACTIVE_COUNTS}  # nested ones wrap once
    for function, collective in before.items():
        setattr(hvd, function, counted(collective, own[function]))
    ACTIVE_COUNTS.append(sent)
    try:
        yield sent
    finally:
        ACTIVE_COUNTS[:] = [count for count in ACTIVE_COUNTS if count is not sent]  # an outer count may be equal
        for function, collective in before.items():
            setattr(hvd, function, collective)
