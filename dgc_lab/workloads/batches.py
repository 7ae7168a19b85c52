"""Batches of examples, their loss and evaluation, for the training loops of lessons 1 to 9."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from dgc_lab.common import check_some, check_whole


def pick_batch(images: tf.Tensor, labels: tf.Tensor, step: int | tf.Tensor, batch: int, seed: int | tf.Tensor):
    """Draw the ``(images, labels)`` of a step inside the graph; each epoch visits all examples in a new order.

    Args:
        images, labels: the training set.
        step: index of the step, starting at 0; an int or an int32 scalar tensor.
        batch: number of examples to draw; it may exceed the size of the training set.
        seed: an int of at least 0 or an int32 scalar tensor.

    Raises:
        ValueError: ``batch`` is below 1, or ``step`` or ``seed`` is negative or exceeds int32.

    Example:
        >>> images, labels = pick_batch(tf.range(4), tf.range(4), tf.constant(0), 4, tf.constant(0))
        >>> sorted(images.numpy().tolist())
        [0, 1, 2, 3]
    """
    check_whole("batch", batch, 1, 2**30)
    for name, number in (("step", step), ("seed", seed)):
        if not tf.is_tensor(number):
            check_whole(name, number, 0, 2**31 - 1)
    examples = tf.shape(labels)[0]
    positions = step * batch + tf.range(batch)
    epochs = positions // examples
    # The raw operation, because tf.random.experimental.index_shuffle takes one seed, but a batch can span two epochs.
    seeds = tf.stack([tf.fill([batch], seed), epochs, tf.zeros_like(epochs)], axis=1)
    chosen = tf.raw_ops.RandomIndexShuffle(index=positions % examples, seed=seeds, max_index=examples - 1)
    return tf.gather(images, chosen), tf.gather(labels, chosen)


class Batches(NamedTuple):
    """Function from a step's number to its batch; assigning ``seed`` starts another random order."""

    draw: Callable  # takes step and seed
    seed: tf.Variable

    def __call__(self, step):
        return self.draw(step, self.seed)


def batches_of(inputs: ArrayLike, targets: ArrayLike, batch: int = 32, seed: int = 0) -> Batches:
    """Return a function from a batch's number to its examples, for `dgc_lab.training.ModelTrainer`.

    Every epoch has a new order.

    Args:
        inputs, targets: arrays (examples, ...).
        batch: examples in a batch.
        seed: integer, 0 to 2 147 483 647, for the random orders.

    Raises:
        ValueError: there are no inputs, the numbers of inputs and targets differ, or batch or seed is out of range.

    Example:
        >>> x, y = batches_of(np.arange(6.0), np.arange(6), batch=3)(tf.constant(0))
        >>> x.shape, bool(tf.reduce_all(x == tf.cast(y, x.dtype)))
        (TensorShape([3]), True)
    """
    check_whole("batch", batch, 1)
    check_whole("seed", seed, 0, 2**31 - 1)
    if not np.ndim(inputs) or not len(inputs):
        raise ValueError("inputs must hold at least one example, got none")
    if len(inputs) != (given := len(targets) if np.ndim(targets) else 0):
        raise ValueError(f"targets must have {len(inputs)} examples, as many as inputs, got {given}")
    inputs, targets = tf.constant(inputs), tf.constant(targets)
    return Batches(lambda step, seed: pick_batch(inputs, targets, step, batch, seed), tf.Variable(seed))


def cross_entropy(labels: ArrayLike, logits: ArrayLike):
    """Return the cross-entropy of each example, float (n, ...), of int labels (n, ...) and logits (n, ..., classes).

    Raises ValueError if the dimensions do not match, or if ``labels`` are not whole numbers.

    Example:
        >>> round(float(cross_entropy(tf.constant([0]), tf.constant([[0.0, 0.0]]))[0]), 3)
        0.693
    """
    ranks = [tf.convert_to_tensor(each).shape.rank for each in (labels, logits)]
    if None not in ranks and (ranks[1] < 1 or ranks[0] != ranks[1] - 1):
        raise ValueError(f"labels must have one dimension fewer than logits, got {ranks[0]} and {ranks[1]}")
    dtype = tf.convert_to_tensor(labels).dtype
    if not dtype.is_integer:
        raise ValueError(f"labels must be whole numbers, got {dtype.name}")
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def make_evaluator(inputs: ArrayLike | tuple[ArrayLike, ...], targets: ArrayLike, batch: int = 500):
    """Return a function that evaluates a classifier and returns (accuracy, mean cross-entropy).

    The classifier is a Keras model, or any function that maps inputs to logits.

    Args:
        inputs: inputs of the classifier, an array or a tuple of arrays, with the examples along the first dimension.
        targets: int, the correct class of each output: (examples,), or (examples, guesses) for masked words.
        batch: number of examples evaluated at a time, at least 1.

    Raises:
        ValueError: ``batch`` is below 1, there are no examples, or inputs and targets differ in number.

    Example:
        >>> evaluate = make_evaluator(tf.constant([[5.0, 0.0], [5.0, 0.0]]), tf.constant([0, 1]))
        >>> accuracy, loss = evaluate(tf.identity)  # the inputs are the logits
        >>> accuracy, round(loss, 2)
        (0.5, 2.51)
    """
    import keras

    check_whole("batch", batch, 1)
    inputs, targets = tf.nest.map_structure(tf.convert_to_tensor, inputs), tf.cast(targets, tf.int32)
    check_some("targets", targets)
    if any(each.shape[:1] != targets.shape[:1] for each in tf.nest.flatten(inputs)):
        counts = ", ".join(str(len(each)) for each in tf.nest.flatten(inputs))
        raise ValueError(f"targets must be as many as inputs, got {len(targets)} targets for {counts} inputs")
    traced = {}  # the last model's trace, so that TensorFlow does not trace it for every evaluation

    def evaluate(model) -> tuple[float, float]:
        if isinstance(model, keras.Model) and model not in traced:
            traced.clear()
            traced[model] = tf.function(functools.partial(model, training=False), autograph=False)
        predict, correct, loss = traced.get(model, model), 0, 0.0
        for start in range(0, len(targets), batch):
            part, classes = tf.nest.map_structure(lambda all_, at=start: all_[at : at + batch], (inputs, targets))
            logits = tf.cast(predict(part), tf.float32)
            guesses = tf.argmax(logits, axis=-1, output_type=tf.int32)
            correct += int(tf.math.count_nonzero(guesses == classes))
            loss += tf.reduce_sum(cross_entropy(classes, logits))
        outputs = int(tf.size(targets))
        return correct / outputs, float(loss / outputs)

    return evaluate
