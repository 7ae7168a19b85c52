"""Batches of examples, their loss, and the device that they are computed on: what every training loop begins with."""

from __future__ import annotations

import contextlib

import tensorflow as tf


def pick_batch(images, labels, step, batch, seed):
    """The ``batch`` examples of a step, drawn inside the graph: every epoch walks all examples in a new order.

    Args:
        images, labels: the training set, n examples each.
        step: int32 scalar tensor, 0 for the first.
        batch: examples in a batch; more than n is allowed.
        seed: int32 scalar tensor.

    Returns:
        ``(images, labels)`` of the batch.
    """
    examples = tf.shape(labels)[0]
    places = step * batch + tf.range(batch)
    epochs = places // examples
    # The raw operation: tf.random.experimental.index_shuffle takes a single seed, and a batch can span two epochs.
    seeds = tf.stack([tf.fill([batch], seed), epochs, tf.zeros_like(epochs)], axis=1)
    chosen = tf.raw_ops.RandomIndexShuffle(index=places % examples, seed=seeds, max_index=examples - 1)
    return tf.gather(images, chosen), tf.gather(labels, chosen)


def cross_entropy(labels, logits):
    """Cross-entropy of each example: labels int (n,), logits float (n, classes), result float (n,)."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def grow_gpu_memory() -> None:
    """Let TensorFlow take GPU memory as it needs it, in place of all of it at the start."""
    for gpu in tf.config.list_physical_devices("GPU"):
        # Too late once the GPU is in use: then whoever started it has chosen already.
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)
