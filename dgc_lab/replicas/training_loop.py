"""Train a model on replicas with a loop written out: each replica's gradient, exchange and update. Lesson 2.

What the replicas exchange, and by what the loss is divided, are arguments, so that the wrong choices can be tried too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from dgc_lab.common import check_choice, check_flag, check_list, check_number, check_whole
from dgc_lab.replicas.mirrored_variable import check_alike, one_each
from dgc_lab.workloads.batches import cross_entropy, make_evaluator

EXCHANGES = ("MEAN", "SUM", "NONE")
DIVISORS = ("replica batch", "global batch")
NORMALIZATIONS = ("local", "synchronized")


def dense_network(normalization: str | None = None, seed: int = 0):
    """A dense network for 8x8 digits: dense 64, batch normalization if asked for, ReLU, dense 10.

    The model takes float32 (batch, 8, 8, 1) and gives logits, float32 (batch, 10); its first weights are the same at
    every call with the same seed, an integer of at least 0. With ``"local"`` normalization each replica normalizes by
    the moments of its own part of the batch, with ``"synchronized"`` by those of the whole batch; another one is a
    ValueError.

    Example:
        >>> dense_network().count_params()
        4810
    """
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
    """The examples that each replica sees in each step, as int32 places (steps, replicas, batch / replicas).

    Args:
        examples: how many there are.
        steps: number of updates.
        batch: examples per step over all replicas; a multiple of ``replicas``, else a ValueError.
        replicas: how many share the batch.
        own_slices: False: each step's batch is drawn from all examples, the same for any number of replicas, and cut
            up. True: replica i only ever sees examples i, i + replicas, i + 2 replicas and so on.
        seed: integer of at least 0 from which the examples are drawn.

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
    places = random.integers(0, examples // replicas, (steps, replicas, batch // replicas))
    return (places * replicas + np.arange(replicas)[:, None]).astype(np.int32)


@dataclass(frozen=True)
class Trained:
    """What a training left behind."""

    losses: np.ndarray  # float32 (steps, replicas): each replica's mean loss on its part of the batch
    weights: list[list[np.ndarray]]  # per replica, its own copies of the model's variables
    build: Callable  # what made the model

    def score(self, images, labels, weights=None) -> tuple[float, float]:
        """Accuracy and mean loss of a model with these weights (replica 0's, unless others are given)."""
        model = self.build()
        model.set_weights(self.weights[0] if weights is None else weights)
        return make_evaluator(images, labels, batch=len(labels))(functools.partial(model, training=False))

    def spread(self) -> float:
        """The largest difference between two replicas' copies of any weight: 0 when all hold the same model."""
        return float(np.max([np.ptp(np.stack(copies), axis=0).max() for copies in zip(*self.weights, strict=True)]))


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
    """Train one model per replica; with an exchange of gradients they stay the same model.

    Each replica works out the gradient of its loss, its examples' losses summed and divided as ``divide_by`` says. The
    replicas exchange gradients as ``exchange`` says. Each then updates its own copy of the weights with momentum,
    ``v = momentum v + g``, ``w = w - learning_rate v``. After the steps of ``average_after`` all replicas go on from
    the mean of their weights: with exchange ``"NONE"`` and every H-th step this is local SGD (S. Stich, Local SGD
    converges fast and communicates little, arXiv:1805.09767), of which H = 1 is synchronous SGD.

    Args:
        strategy: of `dgc_lab.replicas.mirrored_variable.mirrored`.
        build: returns a new Keras model, the same at every call.
        images, labels: the training set.
        order: int array (steps, replicas, examples each), as `batch_order` makes it.
        learning_rate: above 0.
        momentum: in [0, 1).
        exchange: ``"MEAN"``, ``"SUM"`` or ``"NONE"``.
        divide_by: ``"replica batch"`` or ``"global batch"``.
        average_after: steps, 1 for the first, after which the trained weights are averaged; velocities stay each
            replica's own.

    A ValueError for any other argument, and for an ``order`` for another number of replicas.

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
    """
    check_choice("exchange", exchange, EXCHANGES)
    check_choice("divide_by", divide_by, DIVISORS)
    replicas, order = strategy.num_replicas_in_sync, np.asarray(order)
    if order.ndim != 3 or order.shape[1] != replicas or not order.size:
        raise ValueError(f"order must have shape (steps, {replicas}, examples), got {order.shape}")
    if order.dtype.kind not in "iu" or order.min() < 0 or order.max() >= len(images):
        raise ValueError(f"order must hold places of the {len(images)} images, got {order.min()} to {order.max()}")
    check_number("learning_rate", learning_rate, "above 0", finite=True)
    check_number("momentum", momentum, "at least 0 and below 1")
    average_after = {check_whole("average_after", step, 1) for step in check_list("average_after", average_after)}
    images, labels = tf.constant(images), tf.constant(labels)
    if images.shape.rank < 2 or images.shape[:1] != labels.shape or not labels.dtype.is_integer:
        raise ValueError(f"labels must be a whole number for each of images, got {labels.shape} and {images.shape}")
    divisor = order.shape[2] * (replicas if divide_by == "global batch" else 1)
    with strategy.scope():
        model = build()
        # Keras 3 wraps each tf.Variable; .value is the variable itself, with a copy on each replica.
        weights = [variable.value for variable in model.trainable_variables]
        velocities = [tf.Variable(tf.zeros(weight.shape)) for weight in weights]

    def on_replica(places):
        context = tf.distribute.get_replica_context()
        mine = places[context.replica_id_in_sync_group]
        with tf.GradientTape() as tape:
            losses = cross_entropy(tf.gather(labels, mine), model(tf.gather(images, mine), training=True))
            loss = tf.reduce_sum(losses) / divisor
        gradients = tape.gradient(loss, weights)
        if exchange != "NONE":
            gradients = context.all_reduce(tf.distribute.ReduceOp[exchange], gradients)
        for weight, velocity, gradient in zip(weights, velocities, gradients, strict=True):
            velocity.assign(momentum * velocity + gradient)
            weight.assign_sub(learning_rate * velocity)
        return tf.reduce_mean(losses)

    @tf.function
    def step(places):
        return strategy.experimental_local_results(strategy.run(on_replica, args=(places,)))

    def own_to_mean():
        means = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.MEAN, [tf.convert_to_tensor(weight) for weight in weights]
        )
        for weight, mean in zip(weights, means, strict=True):
            weight.assign(mean)

    average = tf.function(lambda: strategy.run(own_to_mean))
    losses = []
    for number, places in enumerate(order, 1):
        losses.append([float(loss) for loss in step(tf.constant(places))])
        if number in average_after:
            average()
    every = [strategy.experimental_local_results(variable.value) for variable in model.variables]
    copies = [[copy.numpy() for copy in own] for own in zip(*every, strict=True)]
    return Trained(np.array(losses, np.float32), copies, build)


