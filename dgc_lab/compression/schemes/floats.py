"""Schemes with short floating-point formats of their own: 8 bits for each element, or as many as it needs."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.compression.elements import mean_of, pack_bits, unpack_bits
from dgc_lab.compression.scheme import AllGather, Scheme
from dgc_lab.compression.schemes.naming import named

# Of the 7 bits, each leading zero divides by 10, a one ends them, and the others divide 0.1 to 1 into equal parts.
LEVELS = np.array(
    [0.0, *(10.0**-zeros * (0.1 + 0.9 * (part + 0.5) / 2 ** (6 - zeros))
            for zeros in reversed(range(7)) for part in range(2 ** (6 - zeros)))], np.float32
)  # fmt: skip
LEVELS /= LEVELS[-1]
MIDDLES = (LEVELS[1:] + LEVELS[:-1]) / 2


@named
def eight_bit():
    """Return a scheme that rounds magnitudes to 127 levels, which are densest near 0, and sends signs, too.

    sent = s sign(g) times the level that is nearest to |g| / s, with s = max |g|. It uses an allgather of 1 byte per
    element. The levels cover seven decades, 64 of them in the highest one. Unlike the paper's, the highest is s itself.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> [f"{value:.4f}" for value in sent_alone(eight_bit(), [2.0, -0.1, 0.0]).numpy()]
        ['2.0000', '-0.1023', '0.0000']

    References:
        arXiv:1511.04561 (dynamic tree data type).
    """

    def step(gradient, state, context):
        scale = tf.reduce_max(tf.abs(gradient))
        shares = tf.math.divide_no_nan(tf.abs(gradient), scale)
        levels = tf.reshape(tf.searchsorted(MIDDLES, tf.reshape(shares, [-1])), gradient.shape)
        numbers = tf.cast(tf.sign(gradient) * tf.cast(levels, tf.float32), tf.int8)
        everyone = yield AllGather((numbers, scale))
        return mean_of([from_levels(*own) for own in everyone]), from_levels(numbers, scale), state

    return Scheme(step, per_tensor=True)


def from_levels(numbers: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Return the values of int8 numbers of levels, with their signs."""
    signs = tf.sign(tf.cast(numbers, tf.float32))
    return scale * signs * tf.gather(LEVELS, tf.abs(tf.cast(numbers, tf.int32)))


@named
def inceptionn(exponent: int = 10):
    """Return a scheme that sends each element in 0, 8, 16 or 32 bits, with an error below a bound.

    Bits of g: 0 if |g| < 2^-x, 8 if |g| < 2^-(x/2), 16 if |g| < 1, else 32; 8 and 16 bits are a fixed-point number.
    It uses an allgather of these bits and 2 more per element. The lab's 8 bits start at 2^-(x/2), so that the bound
    holds.

    Args:
        exponent: x, 2 to 14; the error of each element is below 2^-x.

    Raises:
        ValueError: exponent is out of range.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(inceptionn(exponent=8), [1.5, 0.25, -0.015625, 0.001]).numpy().tolist()
        [1.5, 0.25, -0.015625, 0.0]

    References:
        Li et al. 2018, "A network-centric hardware/algorithm co-design to accelerate distributed training of deep
        neural networks" (MICRO), its lossy compression.
    """
    check_whole("exponent", exponent, 2, 14)
    limits, units = (2.0**-exponent, 2.0 ** -(exponent // 2), 1.0), (2.0 ** -(exponent // 2 + 7), 2.0**-15)

    def restored(tags, bytes_1, bytes_2, bytes_4, size):
        lengths = unpack_bits(tags, 2, [size])
        places = tf.dynamic_partition(tf.range(size), lengths, 4)
        values = [tf.cast(bytes_1, tf.float32) * units[0], tf.cast(bytes_2, tf.float32) * units[1], bytes_4]
        return tf.reshape(tf.dynamic_stitch(places, [tf.zeros(tf.shape(places[0])), *values]), [size])

    def step(gradient, state, context):
        size, magnitudes = gradient.shape[0], tf.abs(gradient)
        lengths = tf.add_n([tf.cast(magnitudes >= limit, tf.int32) for limit in limits])
        _, short, middle, long = tf.dynamic_partition(gradient, lengths, 4)
        own = (pack_bits(lengths, 2), tf.cast(short / units[0], tf.int8), tf.cast(middle / units[1], tf.int16), long)
        everyone = yield AllGather(own)
        return mean_of([restored(*each, size) for each in everyone]), restored(*own, size), state

    return Scheme(step)
