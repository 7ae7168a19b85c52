"""Lesson 1, section 7: training of a network that uses a weight several times, with each aggregation method.

The network reads an image row by row. It uses its recurrent weight once per row, so the weight's gradient has as many
contributions as the image has rows.
"""

from __future__ import annotations

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


def initial_weights(columns: int) -> list[tf.Tensor]:
    """Return the four initial weights: (columns, hidden), (hidden, hidden), (hidden,) and (hidden, 10), float32."""
    shapes = [(columns, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, 10)]
    return [
        tf.random.stateless_normal(shape, (SEED, index)) * (shape[0] ** -0.5 if len(shape) == 2 else 0.0)
        for index, shape in enumerate(shapes)
    ]


def row_logits(weights, images):
    """Read float32 images (batch, rows, columns, 1) row by row, ``h = tanh(row U + h W + b)``; return logits h V."""
    kernel, recurrent, bias, output = weights
    state = tf.zeros([tf.shape(images)[0], recurrent.shape[0]])
    for row in tf.unstack(images[..., 0], axis=1):
        state = tf.tanh(tf.matmul(row, kernel) + tf.matmul(state, recurrent) + bias)
    return tf.matmul(state, output)


def training_step(way: str, data):
    """Return a ``tf.function`` of a step number that updates a new network, with the aggregation method ``way``.

    The function returns the loss of the step's batch before the update.
    """
    check_choice("way", way, WAYS)
    method = None if way == TAPE else aggregation_method(way)
    train = tf.constant(data.x_train), tf.constant(data.y_train)
    weights = [tf.Variable(value) for value in initial_weights(data.x_train.shape[2])]

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
    """Train the network with each aggregation method, from the same initial weights on the same batches.

    The methods take turns at each step. ``data`` is a `dgc_lab.workloads.data.Dataset` of images with one channel.
    Returns for each method its ``losses`` and ``seconds``, a float per step; the first two steps include tracing.
    Raises ValueError if ``steps`` is not from 1 to 100 000.

    Example:
        >>> from dgc_lab.workloads.data import load
        >>> for way, run in train_each_way(load("digits"), steps=1).items():
        ...     print(way, round(run["losses"][0], 2))
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
            way = WAYS[(number + turn) % len(WAYS)]  # no way is always the first
            start = time.perf_counter()
            losses[way].append(float(training[way](tf.constant(number))))
            seconds[way].append(time.perf_counter() - start)
    return {way: {"losses": losses[way], "seconds": seconds[way]} for way in WAYS}
