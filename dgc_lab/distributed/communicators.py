"""Communicators: one worker alone, several workers simulated in one process, or Horovod ranks.

All offer the same two collectives, so the same code runs on each of them:

- ``allreduce(groups, name)``: sums over all workers. ``groups`` has a list of tensors for each worker in this process.
- ``allgather(tensors, name)``: the tensors of all workers, concatenated in worker order. ``tensors`` has one tensor for
  each worker in this process; their first dimensions may differ.

Before a step, ``reduce_within_host`` combines the gradients of a worker that consists of several ranks, and
``assert_same_on_all_ranks`` raises `RanksDisagree` if ranks would otherwise wait for each other forever.

``size`` is the number of all workers, ``first`` the index of the first one in this process, ``local`` the number of
workers in this process.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import tensorflow as tf

from dgc_lab.common import LabError, check_instance, check_whole
from dgc_lab.compression.config import Collectives
from dgc_lab.compression.wire_format import add_in_order
from dgc_lab.distributed.launchers import check_launched
from dgc_lab.install.build_horovod import require_horovod


class RanksDisagree(LabError):
    """Error raised on all workers, before any training, if their settings differ."""


class Communicator:
    """Base class in which each worker is one rank; `dgc_lab.distributed.hierarchical` overrides that."""

    @property
    def each_rank(self):
        """Communicator with one worker per training process, used for examples, metrics and files."""
        return self

    def reduce_within_host(self, gradients, metadata, average):
        """Return each worker's gradients and metadata, combined over its ranks. Here, a worker has one rank."""
        return gradients, metadata


class SimulatedWorkers(Communicator):
    """One or more workers that take turns in this process: no network, the same sums.

    Args:
        workers: number of workers, from 1 to 256. Each adds half a second to the tracing of a step.

    Raises:
        ValueError: `workers` is not in this range.

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
        """Do nothing, because workers in one process cannot disagree."""
        return None  # without a statement, AutoGraph would print a warning in every lesson

    def broadcast(self, variables) -> None:
        """Do nothing, because workers in one process share their variables."""


class OneWorker(SimulatedWorkers):
    """Single worker without an exchange: collectives return its own tensors.

    Example:
        >>> OneWorker().allreduce([[tf.constant([1.0, 2.0])]])[0].numpy().tolist()
        [1.0, 2.0]
    """

    def __init__(self):
        super().__init__(1)


class HorovodWorkers(Communicator):
    """Ranks of a running Horovod job, one worker each. Call ``hvd.init()`` first.

    Raises:
        LabError: Horovod is not initialized in this process, or does not know of the tasks that a launcher started.

    Example:
        On each of two ranks:

        >>> workers = HorovodWorkers()  # doctest: +SKIP
        >>> workers.allreduce([[tf.constant([1.0 + workers.first])]])[0].numpy().tolist()  # doctest: +SKIP
        [3.0]

    References:
        https://horovod.readthedocs.io/en/stable/api.html (allreduce, allgather)
    """

    local = 1

    def __init__(self):
        require_horovod()
        import horovod.tensorflow as hvd

        if not hvd.is_initialized():
            raise LabError("Horovod is not initialized in this process: call horovod.tensorflow.init() first")
        check_launched(hvd.size())
        self.hvd = hvd
        self.size, self.first = hvd.size(), hvd.rank()

    def allreduce(self, groups, name=None):
        """Return the sums of tensors of one dtype over all ranks, with the same bits on each, in one exchange."""
        [tensors] = groups
        return self.hvd.grouped_allreduce(tensors, op=self.hvd.Sum, name=name)

    def allgather(self, tensors, name=None):
        [tensor] = tensors
        return self.hvd.allgather(tensor, name=name)

    def assert_same_on_all_ranks(self, what: str) -> None:
        """Compare a description across ranks; if it differs, raise RanksDisagree on all ranks, so that none waits."""
        digest = np.frombuffer(hashlib.sha256(what.encode()).digest(), np.uint8)[None]
        digests = self._run_now(lambda: self.hvd.allgather(tf.constant(digest), name="dgc_lab.agree"))
        others = [rank for rank, other in enumerate(digests) if other.tolist() != digests[0].tolist()]
        if others:
            differing = f"rank {others[0]} differs" if len(others) == 1 else f"ranks {str(others)[1:-1]} differ"
            raise RanksDisagree(
                "all ranks must have the same settings (config, model, order of variables, steps); "
                f"{differing} from rank 0. This is rank {self.hvd.rank()}, with {what}"
            )

    def broadcast(self, variables) -> None:
        """Assign rank 0's value to each ``tf.Variable``."""
        for number, variable in enumerate(variables):
            # Horovod for TensorFlow does not support bfloat16.
            sent = tf.bitcast(variable, tf.uint16) if variable.dtype == tf.bfloat16 else variable
            got = self.hvd.broadcast(sent, root_rank=0, name=f"dgc_lab.broadcast.{number}")
            variable.assign(tf.bitcast(got, tf.bfloat16) if sent is not variable else got)

    def _run_now(self, operation):
        """Run a collective at once and return its value as an array, even while a compat.v1 graph is built."""
        with tf.init_scope():
            if tf.executing_eagerly():
                return operation().numpy()
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            return session.run(operation())


