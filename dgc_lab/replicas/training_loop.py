"""An explicit loop that trains a model on replicas: each replica's gradient, the exchange, the update. Lesson 2.

The exchange and the divisor of the loss are arguments, so that readers can also try incorrect choices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from dgc_lab.common import check_choice, check_flag, check_keras, check_list, check_number, check_some, check_whole
from dgc_lab.replicas.mirrored_variable import check_same_shapes, per_replica
from dgc_lab.workloads.batches import cross_entropy, make_evaluator

if TYPE_CHECKING:
    import pandas as pd

EXCHANGES = ("MEAN", "SUM", "NONE")
DIVISORS = ("replica batch", "global batch")
NORMALIZATIONS = ("local", "synchronized")


def dense_network(normalization: str | None = None, seed: int = 0):
    """Build a dense network for 8x8 digits: dense 64, optional batch normalization, ReLU, dense 10.

    The model takes float32 (batch, 8, 8, 1) and returns logits, float32 (batch, 10). Its initial weights depend only on
    ``seed``, an integer of at least 0. With ``"local"`` normalization each replica uses the moments of its own part of
    the batch, with ``"synchronized"`` those of the global batch. Raises ValueError for any other ``normalization``.

    Example:
        >>> dense_network().count_params()
        4810
    """
    check_keras()
    import keras

    if normalization is not None:
        check_choice("normalization", normalization, NORMALIZATIONS)
    check_whole("seed", seed, 0, 2**30)
    between = [keras.layers.BatchNormalization(synchronized=normalization == "synchronized")] if normalization else []
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, kernel_initializer=keras.initializers.GlorotUniform(seed=2 * seed)),
            *between,
            keras.layers.Activation("relu"),
            keras.layers.Dense(10, kernel_initializer=keras.initializers.GlorotUniform(seed=2 * seed + 1)),
        ]
    )


def batch_order(examples: int, steps: int, batch: int, replicas: int, own_slices: bool = False, seed: int = 0):
    """Draw the examples of each replica in each step, as int32 indices (steps, replicas, batch / replicas).

    Args:
        examples: number of examples in the training set.
        steps: number of updates.
        batch: number of examples per step over all replicas, a multiple of ``replicas``.
        replicas: number of replicas that share the batch.
        own_slices: if False, each step's batch is drawn from all examples and split; it does not depend on the number
            of replicas. If True, replica i sees only the examples i, i + replicas, i + 2 replicas and so on.
        seed: random seed, an integer of at least 0.

    Raises:
        ValueError: an argument is not in its range, or ``batch`` is not a multiple of ``replicas``.

    Example:
        >>> batch_order(examples=100, steps=3, batch=8, replicas=4).shape
        (3, 4, 2)
    """
    check_whole("replicas", replicas, 1, 64)
    check_whole("examples", examples, replicas, 2**31 - 1)
    check_whole("steps", steps, 1, 1_000_000)
    check_whole("batch", batch, replicas, 2**20)
    if batch % replicas:
        raise ValueError(f"batch must be a multiple of the {replicas} replicas, got {batch}")
    check_whole("seed", seed, 0)
    check_flag("own_slices", own_slices)
    random = np.random.default_rng(seed)
    if not own_slices:
        return random.integers(0, examples, (steps, batch)).reshape(steps, replicas, -1).astype(np.int32)
    indices = random.integers(0, examples // replicas, (steps, replicas, batch // replicas))
    return (indices * replicas + np.arange(replicas)[:, None]).astype(np.int32)


@dataclass(frozen=True)
class Trained:
    """Result of a training run: losses and weights of each replica."""

    losses: np.ndarray  # float32 (steps, replicas): each replica's mean loss on its part of the batch
    weights: list[list[np.ndarray]]  # for each replica, its copies of the model's variables
    build: Callable  # function that builds the model
    reduced_bytes: int = 0  # size of the gradients and weights that each replica passed to allreduce, all steps added

    def score(self, images, labels, weights=None) -> tuple[float, float]:
        """Return accuracy and mean loss of a model with these weights, by default those of replica 0."""
        model = self.build()
        model.set_weights(self.weights[0] if weights is None else weights)
        return make_evaluator(images, labels, batch=len(labels))(functools.partial(model, training=False))

    def spread(self) -> float:
        """Return the largest difference between two replicas' copies of any weight: 0 if all have the same model."""
        return float(np.max([np.ptp(np.stack(copies), axis=0).max() for copies in zip(*self.weights, strict=True)]))

    def bytes_sent(self) -> float:
        """Return how many bytes each replica sends if every allreduce uses a ring (lesson 1, section 5)."""
        replicas = len(self.weights)
        return 2 * (replicas - 1) / replicas * self.reduced_bytes


