"""Deep Gradient Compression: momentum and accumulation before a worker sends, as pure functions on flat tensors.

One worker and one tensor, step by step, with gradient g, velocity u and residual v (arXiv:1712.01887):

1. `clip_locally` rescales the new gradients when their norm is too large.
2. `correct_momentum` makes u from g, and what is added to v from u.
3. `dgc_lab.dgc.thresholding.thresholds` finds the threshold on v, `select` takes the elements that pass it.
4. `zero_at` takes what was sent out of v, and with momentum factor masking out of u.

`dgc_lab.dgc.config.DGCConfig` holds every switch; it can be had from here as well. Who exchanges what was selected, and how,
is `dgc_lab.dgc.exchange`' and `dgc_lab.dgc.compressor`'s business.
"""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.dgc.config import PAPER_WARM_UP, DGCConfig, geometric_warm_up, masking, payload_bytes
from dgc_lab.dgc.selection import elements_above

__all__ = [
    "PAPER_WARM_UP",
    "DGCConfig",
    "clip_locally",
    "correct_momentum",
    "geometric_warm_up",
    "masking",
    "payload_bytes",
    "select",
    "zero_at",
]

LARGEST_HALF = 65504.0  # the largest finite float16


def clip_locally(gradients, clip_norm, workers, reduction="average"):
    """Scale a worker's gradients down together, to the share of the global norm that one of N workers may use.

    The gradients of N workers are nearly independent, so the norm of their sum is about sqrt(N) times that of one.
    A worker's own mean may therefore reach sqrt(N) times the norm that is allowed for the average; a gradient that
    holds 1/N already, 1/sqrt(N) of it.

    Args:
        gradients: list of tensors (or ``tf.IndexedSlices`` with every row once); the norm is that of all together.
        clip_norm: largest L2 norm of the gradient over all workers.
        workers: N.
        reduction: ``"average"``, each gradient is the worker's own mean, or ``"sum"``, it holds 1/N already.

    Returns:
        List of tensors like ``gradients``.

    Example:
        >>> [clipped] = clip_locally([tf.constant([3.0, 4.0])], clip_norm=1.0, workers=4)
        >>> float(tf.norm(clipped))
        2.0

    Source: arXiv:1712.01887, section 3.2 (local gradient clipping).
    """
    limit = clip_norm * workers ** (0.5 if reduction == "average" else -0.5)
    norm = tf.linalg.global_norm(gradients)
    # A norm that overflows must not pass for a large gradient, which would be scaled to nothing.
    scale = tf.where(tf.math.is_finite(norm), tf.where(norm > limit, limit / norm, 1.0), float("nan"))
    return [
        tf.IndexedSlices(g.values * scale, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else g * scale
        for g in gradients
    ]


def correct_momentum(gradient, velocity, momentum, nesterov=False):
    """The new velocity, and what is added to the residual in place of the gradient.

    Vanilla: ``u = m u + g``, add u. Nesterov: ``u = m (u + g)``, add ``u + g``.

    Args:
        gradient, velocity: tensors of one shape.
        momentum: m, in [0, 1).
        nesterov: which of the two.

    Returns:
        ``(velocity, addend)``.

    Example:
        >>> velocity, addend = correct_momentum(tf.constant([1.0]), tf.constant([2.0]), 0.5)
        >>> float(velocity[0]), float(addend[0])
        (2.0, 2.0)

    Source: arXiv:1712.01887, eq. 4 and appendix B.
    """
    if nesterov:
        velocity = momentum * (velocity + gradient)
        return velocity, velocity + gradient
    velocity = momentum * velocity + gradient
    return velocity, velocity


def select(residual, threshold, values="float32", maxima=None):
    """The elements that are sent: where they stand, what is sent for them, and what sending them leaves behind.

    Args:
        residual: flat floating-point tensor, n elements, n below 2**31.
        threshold: scalar tensor; an element is sent when ``|v| >= threshold``.
        values: ``"float32"`` or ``"float16"``; a value too large for float16 is sent as its largest.
        maxima: what `dgc_lab.dgc.selection.block_maxima` says of the residual, if that is known already.

    Returns:
        ``(indices, sent, left)`` of the k selected elements: int32 (k,), the value type (k,), and the residual's type
        (k,): the rounding error, zero where both types are the same. ``sent + left`` is the residual there.

    Example:
        >>> indices, sent, left = select(tf.constant([0.1, -3.0, 2.0]), 1.0)
        >>> indices.numpy().tolist(), sent.numpy().tolist()
        ([1, 2], [-3.0, 2.0])
    """
    indices, chosen = elements_above(residual, threshold, maxima)
    if values == chosen.dtype.name:
        return indices, chosen, tf.zeros_like(chosen)
    if values == "float16":
        sent = tf.cast(tf.clip_by_value(chosen, -LARGEST_HALF, LARGEST_HALF), tf.float16)
    else:
        sent = tf.cast(chosen, values)
    return indices, sent, chosen - tf.cast(sent, chosen.dtype)


def zero_at(x, indices, left=0.0):
    """x with ``left`` (zero, or the rounding error) in place of the elements at ``indices``, none of them twice.

    In a graph that has no other use for x, it is changed where it lies in memory and not copied.

    Example:
        >>> zero_at(tf.constant([1.0, 2.0, 3.0]), tf.constant([1])).numpy().tolist()
        [1.0, 0.0, 3.0]
    """
    old, places = tf.gather(x, indices), indices[:, None]
    left = tf.broadcast_to(tf.cast(left, x.dtype), tf.shape(indices))
    # tf.tensor_scatter_nd_update copies x first, on a CPU always. Adding does not, but cannot clear infinity. What it
    # leaves is the same to the bit: left is what rounding made of old - sent, so old + (left - old) is left.
    return tf.cond(
        tf.math.is_finite(tf.reduce_sum(old)),
        lambda: tf.raw_ops.ScatterNdNonAliasingAdd(input=x, indices=places, updates=left - old),
        lambda: tf.tensor_scatter_nd_update(x, places, left),
    )
