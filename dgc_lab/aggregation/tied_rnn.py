"""Lesson 1, section 7: train a network whose weight is used several times, with each way of adding up its gradient.

The network reads an image row by row: its recurrent weight is used once per row, so its gradient has as many
contributions as the image has rows.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import tensorflow as tf

from dgc_lab.aggregation.addn_graph import AGGREGATION_METHODS, aggregation_method
from dgc_lab.common import check_choice, check_whole
from dgc_lab.workloads.batches import cross_entropy, pick_batch

if TYPE_CHECKING:
    from dgc_lab.workloads.dataset import Dataset

TAPE = "GradientTape"
WAYS = (*AGGREGATION_METHODS, TAPE)
HIDDEN, BATCH, LEARNING_RATE, SEED = 64, 64, 0.1, 0


def first_weights(columns: int) -> list[tf.Tensor]:
    """First values of the four weights: (columns, hidden), (hidden, hidden), (hidden,) and (hidden, 10), float32."""
    shapes = [(columns, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, 10)]
    return [
        tf.random.stateless_normal(shape, (SEED, place)) * (shape[0] ** -0.5 if len(shape) == 2 else 0.0)
        for place, shape in enumerate(shapes)
    ]


def row_logits(weights, images):
    """Read float32 images (batch, rows, columns, 1) row by row: ``h = tanh(row U + h W + b)``, then logits ``h V``."""
    inward, recurrent, bias, outward = weights
    state = tf.zeros([tf.shape(images)[0], recurrent.shape[0]])
    for row in tf.unstack(images[..., 0], axis=1):
        state = tf.tanh(tf.matmul(row, inward) + tf.matmul(state, recurrent) + bias)
    return tf.matmul(state, outward)


def training_step(way: str, data):
    """A ``tf.function`` of a step's number: one update of a new network on images, in one of `WAYS`.

    It returns the loss of the step's batch before the update.
    """
    check_choice("way", way, WAYS)
    method = None if way == TAPE else aggregation_method(way)
    train = tf.constant(data.x_train), tf.constant(data.y_train)
    weights = [tf.Variable(value) for value in first_weights(data.x_train.shape[2])]

    @tf.function
    def step(number):
        images, labels = pick_batch(*train, number, BATCH, SEED)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(cross_entropy(labels, row_logits(weights, images)))
        if method is None:
            gradients = tape.gradient(loss, weights)
        else:
            gradients = tf.gradients(loss, weights, aggregation_method=method)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(LEARNING_RATE * gradient)
        return loss

    return step


def train_each_way(data: Dataset, steps: int = 200) -> dict[str, dict]:
    """Train the network once per way, from the same weights on the same batches, the ways in turns step by step.

    ``data`` is a `dgc_lab.workloads.data.Dataset` of images with one channel, steps are 1 to 100 000, else a
    ValueError. Gives, by way, ``losses`` (a float per step) and ``seconds``, the median of a step but the first two.

    Example:
        >>> from dgc_lab.workloads.data import load
        >>> for way, told in train_each_way(load("digits"), steps=1).items():
        ...     print(way, round(told["losses"][0], 2))
        ADD_N 2.46
        DEFAULT 2.46
        EXPERIMENTAL_TREE 2.46
        EXPERIMENTAL_ACCUMULATE_N 2.46
        GradientTape 2.46
    """
    check_whole("steps", steps, 1, 100_000)
    training = {way: training_step(way, data) for way in WAYS}
    losses, seconds = {way: [] for way in WAYS}, {way: [] for way in WAYS}
    for number in range(steps):
        for turn in range(len(WAYS)):
            way = WAYS[(number + turn) % len(WAYS)]  # nobody is always first
            start = time.perf_counter()
            losses[way].append(float(training[way](tf.constant(number))))
            seconds[way].append(time.perf_counter() - start)
    return {
        way: {"losses": losses[way], "seconds": statistics.median(seconds[way][2:] or seconds[way])} for way in WAYS
    }
