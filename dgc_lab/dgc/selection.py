"""Find the few elements of a long tensor that pass a threshold: first the blocks that hold one, then the elements.

Pure functions on flat tensors. Of n elements k pass. A mask of all n and a look at each entry of it take several passes
over memory; the largest magnitudes of blocks of 64 take one that stays in the cache, and at 0.1 % only 6 blocks in 100
have to be opened.
"""

from __future__ import annotations

import math
from typing import Literal

import tensorflow as tf

BLOCK = 64
SMALLEST_HALF = 2.0**-24  # of the float16 above zero


def block_maxima(x):
    """The largest magnitude in each block of a flat tensor; NaN where the block holds NaN.

    A block has 64 elements, or the largest power of two below that which divides the number of elements, so that no
    element is left over; where that number is not known before it runs, every element is a block.
    """
    block = _block(x)
    if block == 1:
        return tf.abs(x)
    blocks = tf.reshape(x, [-1, block])
    # Two reductions that only read beat one over tf.abs(x), which would be written first.
    return tf.maximum(tf.reduce_max(blocks, 1), -tf.reduce_min(blocks, 1))


def elements_above(x, threshold, maxima=None):
    """The elements of a flat tensor with ``|x| >= threshold``: int32 indices, ascending, and values."""
    block = _block(x)
    maxima = block_maxima(x) if maxima is None else maxima
    # A block with NaN is opened: its other elements may pass. (Graphs take ~(a < b) for a >= b, which NaN is not.)
    opened = tf.cast(tf.where((maxima >= threshold) | tf.math.is_nan(maxima))[:, 0], tf.int32)
    rows = tf.gather(tf.reshape(x, [-1, block]), opened)
    found = tf.cast(tf.where(tf.abs(rows) >= threshold), tf.int32)
    return tf.gather(opened, found[:, 0]) * block + found[:, 1], tf.gather_nd(rows, found)


def select(
    residual: tf.Tensor,
    threshold: float,
    values: Literal["float32", "float16"] = "float32",
    maxima: tf.Tensor | None = None,
):
    """The elements that are sent: where they stand, what is sent for them, and what sending them leaves behind.

    A ValueError for other ``values`` than `VALUE_TYPES`.

    Args:
        residual: flat floating-point tensor, n elements, n below 2**31.
        threshold: scalar tensor; an element is sent when ``|v| >= threshold``.
        values: ``"float32"`` or ``"float16"``; a value too large for it is sent as its largest.
        maxima: what `block_maxima` says of the residual, if that is known already.

    Returns:
        ``(indices, sent, left)`` of the k selected elements: int32 (k,), the value type (k,), and the residual's type
        (k,): the rounding error, zero where both types are the same. ``sent + left`` is the residual there.

    Example:
        >>> indices, sent, left = select(tf.constant([0.1, -3.0, 2.0]), 1.0)
        >>> indices.numpy().tolist(), sent.numpy().tolist()
        ([1, 2], [-3.0, 2.0])

    Source: arXiv:1712.01887, Algorithm 1 (``v * mask``, of which only what is not zero is looked at).
    """
    if values == "float16":  # what would be rounded to zero waits
        threshold = tf.maximum(tf.cast(threshold, residual.dtype), SMALLEST_HALF)
    indices, chosen = elements_above(residual, threshold, maxima)
    if values == chosen.dtype.name:
        return indices, chosen, tf.zeros_like(chosen)
    largest = tf.as_dtype(values).max
    sent = tf.cast(tf.clip_by_value(tf.cast(chosen, tf.float64), -largest, largest), values)
    return indices, sent, chosen - tf.cast(sent, chosen.dtype)


def _block(x) -> int:
    """Elements of a block: a power of two that divides their number."""
    return math.gcd(x.shape[0], BLOCK) if x.shape[0] else 1
