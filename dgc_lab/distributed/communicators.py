"""How workers exchange tensors: one worker alone, several simulated in one process, or Horovod ranks.

All three have the same collectives and nothing else, so that what is built on them runs on each:

- ``allreduce(tensors, name)``: the sum over all workers of one tensor each.
- ``allreduce_group(groups, name)``: the same for a list of tensors each, in one exchange.
- ``allgather(tensors, name)``: the tensors of all workers one after another, in the order of the workers; their
  first dimensions may differ.
- ``pool(gradients, told, average)``: gradients and notes of each worker here, from those of the ranks that it is made
  of, where that is not one (`dgc_lab.distributed.hierarchical`).

``tensors`` is a list with one tensor for each worker in this process, ``groups`` a list with one list each. ``size`` is
the number of workers in all, ``first`` the number of the first one here and ``local`` how many are here. Where several
ranks are one worker, ``each_rank`` is the exchange in which each is one: examples, metrics and files go by it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys

import numpy as np
import tensorflow as tf

from dgc_lab.common import LabError, check_whole
from dgc_lab.dgc.wire_format import nbytes
from dgc_lab.install.build_horovod import require_horovod

OPEN_COUNTS = []  # of `count_collective_bytes`


class RanksDisagree(LabError):
    """The workers were set up differently; raised on all of them, before any training."""


class SimulatedWorkers:
    """N workers that live in this process and take turns: no network, the same sums.

    Args:
        workers: N, at least 1.

    Example:
        >>> pair = SimulatedWorkers(2)
        >>> pair.allreduce([tf.constant([1.0]), tf.constant([2.0])]).numpy().tolist()
        [3.0]
        >>> pair.allgather([tf.constant([1]), tf.constant([2, 3])]).numpy().tolist()
        [1, 2, 3]
    """

    first = 0

    @property
    def each_rank(self):
        """The exchange in which every process that trains is a worker: this one."""
        return self

    def __init__(self, workers: int):
        self.size = self.local = check_whole("workers", workers, 1)

    def allreduce(self, tensors, name=None):
        """Sum of the workers' tensors, all of one shape."""
        return tf.add_n(tensors)

    def allreduce_group(self, groups, name=None):
        """Sums of the workers' lists of tensors, place by place."""
        return [tf.add_n(tensors) for tensors in zip(*groups, strict=True)]

    def allgather(self, tensors, name=None):
        """The workers' tensors one after another."""
        return tf.concat(tensors, axis=0)

    def reduce_within_host(self, gradients, told, average):
        """Gradients and notes as they are: nobody stands behind a worker."""
        return gradients, told

    def assert_same_on_all_ranks(self, what: str) -> None:
        """Workers of one process cannot disagree."""
        return None  # AutoGraph cannot read a function without a statement, and would say so in every lesson

    def broadcast(self, variables) -> None:
        """Workers of one process share their variables already."""


class OneWorker(SimulatedWorkers):
    """No exchange: what a worker sends is all there is."""

    def __init__(self):
        super().__init__(1)


class HorovodWorkers:
    """The ranks of a running Horovod job, one worker each; ``hvd.init()`` must have been called.

    Raises:
        LabError: Horovod has not been started in this process.

    Source: https://horovod.readthedocs.io/en/stable/api.html (allreduce, allgather).
    """

    local = 1

    @property
    def each_rank(self):
        """The exchange in which every rank is a worker: this one."""
        return self

    def __init__(self):
        require_horovod()
        import horovod.tensorflow as hvd

        if not hvd.is_initialized():
            raise LabError("Horovod is not started in this process: call horovod.tensorflow.init() first")
        self.hvd = hvd
        self.size, self.first = hvd.size(), hvd.rank()

    def allreduce(self, tensors, name=None):
        """Sum over all ranks, the same bits on each."""
        [tensor] = tensors
        return self.hvd.allreduce(tensor, op=self.hvd.Sum, name=name)

    def allreduce_group(self, groups, name=None):
        """Sums over all ranks of a list of tensors, all of one dtype; Horovod exchanges them as one."""
        [tensors] = groups
        return self.hvd.grouped_allreduce(tensors, op=self.hvd.Sum, name=name)

    def allgather(self, tensors, name=None):
        """The ranks' tensors one after another, by rank."""
        [tensor] = tensors
        return self.hvd.allgather(tensor, name=name)

    def reduce_within_host(self, gradients, told, average):
        """Gradients and notes as they are: each rank is a worker."""
        return gradients, told

    def assert_same_on_all_ranks(self, what: str) -> None:
        """Compare a description over all ranks.

        Raises:
            RanksDisagree: it differs somewhere; on all ranks, so that none waits for the others.
        """
        digest = np.frombuffer(hashlib.sha256(what.encode()).digest(), np.uint8)[None]
        digests = self._now(lambda: self.hvd.allgather(tf.constant(digest), name="dgc_lab.agree"))
        others = [rank for rank, other in enumerate(digests) if other.tolist() != digests[0].tolist()]
        if others:
            raise RanksDisagree(
                "all ranks must have the same config, model and order of variables; "
                f"rank {', '.join(map(str, others))} differs from rank 0. Here, on rank {self.hvd.rank()}: {what}"
            )

    def broadcast(self, variables) -> None:
        """Give every ``tf.Variable`` the value that it has on rank 0."""
        for number, variable in enumerate(variables):
            variable.assign(self.hvd.broadcast(variable, root_rank=0, name=f"dgc_lab.broadcast.{number}"))

    def _now(self, operation):
        """The value of a collective as an array, in a compat.v1 graph as well as eagerly."""
        with tf.init_scope():
            if tf.executing_eagerly():
                return operation().numpy()
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            return session.run(operation())


class Handed(dict):
    """Bytes by collective, ``"allreduce"`` and ``"allgather"``.

    Attributes:
        calls: how often each was called; Horovod exchanges a group of tensors in one call.
    """

    def __init__(self):
        super().__init__(allreduce=0, allgather=0)
        self.calls = dict(self)


@contextlib.contextmanager
def count_collective_bytes():
    """Count what is handed to Horovod's collectives meanwhile, by whomever: this lab's code or Horovod's optimizer.

    Counts what runs, eagerly or in a ``tf.function``; one that was traced before this was ever used is not seen.

    Yields:
        A `Handed` that grows.

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
    before = {function: getattr(hvd, function) for function in own}
    for function, name in own.items():
        setattr(hvd, function, counted(before[function], name))
    OPEN_COUNTS.append(sent)
    try:
        yield sent
    finally:
        OPEN_COUNTS.remove(sent)
        for function, collective in before.items():
            setattr(hvd, function, collective)


def launched_ranks() -> int:
    """Number of ranks that a launcher such as horovodrun has started with this process; 1 without a launcher."""
    return int(os.environ.get("HOROVOD_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", 1)))


def default_communicator():
    """Horovod's ranks where Horovod runs in this process with more than one, else one worker.

    Raises:
        LabError: a launcher has started several ranks, and Horovod was not started: each would train alone.
    """
    horovod = sys.modules.get("horovod.tensorflow")
    if horovod and horovod.is_initialized():
        return HorovodWorkers() if horovod.size() > 1 else OneWorker()
    if launched_ranks() > 1:
        raise LabError(f"this is one of {launched_ranks()} ranks: call horovod.tensorflow.init() first")
    return OneWorker()
