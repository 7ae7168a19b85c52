"""Search for the thresholds of all segments of a vector with a few TensorFlow kernels, on GPUs or without a compiler.

``native.cc`` has the same search in C++ and finds the same numbers.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

# The paper's hierarchical selection repairs a sampled threshold outside this band of the wanted number.
TOO_FEW, TOO_MANY = 0.8, 1.3
SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)
LARGEST_BITS = 0x7FFFFFFF  # magnitudes of float32, read as integers, lie between 0 and this
JUST_BELOW_1 = 1 - 1e-7  # factor of every ratio before its share is rounded up


def elements_to_keep(ratio, elements) -> tf.Tensor:
    """Return k = ceil(ratio * elements), int32; `dgc_lab.compression.thresholding` explains the rounding.

    Example:
        >>> int(elements_to_keep(0.1, 10)), int(elements_to_keep(0.001, 10))
        (1, 1)
    """
    ratio = tf.cast(ratio, tf.float64) if tf.is_tensor(ratio) else tf.constant(ratio, tf.float64)
    return tf.cast(tf.math.ceil(ratio * JUST_BELOW_1 * tf.cast(elements, tf.float64)), tf.int32)


def largest_elements(x: tf.Tensor, ratio: tf.Tensor) -> tf.Tensor:
    """Return the positions of the k = ceil(ratio n) largest of n elements, int32 (k,), ascending."""
    return tf.sort(tf.math.top_k(x, elements_to_keep(ratio, tf.size(x)), sorted=False).indices)


def search(magnitudes, segments, ratio, strides, starts, hierarchical):
    """Return every segment's threshold from one sort of all samples, whose keys begin with the segment's number."""
    counts = (tf.constant(segments, tf.int32) - starts + strides - 1) // strides
    numbers = tf.repeat(tf.range(len(segments)), counts)
    place = tf.range(tf.size(numbers)) - tf.gather(tf.cumsum(counts, exclusive=True), numbers)
    begins = tf.constant(np.cumsum(segments) - segments, tf.int32) + starts
    sample = tf.gather(magnitudes, tf.gather(begins, numbers) + place * tf.gather(strides, numbers))
    kth_largest = ranking(sample, numbers, counts)
    limits = kth_largest(elements_to_keep(ratio, counts))
    if not hierarchical:
        return limits

    every = segment_numbers(tuple(segments))
    wanted = elements_to_keep(ratio, segments)

    def passes(limits):
        return magnitudes >= tf.gather(limits, every)

    def passing(limits):
        found = tf.math.bincount(tf.boolean_mask(every, passes(limits)), minlength=len(segments))
        return tf.ensure_shape(found, [len(segments)])  # in a graph, the loop below needs a static shape

    def too_few(passed, shares):
        return (tf.cast(passed, tf.float64) < TOO_FEW * tf.cast(wanted, tf.float64)) & (shares < 1)

    def lower(shares, limits, passed):
        low = too_few(passed, shares)
        shares = tf.where(low, tf.minimum(2 * shares, 1.0), shares)
        lowered = tf.where(shares < 1, kth_largest(elements_to_keep(shares, counts)), SMALLEST_NORMAL)
        limits = tf.where(low, lowered, limits)
        return shares, limits, passing(limits)

    shares = tf.fill([len(segments)], ratio)
    shares, limits, passed = tf.while_loop(
        lambda shares, limits, passed: tf.reduce_any(too_few(passed, shares)),
        lower,
        (shares, limits, passing(limits)),
    )
    # A sample of everything is exact, and needs no repair.
    too_many = (tf.cast(passed, tf.float64) > TOO_MANY * tf.cast(wanted, tf.float64)) & (strides > 1)

    def repair():
        chosen = tf.where(passes(limits) & tf.gather(too_many, every))[:, 0]
        exact = ranking(tf.gather(magnitudes, chosen), tf.gather(every, chosen), tf.where(too_many, passed, 0))
        return tf.where(too_many, exact(tf.where(too_many, wanted, 0)), limits)

    return tf.cond(tf.reduce_any(too_many), repair, lambda: limits)


def ranking(magnitudes, numbers, counts):
    """Return a function from k, int32 (segments,), to the k-th largest magnitude of each segment.

    It is at least the smallest normal number, and infinity for k = 0.
    """
    bits = tf.cast(LARGEST_BITS - tf.bitcast(magnitudes, tf.int32), tf.int64)
    keys = tf.sort(tf.bitwise.left_shift(tf.cast(numbers, tf.int64), tf.constant(32, tf.int64)) | bits)
    keys = tf.concat([keys, tf.zeros([1], tf.int64)], 0)  # for segments without elements at the end
    first = tf.cumsum(counts, exclusive=True)

    def kth_largest(k):
        found = tf.cast(tf.gather(keys, first + tf.maximum(k - 1, 0)) & 0xFFFFFFFF, tf.int32)
        values = tf.bitcast(LARGEST_BITS - found, tf.float32)
        values = tf.where(values > SMALLEST_NORMAL, values, SMALLEST_NORMAL)  # also replaces NaN, unlike tf.maximum
        return tf.where(k > 0, values, np.inf)

    return kth_largest


def segment_numbers(sizes: tuple[int, ...]) -> tf.Tensor:
    """Return, for each element of a flat vector, the number of its tensor: int32 (elements,).

    They come from a stored vector of 8 or 16 bits, because ``tf.repeat`` takes half a second for 25 million elements.
    """
    with tf.init_scope():
        kept = tf.constant(np.repeat(np.arange(len(sizes)), sizes).astype(np.uint8 if len(sizes) < 256 else np.uint16))
    return tf.cast(kept, tf.int32)
