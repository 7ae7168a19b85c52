"""Train a network whose weight is used several times, with each way of adding up the contributions to its gradient.

The network reads an 8x8 digit row by row: its recurrent weight is used once per row, so its gradient has as many
contributions as the image has rows.
"""

from __future__ import annotations

import statistics
import time

import tensorflow as tf

from dgc_lab.aggregation.addn_graph import AGGREGATION_METHODS, aggregation_method
from dgc_lab.common import check_choice, check_whole
from dgc_lab.workloads.batches import cross_entropy, pick_batch

TAPE = "GradientTape"
WAYS = (*AGGREGATION_METHODS, TAPE)


def first_weights(rows: int, hidden: int = 64, seed: int = 0) -> list[tf.Tensor]:
    """First values of the four weights: (rows, hidden), (hidden, hidden), (hidden,) and (hidden, 10), float32."""
    shapes = [(rows, hidden), (hidden, hidden), (hidden,), (hidden, 10)]
    return [
        tf.random.stateless_normal(shape, (seed, place)) * (shape[0] ** -0.5 if len(shape) == 2 else 0.0)
        for place, shape in enumerate(shapes)
    ]


def row_logits(weights, images):
    """Read images row by row: ``h = tanh(row U + h W + b)``, then logits ``h V``.

    Args:
        weights: U, W, b, V as `first_weights` gives them.
        images: float32 (batch, rows, columns, 1).

    Returns:
        float32 (batch, 10).
    """
    inward, recurrent, bias, outward = weights
    state = tf.zeros([tf.shape(images)[0], recurrent.shape[0]])
    for row in tf.unstack(images[..., 0], axis=1):
        state = tf.tanh(tf.matmul(row, inward) + tf.matmul(state, recurrent) + bias)
    return tf.matmul(state, outward)


class TiedTrainer:
    """The network, its weights, and one traced training step (gradient descent).

    Args:
        way: one of `WAYS`: an aggregation method of ``tf.gradients``, or ``"GradientTape"``.
        data: a `dgc_lab.workloads.data.Dataset` with square images.
        learning_rate, batch, seed: as in `dgc_lab.training.masking_trainer.MaskingConfig`.

    Raises:
        ValueError: an unknown way.

    Example:
        >>> from dgc_lab.workloads.data import load
        >>> trainer = TiedTrainer("ADD_N", load("digits"))
        >>> trainer.step(0) > trainer.step(0)  # the same batch after one update
        True
    """

    def __init__(self, way: str, data, learning_rate: float = 0.1, batch: int = 64, seed: int = 0):
        self.way = check_choice("way", way, WAYS)
        self.method = None if way == TAPE else aggregation_method(way)
        self.train = tf.constant(data.x_train), tf.constant(data.y_train)
        self.learning_rate, self.batch, self.seed = learning_rate, batch, seed
        self.weights = [tf.Variable(value) for value in first_weights(data.x_train.shape[2], seed=seed)]
        self._step = tf.function(self._update)

    def step(self, number: int) -> float:
        """One update; returns the loss of its batch before it."""
        return float(self._step(tf.constant(number)))

    def _update(self, number):
        images, labels = pick_batch(*self.train, number, self.batch, self.seed)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(cross_entropy(labels, row_logits(self.weights, images)))
        if self.method is None:
            gradients = tape.gradient(loss, self.weights)
        else:
            gradients = tf.gradients(loss, self.weights, aggregation_method=self.method)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(self.learning_rate * gradient)
        return loss


def train_each_way(data, steps: int = 200, ways=WAYS) -> dict[str, dict]:
    """Train the network once per way, from the same weights on the same batches, the ways in turns step by step.

    Args:
        data: as `TiedTrainer`.
        steps: updates each, 1 to 100 000.
        ways: which of `WAYS`.

    Returns:
        By way: ``losses`` (a float per step), ``weights`` (numpy arrays at the end) and ``seconds``, the median of a
        step without its first two.

    Raises:
        ValueError: an unknown way, or steps out of bounds.
    """
    check_whole("steps", steps, 1, 100_000)
    trainers = {way: TiedTrainer(way, data) for way in ways}
    losses, seconds = {way: [] for way in ways}, {way: [] for way in ways}
    for number in range(steps):
        for turn in range(len(ways)):
            way = ways[(number + turn) % len(ways)]  # nobody is always first
            trainer = trainers[way]
            start = time.perf_counter()
            losses[way].append(trainer.step(number))
            seconds[way].append(time.perf_counter() - start)
    return {
        way: {
            "losses": losses[way],
            "weights": [weight.numpy() for weight in trainer.weights],
            "seconds": statistics.median(seconds[way][2:] or seconds[way]),
        }
        for way, trainer in trainers.items()
    }