def score_runs(runs: dict[str, list[Trained]], images: ArrayLike, labels: ArrayLike) -> pd.DataFrame:
    """Return the test accuracy, test loss and megabytes sent of every run, by method and seed.

    ``runs`` has a list of results for each method: the first for seed 0, the second for seed 1, and so on. ``images``
    and ``labels`` are the test set. Accuracy and loss are those of replica 0. Raises ValueError if there are no runs.

    Example:
        >>> image, weights = np.ones((1, 8, 8, 1), np.float32), dense_network().get_weights()
        >>> run = Trained(np.zeros((1, 2)), [weights, weights], dense_network, reduced_bytes=2_000_000)
        >>> score_runs({"MEAN": [run]}, image, np.zeros(1, int))["MB sent"].to_dict()
        {('MEAN', 0): 2.0}
    """
    import pandas as pd

    rows = []
    for method, results in check_some("runs", runs).items():
        for seed, result in enumerate(check_some(f"runs[{method!r}]", results)):
            accuracy, loss = result.score(images, labels)
            row = {"test accuracy": accuracy, "test loss": loss, "MB sent": result.bytes_sent() / 1e6}
            rows.append({"method": method, "seed": seed, **row})
    return pd.DataFrame(rows).set_index(["method", "seed"])


def train(
    strategy: tf.distribute.Strategy,
    build: Callable,
    images: ArrayLike,
    labels: ArrayLike,
    order: ArrayLike,
    learning_rate: float = 0.1,
    momentum: float = 0.0,
    exchange: str = "MEAN",
    divide_by: str = "replica batch",
    average_after: Iterable[int] = (),
) -> Trained:
    """Train one model per replica; if the replicas exchange gradients, their models stay identical.

    Each replica computes the gradient of its loss: the sum of its examples' losses, divided by the size of its batch or
    of the global batch (``divide_by``). The replicas combine their gradients according to ``exchange``. Each replica
    then updates its own copy of the weights with momentum, ``v = momentum v + g``, ``w = w - learning_rate v``. After
    the steps in ``average_after``, all replicas continue from the mean of their weights. With exchange ``"NONE"`` and
    every H-th step this is local SGD; with H = 1 it is synchronous SGD.

    Args:
        strategy: result of `dgc_lab.replicas.mirrored_variable.mirrored`.
        build: function that returns a new Keras model, the same at every call.
        images, labels: the training set.
        order: int array (steps, replicas, examples each), as from `batch_order`.
        learning_rate: number above 0.
        momentum: number in [0, 1).
        exchange: ``"MEAN"``, ``"SUM"`` or ``"NONE"``.
        divide_by: ``"replica batch"`` or ``"global batch"``.
        average_after: steps, the first being 1, after which trained weights are averaged; velocities are not.

    Raises:
        ValueError: an argument is not in its range, or ``order`` is for another number of replicas.

    Example:
        >>> from dgc_lab.replicas import mirrored
        >>> from dgc_lab.workloads.data import load
        >>> data = load("digits")
        >>> order = batch_order(len(data.x_train), steps=2, batch=8, replicas=2)
        >>> for exchange in ("MEAN", "NONE"):  # doctest: +SKIP
        ...     trained = train(mirrored(2), dense_network, data.x_train, data.y_train, order, exchange=exchange)
        ...     print(exchange, trained.losses.shape, trained.spread() > 0)
        MEAN (2, 2) False
        NONE (2, 2) True

    References:
        S. Stich, Local SGD converges fast and communicates little, arXiv:1805.09767.
    """
    check_choice("exchange", exchange, EXCHANGES)
    check_choice("divide_by", divide_by, DIVISORS)
    replicas, order = strategy.num_replicas_in_sync, np.asarray(order)
    if order.ndim != 3 or order.shape[1] != replicas or not order.size:
        raise ValueError(f"order must have shape (steps, {replicas}, examples), got {order.shape}")
    if order.dtype.kind not in "iu" or order.min() < 0 or order.max() >= len(images):
        raise ValueError(f"order must hold indices of the {len(images)} images, got {order.min()} to {order.max()}")
    order = order.astype(np.int32)  # tf.gather rejects other small or unsigned integers
    check_number("learning_rate", learning_rate, "above 0", finite=True)
    check_number("momentum", momentum, "at least 0 and below 1")
    average_after = {check_whole("average_after", step, 1) for step in check_list("average_after", average_after)}
    images, labels = tf.constant(images), tf.constant(labels)
    if images.shape.rank < 2 or images.shape[:1] != labels.shape or not labels.dtype.is_integer:
        raise ValueError(f"labels must be one whole number per image, got {labels.shape} for images {images.shape}")
    divisor = order.shape[2] * (replicas if divide_by == "global batch" else 1)
    with strategy.scope():
        model = build()
        # Keras 3 wraps each tf.Variable; .value is the variable itself, which has a copy on each replica.
        weights = [variable.value for variable in model.trainable_variables]
        velocities = [tf.Variable(tf.zeros(weight.shape)) for weight in weights]

    def on_replica(indices):
        context = tf.distribute.get_replica_context()
        own = indices[context.replica_id_in_sync_group]
        with tf.GradientTape() as tape:
            losses = cross_entropy(tf.gather(labels, own), model(tf.gather(images, own), training=True))
            loss = tf.reduce_sum(losses) / divisor
        gradients = tape.gradient(loss, weights)
        if exchange != "NONE":
            gradients = context.all_reduce(tf.distribute.ReduceOp[exchange], gradients)
        for weight, velocity, gradient in zip(weights, velocities, gradients, strict=True):
            if momentum:
                velocity.assign(momentum * velocity + gradient)
                gradient = velocity
            weight.assign_sub(learning_rate * gradient)
        return tf.reduce_mean(losses)

    @tf.function
    def step(indices):
        return strategy.experimental_local_results(strategy.run(on_replica, args=(indices,)))

    def average_weights():
        means = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.MEAN, [tf.convert_to_tensor(weight) for weight in weights]
        )
        for weight, mean in zip(weights, means, strict=True):
            weight.assign(mean)

    average = tf.function(lambda: strategy.run(average_weights))
    losses, allreduces = [], len(order) if exchange != "NONE" else 0
    for number, indices in enumerate(order, 1):
        losses.append([float(loss) for loss in step(tf.constant(indices))])
        if number in average_after:
            average()
            allreduces += 1
    every = [strategy.experimental_local_results(variable.value) for variable in model.variables]
    copies = [[copy.numpy() for copy in own] for own in zip(*every, strict=True)]
    trained_bytes = sum(weight.dtype.size * weight.shape.num_elements() for weight in weights)
    return Trained(np.array(losses, np.float32), copies, build, allreduces * trained_bytes)