def combined_weights(
    strategy: tf.distribute.Strategy, weights: list[list[tf.Tensor]], aggregation: str
) -> list[np.ndarray]:
    """The replicas' weights as one model, by variables with that aggregation to which each replica assigns its own.

    ``weights`` are a list of arrays per replica, such as `Trained.weights`, with the same shapes and dtypes on each,
    else a ValueError; the aggregation is
    ``"MEAN"``, ``"SUM"`` or ``"ONLY_FIRST_REPLICA"``. The ``strategy`` is of `dgc_lab.replicas.mirrored`.

    Example:
        >>> from dgc_lab.replicas import mirrored
        >>> weights = [[np.array([1.0], np.float32)], [np.array([2.0], np.float32)]]
        >>> combined_weights(mirrored(2), weights, "MEAN")  # doctest: +SKIP
        [array([1.5], dtype=float32)]
    """
    check_choice("aggregation", aggregation, ("MEAN", "SUM", "ONLY_FIRST_REPLICA"))
    if len(weights) != strategy.num_replicas_in_sync:
        raise ValueError(f"weights must be of {strategy.num_replicas_in_sync} replicas, got {len(weights)}")
    check_alike("weights", weights)
    combined = []
    for arrays in zip(*weights, strict=True):
        with strategy.scope():
            variable = tf.Variable(tf.zeros_like(arrays[0]), aggregation=tf.VariableAggregation[aggregation])
        strategy.run(variable.assign, args=(one_each(strategy, arrays),))
        combined.append(variable.numpy())
    return combined


def largest_difference(one: list[ArrayLike], other: list[ArrayLike]) -> float:
    """The largest absolute difference between ``one`` list of arrays and the ``other``, of the same shapes.

    A ValueError where the shapes differ.

    Example:
        >>> largest_difference([np.array([1.0, 2.0]), np.array(3.0)], [np.array([1.0, 2.5]), np.array(3.25)])
        0.5
    """
    shapes, others = [[np.shape(array) for array in arrays] for arrays in (one, other)]
    if not shapes or shapes != others:
        raise ValueError(f"one and other must hold arrays of the same shapes, got {shapes} and {others}")
    return float(np.max([np.abs(np.subtract(a, b, dtype=np.float64)).max() for a, b in zip(one, other, strict=True)]))
