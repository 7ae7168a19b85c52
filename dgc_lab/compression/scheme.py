"""Definition of a compression scheme: an initial state, and a step that asks the other workers questions.

A step is a generator. It yields a question (`AllReduceMean`, `SparseMean` or `AllGather`) when it needs the other
workers, and continues with the answer. So the same few lines run on one worker, on simulated workers and on Horovod
ranks, and `dgc_lab.compression.driver` counts the bytes of every scheme in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from dgc_lab.common import check_flag, check_number, check_text, check_whole


class AllReduceMean(NamedTuple):
    """Ask for the mean of a floating-point tensor over all workers. An allreduce carries it.

    The tensor has one shape on all workers.

    Example:
        >>> AllReduceMean(tf.constant([1.0])).tensor.shape
        TensorShape([1])
    """

    tensor: tf.Tensor


class SparseMean(NamedTuple):
    """Ask for the mean over all workers of vectors that are zero except at ``indices``.

    The driver carries it by allgather, as entries in the configured wire format, or by allreduce, with zeros between
    them, if that is cheaper. The answer is a `SparseVector`.

    Attributes:
        indices: int32 (k,), ascending and distinct; k may differ from worker to worker.
        values: float32 (k,).
        size: length of the vector.
        ratio: share of the elements that workers are expected to send, the same on all; a number or a scalar tensor.
            If None, the vector is always sent by allgather.

    Example:
        >>> SparseMean(tf.constant([3]), tf.constant([0.5]), size=10).ratio is None
        True
    """

    indices: tf.Tensor
    values: tf.Tensor
    size: int
    ratio: float | tf.Tensor | None = None


class AllGather(NamedTuple):
    """Ask for the tensors of all workers: a list, by worker, of tuples like this one. An allgather carries them.

    The first dimension of a tensor may differ from worker to worker.

    Example:
        >>> len(AllGather((tf.constant([1]), tf.constant([0.5]))).tensors)
        2
    """

    tensors: tuple


class SparseVector:
    """Vector given as the sum of entries; it becomes a tensor if one is needed.

    It is converted by ``tf.convert_to_tensor``, by adding it to a tensor, or by passing it to a TensorFlow function.
    The entries alone suffice to update weights.

    Attributes:
        entries: list of (int32 indices, ascending, and float32 values), both (k,): one pair for each worker.
        dense: float32 (size,), used instead of the entries if it is not empty.
        size: length of the vector.

    Raises:
        ValueError: size is not a whole number from 0 to 2**31 - 1.

    Example:
        >>> vector = SparseVector([(tf.constant([0, 2]), tf.constant([1.0, 2.0]))], size=3)
        >>> (tf.ones([3]) + vector).numpy().tolist()
        [2.0, 1.0, 3.0]
    """

    dtype = tf.float32

    def __init__(self, entries: Sequence, size: int, dense: tf.Tensor | None = None):
        self.entries, self.size = list(entries), check_whole("size", size, 0, 2**31 - 1)
        self.dense = tf.zeros([0]) if dense is None else dense
        self.shape = tf.TensorShape([size])

    def __tf_tensor__(self, dtype=None, name=None):
        if self.dense.shape == [self.size]:
            return self.dense
        if self.dense.shape == [0]:
            return self._sum()
        return tf.ensure_shape(tf.cond(tf.size(self.dense) > 0, lambda: self.dense, self._sum), [self.size])

    def _sum(self):
        """Add one worker after another, because a GPU adds the values of one scatter in any order."""
        total = tf.zeros([self.size])
        for indices, values in self.entries:
            total = tf.raw_ops.ScatterNdNonAliasingAdd(input=total, indices=indices[:, None], updates=values)
        return total


class StepContext(NamedTuple):
    """Inputs of a step other than gradient and state.

    Attributes:
        sizes: elements of each tensor in the flat vector, in their order.
        seed: int32 (2,), for random numbers that are the same on all workers; different in each step.
        worker_seed: int32 (2,), for random numbers of this worker alone.
        workers: number of workers.
        ratio: the run's ratio in this step, according to its warm-up; a number or a float64 scalar tensor.
        value_type: type of sparse values on the wire, "float32" or "float16".
        parts: the tensors that make up ``gradient``, or None.
        gradient: the flat vector that consists of ``parts``, or None.
        worker: number of this worker, from 0 to ``workers`` - 1.
        uncompressed: whether this step must send uncompressed gradients (`after`).

    Example:
        >>> StepContext((3,), tf.constant([0, 1]), tf.constant([0, 2]), workers=4).workers
        4
    """

    sizes: tuple[int, ...]
    seed: tf.Tensor
    worker_seed: tf.Tensor
    workers: int
    ratio: float | tf.Tensor = 1.0
    value_type: str = "float32"
    parts: list | None = None
    gradient: tf.Tensor | None = None
    worker: int = 0
    uncompressed: bool = False


@dataclass(frozen=True)
class Scheme:
    """Compression scheme: a pure function for the initial state, and one for a step.

    Attributes:
        step: generator function of (gradient, state, context): a float32 vector of all compressed tensors, this
            worker's state, and a `StepContext`. It yields `AllReduceMean`, `SparseMean` or `AllGather` at least once
            and returns ``(update, own, state)``: the update, as long as the gradient and the same on all workers; this
            worker's contribution to it, or None; and the worker's next state.
        init: function of a vector of zeros that returns the initial state: a tensor, or tensors in tuples and lists.
        name: name in rows and legends; rows of a scheme without a name cannot be saved.
            A changed scheme needs a new name.
        momentum: momentum that ``step`` includes; uncompressed tensors then get the same after the exchange. The
            velocity comes first in the state. None if the state serves as momentum, so that nothing may be added.
        per_tensor: whether ``step`` is called for each tensor, in the tensor's own shape.
        selects_non_finite: whether the first question always includes elements that are NaN or infinite; the
            compressor then checks only the selected elements.
        every, since, outer_rate: number of steps between exchanges, the step from which this holds, and the factor of
            the update (`local_sgd`).
        dense_steps: number of steps at the start that send uncompressed gradients (`after`).
        nesterov: whether the momentum is Nesterov's.

    Raises:
        ValueError: an attribute is not as described above.

    Example:
        >>> def whole(gradient, state, context):
        ...     mean = yield AllReduceMean(gradient)
        ...     return mean, gradient, state
        >>> from dgc_lab.compression import run_schemes
        >>> from dgc_lab.distributed import SimulatedWorkers
        >>> steps = [[whole(tf.constant([gradient]), (), None)] for gradient in (1.0, 3.0)]
        >>> [[(update, _, _)], _], bytes_sent = run_schemes(steps, SimulatedWorkers(2))
        >>> float(update[0]), bytes_sent.numpy().tolist()
        (2.0, [8, 0])
    """

    step: Callable[..., Generator] = field(repr=False)  # of no use in messages, and different on each rank
    init: Callable = field(default=lambda gradient: (), repr=False)
    name: str = ""
    momentum: float | None = 0.0
    per_tensor: bool = False
    selects_non_finite: bool = False
    every: int = 1
    since: int = 0
    dense_steps: int = 0
    outer_rate: float = 1.0
    nesterov: bool = False

    def __post_init__(self):
        for name in ("step", "init"):
            if not callable(getattr(self, name)):
                raise ValueError(f"{name} must be a function, got {getattr(self, name)!r}")
        check_text("name", self.name)
        if self.momentum is not None:
            check_number("momentum", self.momentum, "at least 0 and below 1")
        for name in ("per_tensor", "selects_non_finite", "nesterov"):
            check_flag(name, getattr(self, name))
        for name, least in {"every": 1, "since": 0, "dense_steps": 0}.items():
            check_whole(name, getattr(self, name), least)
        check_number("outer_rate", self.outer_rate, "above 0 and finite")

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"the scheme {self.name}" if self.name else "the scheme"
