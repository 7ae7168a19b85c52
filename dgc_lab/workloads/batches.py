"""Batches of examples, their loss, what a model is worth on them, and the device: what all training loops share.

Lessons 3 to 7.
"""

from __future__ import annotations

import contextlib
import functools

import tensorflow as tf
from numpy.typing import ArrayLike

from dgc_lab.common import check_some, check_whole


def pick_batch(images: tf.Tensor, labels: tf.Tensor, step: int | tf.Tensor, batch: int, seed: int | tf.Tensor):
    """``(images, labels)`` of a step, drawn inside the graph: every epoch walks all examples in a new order.

    A ValueError for fewer than one in a batch, and for a step or seed that int32 does not hold.

    Args:
        images, labels: the training set.
        step: 0 for the first; an int or an int32 scalar tensor.
        batch: how many examples to draw; more than there are is allowed.
        seed: an int of at least 0 or an int32 scalar tensor.

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
    places = step * batch + tf.range(batch)
    epochs = places // examples
    # The raw operation: tf.random.experimental.index_shuffle takes a single seed, and a batch can span two epochs.
    seeds = tf.stack([tf.fill([batch], seed), epochs, tf.zeros_like(epochs)], axis=1)
    chosen = tf.raw_ops.RandomIndexShuffle(index=places % examples, seed=seeds, max_index=examples - 1)
    return tf.gather(images, chosen), tf.gather(labels, chosen)


def cross_entropy(labels: ArrayLike, logits: ArrayLike):
    """Cross-entropy of each example: labels int (n, ...), logits float (n, ..., classes), result float (n, ...).

    A ValueError where the dimensions do not fit, and for labels that are no whole numbers.

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


def grow_gpu_memory() -> None:
    """Let TensorFlow take GPU memory as it needs it, in place of all of it at the start."""
    for gpu in tf.config.list_physical_devices("GPU"):
        # Too late once the GPU is in use: then whoever started it has chosen already.
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)


def make_evaluator(inputs: ArrayLike | tuple[ArrayLike, ...], targets: ArrayLike, batch: int = 500):
    """A function of a classifier, a Keras model or any function of inputs to logits, to (accuracy, mean cross-entropy).

    Args:
        inputs: what the classifier takes, an array or a tuple of them, the examples along their first dimension.
        targets: int, the right class of each output: (examples,), or (examples, guesses) for masked words.
        batch: examples that are computed at a time, at least 1.

    Raises:
        ValueError: ``batch`` is below 1, there are no examples, or not as many inputs as targets.

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
        raise ValueError(f"targets must be as many as inputs, got {len(targets)} for {counts}")
    traced = {}  # of the last model: TensorFlow need not build it again for every evaluation

    def evaluate(model) -> tuple[float, float]:
        if isinstance(model, keras.Model) and model not in traced:
            traced.clear()
            traced[model] = tf.function(functools.partial(model, training=False), autograph=False)
        predict, correct, loss = traced.get(model, model), 0, 0.0
        for start in range(0, len(targets), batch):
            some, right = tf.nest.map_structure(lambda all_, at=start: all_[at : at + batch], (inputs, targets))
            logits = tf.cast(predict(some), tf.float32)
            guesses = tf.argmax(logits, axis=-1, output_type=tf.int32)
            correct += int(tf.math.count_nonzero(guesses == right))
            loss += tf.reduce_sum(cross_entropy(right, logits))
        outputs = int(tf.size(targets))
        return correct / outputs, float(loss / outputs)

    return evaluate
