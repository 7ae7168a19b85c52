"""A worker's gradients before compression: rows merged, weight decay, clipping, and a check that all are finite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from dgc_lab.common import check_choice, check_number, check_whole
from dgc_lab.compression.config import DGCConfig


def local_gradients(gradients, weights, config: DGCConfig, workers: int):
    """Return a worker's gradients in float32, with rows merged and weight decay added, before and after clipping."""
    # Sums over many steps are float32, whatever the type of the weights: 1 + 0.001 is 1 in bfloat16.
    gradients = [g if g is None else tf.cast(g, tf.float32) for g in gradients]
    gradients = [sum_duplicate_rows(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    if config.weight_decay:
        # A gradient that holds 1 / workers gets its share of the decay, because the exchange adds the shares.
        decay = config.weight_decay / (1 if config.reduction == "average" else workers)
        gradients = [
            g if g is None or isinstance(g, tf.IndexedSlices) else g + decay * tf.cast(weight, tf.float32)
            for g, weight in zip(gradients, weights, strict=True)
        ]
    if config.clip_norm is None:
        return gradients, gradients
    return gradients, clip_locally(gradients, config.clip_norm, workers, config.reduction)


def clip_locally(
    gradients: Sequence[tf.Tensor | None], clip_norm: float, workers: int, reduction: str = "average"
) -> list:
    """Scale a worker's gradients down together, to the share of the global norm that one of N workers may use.

    The gradients of N workers are nearly independent, so the norm of their sum is about sqrt(N) times that of one.
    A worker's own mean may therefore reach sqrt(N) times the norm that is allowed for the average; a gradient that
    is already divided by N may reach 1/sqrt(N) of it.

    Args:
        gradients: tensors, ``tf.IndexedSlices`` with every row once, or None; the norm is that of all of them together.
        clip_norm: largest L2 norm of the gradient over all workers, above 0.
        workers: N, at least 1.
        reduction: ``"average"`` if each gradient is the worker's own mean, or ``"sum"`` if it is already divided by N.

    Raises:
        ValueError: clip_norm, workers or reduction is not allowed.

    Example:
        >>> [clipped] = clip_locally([tf.constant([3.0, 4.0])], clip_norm=1.0, workers=4)
        >>> float(tf.norm(clipped))
        2.0

    References:
        arXiv:1712.01887, section 3.2 (local gradient clipping).
    """
    check_choice("reduction", reduction, ("average", "sum"))
    check_number("clip_norm", clip_norm, "above 0")
    limit = clip_norm * check_whole("workers", workers, 1) ** (0.5 if reduction == "average" else -0.5)
    norm = tf.linalg.global_norm(gradients)
    # A norm that overflows must not pass for a large gradient, which would be scaled to nothing.
    scale = tf.where(tf.math.is_finite(norm), tf.where(norm > limit, limit / norm, 1.0), float("nan"))
    return [None if g is None else tf.math.scalar_mul(scale, g) for g in gradients]


def sum_duplicate_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Return the same gradient with every row once: rows that appear several times are added.

    Example:
        >>> rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 0, 3]), tf.constant([5, 1]))
        >>> merged = sum_duplicate_rows(rows)
        >>> merged.indices.numpy().tolist(), merged.values.numpy().tolist()
        ([3, 0], [[5.0], [2.0]])
    """
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def flatten(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return tensors of one dtype and of any shapes as one flat vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0) if tensors else tf.zeros([0])


def unflatten(vector: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list:
    """Split a flat vector into tensors of these shapes."""
    if not shapes:
        return []
    parts = tf.split(vector, [shape.num_elements() for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def first_non_finite(workers: list[list], numbers: Sequence[int], ends: Sequence[int]) -> tf.Tensor:
    """Return the number of each worker's first tensor with NaN or infinity, or -1: float32 (workers,).

    Args:
        workers: for each worker, pairs of values, float32 (k,), and their positions in a flat vector: int32 (k,), or
            the first position of consecutive ones.
        numbers, ends: number of each tensor in the flat vector, and the position after its last element.
    """

    def first(pairs):
        vectors = [
            positions + tf.range(tf.size(v)) if isinstance(positions, int) else positions for v, positions in pairs
        ]
        # A sentinel with the number -1 comes last: it is found if all values are finite.
        finite = tf.concat([*(tf.math.is_finite(values) for values, _ in pairs), [False]], 0)
        position = tf.gather(tf.concat([*vectors, ends[-1:]], 0), tf.argmin(tf.cast(finite, tf.int32)))
        return tf.gather(tf.constant([*numbers, -1.0]), tf.reduce_sum(tf.cast(position >= tf.constant(ends), tf.int32)))

    # A sum is finite only if every addend is, and costs a tenth of looking at each; finite addends can overflow it.
    total = tf.add_n([tf.reduce_sum(values) for pairs in workers for values, _ in pairs])
    return tf.cond(
        tf.math.is_finite(total),
        lambda: tf.fill([len(workers)], -1.0),
        lambda: tf.stack([first(pairs) for pairs in workers]),
    )


def check_numbers(bad: tf.Tensor, names: Sequence[str]) -> list:
    """Return operations that fail on all workers if any of them has found a non-finite gradient.

    ``bad`` has the result of `first_non_finite` for each worker.
    """
    worker = tf.argmax(bad)
    name = tf.gather(tf.constant(list(names)), tf.maximum(tf.cast(bad[worker], tf.int32), 0))
    message = tf.strings.format("gradient of {} on worker {} holds NaN or infinity, or is too large", (name, worker))
    check = tf.debugging.Assert(tf.reduce_all(bad < 0), [message])
    return [] if check is None else [check]  # run eagerly it has raised already


def check_finite(gradient, name: str):
    """Return the gradient; raise InvalidArgumentError with the variable's name if it holds NaN or infinity."""
    # As in `first_non_finite`, a finite sum is enough.
    return tf.cond(
        tf.math.is_finite(tf.reduce_sum(gradient)),
        lambda: gradient,
        lambda: tf.debugging.check_numerics(gradient, f"gradient of {name}"),
    )


def ends_of(sizes: Sequence[int]) -> list[int]:
    """Return the position after the last element of each tensor in a flat vector."""
    return np.cumsum(sizes, dtype=np.int64).tolist()