def describe_variables(variables) -> str:
    """Return the shapes and dtypes of Keras variables, which must agree on all ranks before a broadcast.

    Names are left out: Keras numbers layers and unnamed weights in the order of their creation, which may differ
    between ranks.

    Example:
        >>> import keras
        >>> describe_variables([keras.Variable([1.0, 2.0], name="kernel")])
        "[((2,), 'float32')]"
    """
    return str([(tuple(variable.shape), variable.dtype) for variable in variables])


def gather_messages(communicator: Communicator, message: str, name: str) -> list[str]:
    """Return the messages of all workers in their order. A message is one line, and every worker must send one.

    Example:
        >>> gather_messages(OneWorker(), "ready", "dgc_lab.example")
        ['ready']
    """
    mine = tf.constant(list(f"{message}\n".encode()), tf.uint8)
    every = communicator.allgather([mine] * communicator.local, name)
    return bytes(every.numpy()).decode().split("\n")[:-1]


def check_equal(what: str, values: list, advice: str) -> None:
    """Check that a value, given for every rank, is the same on all; `advice` ends the error's message.

    Raises:
        RanksDisagree: the values differ. Every rank must call it with the same list, so that all of them raise it.

    Example:
        >>> try:
        ...     check_equal("steps", [4, 4, 5], "start alike")
        ... except RanksDisagree as error:
        ...     print(error)
        steps must be the same on all ranks, got 4 on ranks 0, 1 and 5 on rank 2: start alike
    """
    ranks = {}
    for rank, value in enumerate(values):
        ranks.setdefault(str(value), []).append(rank)
    if len(ranks) > 1:
        found = [f"{value} on rank{'s' * (len(own) > 1)} {str(own)[1:-1]}" for value, own in ranks.items()]
        raise RanksDisagree(f"{what} must be the same on all ranks, got {' and '.join(found)}: {advice}")


def default_communicator():
    """Return Horovod's ranks if Horovod is initialized with more than one, otherwise one worker.

    Raises:
        LabError: a launcher started several tasks, but Horovod is not initialized or does not know of them, so each
            would train alone.

    Example:
        >>> default_communicator().size
        1
    """
    horovod = sys.modules.get("horovod.tensorflow")
    ranks = horovod.size() if horovod and horovod.is_initialized() else None
    check_launched(ranks)
    return HorovodWorkers() if (ranks or 1) > 1 else OneWorker()


def check_communicator(communicator: Communicator | None) -> Communicator | None:
    """Return the communicator, or None; raise a ValueError for anything else."""
    return None if communicator is None else check_instance("communicator", communicator, Collectives)


def communicator_here(communicator: Communicator | None) -> Communicator:
    """Return the given or the default communicator, for code that trains one worker per process.

    Raises:
        ValueError: `communicator` is not one, or has several workers in this process, like `SimulatedWorkers`.

    Example:
        >>> communicator_here(None).size
        1
    """
    communicator = check_communicator(communicator) or default_communicator()
    if communicator.local != 1:
        found = f"got {communicator.local} simulated workers: train these with ModelTrainer"
        raise ValueError(f"communicator must have one worker in this process, {found}")
    return communicator