def combined_weights(
    strategy: tf.distribute.Strategy, weights: list[list[tf.Tensor]], aggregation: str
) -> list[np.ndarray]:
    """Combine the replicas' weights into one model: each replica assigns its own to variables with this aggregation.

    ``strategy`` is a result of `dgc_lab.replicas.mirrored`. ``weights`` has a list of arrays per replica, such as
    `Trained.weights`. ``aggregation`` is ``"MEAN"``, ``"SUM"`` or ``"ONLY_FIRST_REPLICA"``. Raises ValueError for any
    other aggregation, if a replica's list is missing, or if shapes or dtypes differ between replicas.

    Example:
        >>> from dgc_lab.replicas import mirrored
        >>> weights = [[np.array([1.0], np.float32)], [np.array([2.0], np.float32)]]
        >>> combined_weights(mirrored(2), weights, "MEAN")  # doctest: +SKIP
        [array([1.5], dtype=float32)]
    """
    check_choice("aggregation", aggregation, ("MEAN", "SUM", "ONLY_FIRST_REPLICA"))
    if len(weights) != strategy.num_replicas_in_sync:
        raise ValueError(f"weights must be of {strategy.num_replicas_in_sync} replicas, got {len(weights)}")
    check_same_shapes("weights", weights)
    combined = []
    for arrays in zip(*weights, strict=True):
        with strategy.scope():
            variable = tf.Variable(tf.zeros_like(arrays[0]), aggregation=tf.VariableAggregation[aggregation])
        strategy.run(variable.assign, args=(per_replica(strategy, arrays),))
        combined.append(variable.numpy())
    return combined


def largest_difference(one: list[ArrayLike], other: list[ArrayLike]) -> float:
    """Return the largest absolute difference between ``one`` list of arrays and the ``other``.

    Raises ValueError if the shapes differ, or if there are no arrays.

    Example:
        >>> largest_difference([np.array([1.0, 2.0]), np.array(3.0)], [np.array([1.0, 2.5]), np.array(3.25)])
        0.5
    """
    shapes, others = [[np.shape(array) for array in arrays] for arrays in (one, other)]
    if not shapes or shapes != others:
        raise ValueError(f"one and other must hold arrays of the same shapes, got {shapes} and {others}")
    return float(np.max([np.abs(np.subtract(a, b, dtype=np.float64)).max() for a, b in zip(one, other, strict=True)]))
