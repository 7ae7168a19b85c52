"""ZeRO stage 1: every rank updates its own part of the weights, so it stores only that part of the optimizer's state.

Plain data parallelism keeps the whole state, such as Adam's two moments, on every rank, and every rank computes the
same update. Here a step is a reduce-scatter of the gradients, an update of the rank's part, and an allgather of the
weights. An allreduce on a ring consists of the same two halves, so a step sends the same bytes. Lesson 9.

References:
    arXiv:1910.02054, sections 5.1 and 7.2 (ZeRO, stage 1)
    https://horovod.readthedocs.io/en/stable/api.html (reducescatter, allgather)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from dgc_lab.common import check_instance, check_some
from dgc_lab.compression.gradients import flatten, unflatten
from dgc_lab.distributed.communicators import HorovodWorkers
from dgc_lab.distributed.keras_refusals import check_variables

#: Keras's optimizers that treat every element on its own. Others need a whole tensor, such as Adafactor and Muon.
ELEMENTWISE = tuple(
    getattr(keras.optimizers, name)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "Nadam", "RMSprop", "Adagrad", "Adadelta", "Lion")
)


class ShardedOptimizer:
    """Optimizer for weights on all Horovod ranks that keeps 1/N of its state on each of N ranks.

    The ranks' weights must be equal at the start and are equal after each step, as in plain data parallelism.

    Args:
        optimizer: a Keras optimizer that treats every element on its own; not one that clips norms or excludes
            variables from weight decay.
        variables: the float32 weights (``tf.Variable``, or those of a Keras model) without constraints, in the same
            order on all ranks.

    Attributes:
        shard: ``tf.Variable``, the rank's part of the flat weights: the only one that ``optimizer`` updates.
        sizes: number of elements in each rank's part; the first ranks have one more if they differ.

    Raises:
        ValueError: ``optimizer`` needs whole tensors, norms or names, is in use, or ``variables`` are not float32 or
            have constraints.
        RanksDisagree: on all ranks, if they differ in the optimizer's class or the variables' shapes.
        LabError: Horovod is not initialized in this process.

    Example:
        On each of two ranks:

        >>> weights = [tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([2]))]  # doctest: +SKIP
        >>> sharded = ShardedOptimizer(keras.optimizers.Adam(0.1), weights)  # doctest: +SKIP
        >>> sharded.apply([tf.ones([3]), tf.ones([2])])  # doctest: +SKIP
        >>> sharded.sizes, optimizer_bytes(sharded.optimizer)  # doctest: +SKIP
        ([3, 2], 24)
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[tf.Variable]):
        check_elementwise(optimizer)
        check_variables(check_some("variables", variables))
        if bound := [getattr(v, "path", v.name) for v in variables if getattr(v, "constraint", None) is not None]:
            raise ValueError(f"variables must have no constraint, which would be ignored, got one on {bound[0]}")
        inner = [v.value if isinstance(v, keras.Variable) else v for v in variables]
        self.variables = [check_instance("variables", variable, tf.Variable) for variable in inner]
        if wrong := [variable.dtype.name for variable in self.variables if variable.dtype != tf.float32]:
            raise ValueError(f"variables must be float32, got {wrong[0]}")
        self.optimizer, workers = optimizer, HorovodWorkers()
        self.hvd, self.rank = workers.hvd, workers.first
        shapes = [tuple(variable.shape) for variable in self.variables]
        workers.assert_same_on_all_ranks(f"{type(optimizer).__name__}, variables {shapes}")
        total = sum(map(math.prod, shapes))
        self.sizes = part_sizes(total, workers.size)
        self.shard = tf.Variable(tf.split(flatten(self.variables), self.sizes)[self.rank], name="shard")
        with tf.init_scope():
            optimizer.build([self.shard])

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Average the gradients over all ranks, update the rank's part, and collect all parts of the weights.

        Raises ValueError unless there is a gradient of the variable's shape for each variable.
        """
        shapes = [variable.shape for variable in self.variables]
        found = [None if gradient is None else tf.TensorShape(gradient.shape) for gradient in gradients]
        if len(found) != len(shapes) or not all(
            own is not None and own.is_compatible_with(shape) for own, shape in zip(found, shapes, strict=True)
        ):
            raise ValueError(
                f"gradients must be {len(shapes)} tensors, one for each variable, got [{', '.join(map(str, found))}] "
                f"for variables of shapes [{', '.join(map(str, shapes))}]"
            )
        own = self.hvd.reducescatter(flatten(gradients), op=self.hvd.Average, name="dgc_lab.shard_gradients")
        self.optimizer.apply([own], [self.shard])
        whole = self.hvd.allgather(self.shard.read_value(), name="dgc_lab.shard_weights")
        parts = unflatten(whole, [variable.shape for variable in self.variables])
        for variable, part in zip(self.variables, parts, strict=True):
            variable.assign(part)


def optimizer_bytes(optimizer: keras.optimizers.Optimizer) -> int:
    """Return the bytes of an optimizer's state: the variables that it has created for the elements of the weights.

    Scalars, such as the step counter and the learning rate, do not count. An optimizer that has not seen its weights
    has no state yet.

    Args:
        optimizer: a Keras optimizer.

    Raises:
        ValueError: ``optimizer`` is not a Keras optimizer.

    Example:
        >>> adam = keras.optimizers.Adam()
        >>> adam.build([tf.Variable(tf.zeros([10]))])
        >>> optimizer_bytes(adam)
        80

    References:
        https://keras.io/api/optimizers/ (``Optimizer.variables``)
    """
    check_instance("optimizer", optimizer, keras.optimizers.Optimizer)
    slots = [variable for variable in optimizer.variables if len(variable.shape) > 0]
    return sum(math.prod(slot.shape) * tf.as_dtype(slot.dtype).size for slot in slots)


def part_sizes(total: int, ranks: int) -> list[int]:
    """Return the number of elements in each rank's part, as Horovod's reducescatter divides them.

    Example:
        >>> part_sizes(11, 4)
        [3, 3, 3, 2]
    """
    share, more = divmod(total, ranks)
    return [share + (rank < more) for rank in range(ranks)]


def check_elementwise(optimizer) -> None:
    """Raise ValueError unless an update of a part of the weights is that part of the whole update."""
    check_instance("optimizer", optimizer, keras.optimizers.Optimizer)
    if type(optimizer) not in ELEMENTWISE:
        known = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        raise ValueError(f"optimizer must be one of {known}, got {type(optimizer).__name__}")
    for option in ("clipnorm", "global_clipnorm"):
        if (norm := getattr(optimizer, option)) is not None:
            raise ValueError(f"optimizer must have no {option}, because a rank sees a part of the gradient, got {norm}")
    if any(getattr(optimizer, f"_exclude_from_weight_decay{end}", None) for end in ("", "_pattern")):
        raise ValueError("optimizer must not exclude variables from weight decay: it sees a part of the flat weights")
    if optimizer.built:
        raise ValueError("optimizer must be new, got one that has been built for other variables")
