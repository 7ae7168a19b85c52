"""Who takes part in a training: one worker alone, several simulated in one process, or Horovod ranks.

All have the same two collectives, so that what is built on them runs on each:

- ``allreduce(groups, name)``: sums over all workers; ``groups`` is a list of tensors for each worker in this process.
- ``allgather(tensors, name)``: the tensors of all workers one after another, in the order of the workers, from one for
  each worker in this process; their first dimensions may differ.

Before a step, ``reduce_within_host`` makes a worker's gradients of those of its ranks, where it has several, and
``assert_same_on_all_ranks`` raises `RanksDisagree` where they would wait for each other for ever.

``size`` is the number of workers in all, ``first`` the number of the first one here and ``local`` how many are here.
"""

from __future__ import annotations

import hashlib
import os
import sys

import numpy as np
import tensorflow as tf

from dgc_lab.common import LabError, check_whole
from dgc_lab.compression.wire_format import add_in_order
from dgc_lab.install.build_horovod import require_horovod


class RanksDisagree(LabError):
    """The workers were set up differently; raised on all of them, before any training."""


class Communicator:
    """What all have in common; `dgc_lab.distributed.hierarchical` makes one worker of several ranks, and differs."""

    @property
    def each_rank(self):
        """The communicator in which each process that trains is a worker: examples, metrics and files go by it."""
        return self

    def reduce_within_host(self, gradients, metadata, average):
        """Gradients and metadata of each worker here, from those of the ranks that it is made of; here it is one."""
        return gradients, metadata


class SimulatedWorkers(Communicator):
    """One or more workers that live in this process and take turns: no network, the same sums.

    ``workers`` is their number, 1 to 256, else a ValueError: each takes part in the trace of a step, which takes half a
    second for each.

    Example:
        >>> pair = SimulatedWorkers(2)
        >>> pair.allreduce([[tf.constant([1.0])], [tf.constant([2.0])]])[0].numpy().tolist()
        [3.0]
        >>> pair.allgather([tf.constant([1]), tf.constant([2, 3])]).numpy().tolist()
        [1, 2, 3]
    """

    first = 0

    def __init__(self, workers: int):
        self.size = self.local = check_whole("workers", workers, 1, 256)

    def allreduce(self, groups, name=None):
        return [add_in_order(tensors) for tensors in zip(*groups, strict=True)]

    def allgather(self, tensors, name=None):
        return tf.concat(tensors, axis=0)

    def assert_same_on_all_ranks(self, what: str) -> None:
        """Workers of one process cannot disagree."""
        return None  # AutoGraph cannot read a function without a statement, and would say so in every lesson

    def broadcast(self, variables) -> None:
        """Workers of one process share their variables already."""


class OneWorker(SimulatedWorkers):
    """No exchange: what a worker sends is all there is.

    Example:
        >>> OneWorker().allreduce([[tf.constant([1.0, 2.0])]])[0].numpy().tolist()
        [1.0, 2.0]
    """

    def __init__(self):
        super().__init__(1)


class HorovodWorkers(Communicator):
    """The ranks of a running Horovod job, one worker each; ``hvd.init()`` must have been called.

    Raises:
        LabError: Horovod has not been started in this process.

    Example, on each of two ranks:
        >>> workers = HorovodWorkers()  # doctest: +SKIP
        >>> workers.allreduce([[tf.constant([1.0 + workers.first])]])[0].numpy().tolist()  # doctest: +SKIP
        [3.0]

    Source: https://horovod.readthedocs.io/en/stable/api.html (allreduce, allgather).
    """

    local = 1

    def __init__(self):
        require_horovod()
        import horovod.tensorflow as hvd

        if not hvd.is_initialized():
            raise LabError("Horovod is not started in this process: call horovod.tensorflow.init() first")
        self.hvd = hvd
        self.size, self.first = hvd.size(), hvd.rank()

    def allreduce(self, groups, name=None):
        """Sums over all ranks of a list of tensors, all of one dtype, the same bits on each; exchanged as one."""
        [tensors] = groups
        return self.hvd.grouped_allreduce(tensors, op=self.hvd.Sum, name=name)

    def allgather(self, tensors, name=None):
        [tensor] = tensors
        return self.hvd.allgather(tensor, name=name)

    def assert_same_on_all_ranks(self, what: str) -> None:
        """Compare a description over all ranks; where it differs, RanksDisagree on all, so that none waits."""
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
            # Horovod for TensorFlow knows no bfloat16.
            sent = tf.bitcast(variable, tf.uint16) if variable.dtype == tf.bfloat16 else variable
            got = self.hvd.broadcast(sent, root_rank=0, name=f"dgc_lab.broadcast.{number}")
            variable.assign(tf.bitcast(got, tf.bfloat16) if sent is not variable else got)

    def _now(self, operation):
        """The value of a collective as an array, in a compat.v1 graph as well as eagerly."""
        with tf.init_scope():
            if tf.executing_eagerly():
                return operation().numpy()
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            return session.run(operation())


def launched_ranks() -> int:
    """Number of ranks that a launcher such as horovodrun has started with this process; 1 without a launcher."""
    return int(os.environ.get("HOROVOD_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", 1)))


def default_communicator():
    """Horovod's ranks where Horovod runs in this process with more than one, else one worker.

    Raises:
        LabError: a launcher has started several ranks, and Horovod was not started: each would train alone.

    Example:
        >>> default_communicator().size
        1
    """
    horovod = sys.modules.get("horovod.tensorflow")
    if horovod and horovod.is_initialized():
        return HorovodWorkers() if horovod.size() > 1 else OneWorker()
    if launched_ranks() > 1:
        raise LabError(f"this is one of {launched_ranks()} ranks: call horovod.tensorflow.init() first")
    return OneWorker()


def communicator_here(communicator: Communicator | None) -> Communicator:
    """A communicator that was given, or the default one, for what trains one worker in this process.

    Raises:
        ValueError: several workers live in this process, as those of `SimulatedWorkers` do.

    Example:
        >>> communicator_here(None).size
        1
    """
    communicator = communicator or default_communicator()
    if communicator.local != 1:
        told = f"got {communicator.local} simulated ones: ModelTrainer can train them"
        raise ValueError(f"communicator must have one worker in this process, {told}")
    return communicator
