"""Schemes for workers that train alone for many steps between exchanges: DiLoCo and SparseLoCo. Lesson 9.

Workers make plain SGD steps in between, where the papers use AdamW. `dgc_lab.training.ModelTrainer` trains with these
schemes.
"""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.compression.elements import in_blocks, mean_of, pack_bits, unpack_bits
from dgc_lab.compression.scheme import AllGather, Scheme
from dgc_lab.compression.schemes.chunked import largest_in_rows, spread
from dgc_lab.compression.schemes.naming import named
from dgc_lab.compression.schemes.quantized import dense
from dgc_lab.compression.wrappers import local_sgd, with_momentum

CHUNK = 256  # so that a position in a chunk takes one byte


@named
def diloco(every: int = 8, momentum: float = 0.9, outer_rate: float = 0.7):
    """Return a scheme that averages the workers' weight changes every few steps, with Nesterov momentum (DiLoCo).

    d = mean of the weight changes since the last exchange; u' = m (u + d); weights' = weights + r (u' + d). It uses an
    allreduce of 4 bytes per element, every few steps. It is `local_sgd` around `dense` with momentum. Differences from
    the paper: plain SGD instead of AdamW between exchanges, and a velocity that shrinks with the learning rate.

    Args:
        every: steps between exchanges, at least 2; the paper uses 500.
        momentum: at least 0 and below 1.
        outer_rate: r, above 0.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> scheme = diloco(every=500)
        >>> scheme.every, scheme.momentum, scheme.nesterov, scheme.outer_rate
        (500, 0.9, True, 0.7)

    References:
        arXiv:2311.08105, Algorithm 1.
    """
    return local_sgd(with_momentum(dense(), momentum, nesterov=True), every, outer_rate=outer_rate)


@named
def sparseloco(k: int = 8, every: int = 8, decay: float = 0.95, outer_rate: float = 1.0):
    """Return a scheme that sends the largest weight changes in 2 bits, with error feedback (SparseLoCo).

    e' = d e + weight change; sent = the k largest of e' in each chunk of 256, rounded to four levels; e'' = e' - sent;
    weights' = weights + r times the mean of sent. It uses an allgather of 10 bits per element sent, every few steps.
    The remaining error acts as momentum, so none is added. Differences from the paper: plain SGD instead of AdamW
    between exchanges, an error that shrinks with the learning rate, chunks of 256 instead of 4096 elements, and levels
    that are the means of small and of large values of each sign.

    Args:
        k: number of elements to send per chunk, 1 to 256.
        every: steps between exchanges, at least 2.
        decay: share of the error that is kept from exchange to exchange, at least 0 and below 1.
        outer_rate: r, above 0.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(sparseloco(k=3), [1.0, -2.0, 3.0, 5.0]).numpy().tolist()
        [0.0, -2.0, 3.0, 5.0]

    References:
        arXiv:2508.15706, Algorithm 1.
    """
    check_whole("k", k, 1, CHUNK)

    def step(change, error, context):
        error = decay * error + change
        columns, values = largest_in_rows(in_blocks(error, CHUNK), k)
        groups, levels = four_levels(values)
        everyone = yield AllGather((tf.cast(columns, tf.uint8), pack_bits(groups, 2), levels))
        values = [
            spread(tf.cast(places, tf.int32), tf.gather(means, unpack_bits(bits, 2, groups.shape)), error.shape, CHUNK)
            for places, bits, means in everyone
        ]
        own = spread(columns, tf.gather(levels, groups), error.shape, CHUNK)
        return mean_of(values), own, error - own

    return local_sgd(Scheme(step, tf.zeros_like, momentum=None, per_tensor=True), every, outer_rate=outer_rate)


def four_levels(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the group of each value, by sign and by whether it is above the mean magnitude, and each group's mean."""
    magnitudes = tf.abs(values)
    groups = 2 * tf.cast(values >= 0, tf.int32) + tf.cast(magnitudes >= tf.reduce_mean(magnitudes), tf.int32)
    return groups, tf.math.unsorted_segment_mean(values, groups, 4)
