"""Schemes that send every element in fewer bits: shorter floats, integers, stochastic rounding. Lesson 8."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.compression.elements import (
    in_blocks,
    mean_of,
    pack_bits,
    stochastic_round,
    unpack_bits,
    unpack_signs,
    unpacked,
)
from dgc_lab.compression.scheme import AllGather, AllReduceMean, Scheme
from dgc_lab.compression.schemes.naming import named


@named
def dense():
    """Return a scheme without compression, the baseline of all others.

    update = mean of g over the workers. It uses an allreduce of 4 bytes per element.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(dense(), [0.25, -0.5]).numpy().tolist()
        [0.25, -0.5]
    """

    def step(gradient, state, context):
        mean = yield AllReduceMean(gradient)
        return mean, gradient, state

    return Scheme(step)


@named
def float16():
    """Return a scheme that sends gradients in half precision, with 11 significant bits and a range of 6e-8 to 65 504.

    update = mean of float16(g), added in 16 bits. It uses an allreduce of 2 bytes per element. A larger sum becomes
    infinity, as in Horovod's own compression, and the next step then finds non-finite gradients.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(float16(), [0.25, 1e-9]).numpy().tolist()
        [0.25, 0.0]

    References:
        arXiv:1710.03740, section 3.
    """

    def step(gradient, state, context):
        short = tf.cast(gradient, tf.float16)
        mean = yield AllReduceMean(short)
        return tf.cast(mean, tf.float32), tf.cast(short, tf.float32), state

    return Scheme(step)


@named
def bfloat16():
    """Return a scheme that sends gradients in bfloat16, with 8 significant bits and the range of float32.

    update = mean of bfloat16(g), added in float32. It uses an allgather of 2 bytes per element, since Horovod's
    allreduce for TensorFlow does not support bfloat16.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(bfloat16(), [0.25, 1.001]).numpy().tolist()
        [0.25, 1.0]

    References:
        arXiv:1905.12322, section 2.
    """

    def step(gradient, state, context):
        short = tf.cast(gradient, tf.bfloat16)
        everyone = yield AllGather((short,))
        return mean_of([tf.cast(own, tf.float32) for (own,) in everyone]), tf.cast(short, tf.float32), state

    return Scheme(step)


@named
def int8(block: int | None = None):
    """Return a scheme that rounds to the nearest integer from -127 to 127 times a scale.

    q = round(g / s) with s = max |g| / 127 over the tensor, or over each of its blocks; update = mean of s q. It uses
    an allgather of 1 byte per element and 4 bytes per scale.

    Args:
        block: number of elements that share a scale, at least 1; if None, all elements of a tensor do.

    Raises:
        ValueError: block is below 1.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(int8(), [254.0, 1.2]).numpy().tolist()
        [254.0, 2.0]

    References:
        arXiv:1712.05877, section 2.1, without its zero point; blocks as in arXiv:2306.10209 (ZeRO++).
    """
    return integers(8, block if block is None else check_whole("block", block, 1, 2**31 - 1))


@named
def int4(block: int = 256):
    """Return a scheme that rounds to the nearest integer from -7 to 7 times the scale of a block.

    q = round(g / s) with s = max |g| / 7 over each block of the tensor; update = mean of s q. It uses an allgather of
    half a byte per element and 4 bytes per block.

    Args:
        block: number of elements that share a scale, at least 1.

    Raises:
        ValueError: block is below 1.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(int4(block=2), [7.0, 3.2, 0.875, 0.0]).numpy().tolist()
        [7.0, 3.0, 0.875, 0.0]

    References:
        arXiv:2306.10209 (ZeRO++), quantized gradients (qgZ), by an allgather in place of its two all-to-all exchanges.
    """
    return integers(4, check_whole("block", block, 1, 2**31 - 1))


def integers(bits: int, block: int | None) -> Scheme:
    """Return a scheme that sends integers of ``bits`` bits, and a scale for each block of a tensor."""

    def step(gradient, state, context):
        size = gradient.shape.num_elements()
        width = min(block or size, max(size, 1))
        message = to_integers(gradient, bits, width)
        everyone = yield AllGather(message)
        values = [tf.reshape(from_integers(*own, bits, width, size), gradient.shape) for own in (*everyone, message)]
        return mean_of(values[:-1]), values[-1], state

    return Scheme(step, per_tensor=True)


def to_integers(x: tf.Tensor, bits: int, block: int):
    """Return ``x`` as packed integers of ``bits`` times the scale of each block: uint8 (bytes,), float32 (blocks,)."""
    rows, largest = in_blocks(x, block), 2 ** (bits - 1) - 1
    scales = tf.reduce_max(tf.abs(rows), 1) / largest
    numbers = tf.reshape(tf.round(tf.math.divide_no_nan(rows, scales[:, None])), [-1])[: tf.size(x)]
    return pack_bits(numbers + largest, bits), scales


def from_integers(packed: tf.Tensor, scales: tf.Tensor, bits: int, block: int, size: int | tf.Tensor):
    """Return the ``size`` elements, float32, that `to_integers` packed."""
    numbers = tf.cast(unpacked(packed, bits)[:size] - (2 ** (bits - 1) - 1), tf.float32)
    return tf.reshape(in_blocks(numbers, block) * scales[:, None], [-1])[:size]


@named
def qsgd(levels: int = 4):
    """Return a scheme that rounds magnitudes stochastically to multiples of norm / levels. It is unbiased.

    sent = |g| sign(g_i) l_i / s, where l_i is s |g_i| / |g| rounded stochastically. It uses an allgather of 2, 4 or 8
    bits per element. The variance is at most min(n / s^2, sqrt(n) / s) times |g|^2 for n elements.

    Args:
        levels: number of quantization levels above 0, 1 to 127.

    Raises:
        ValueError: levels is out of range.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(qsgd(levels=5), [3.0, -4.0]).numpy().tolist()
        [3.0, -4.0]

    References:
        arXiv:1610.02132, section 3.1 and lemma 3.1.
    """
    check_whole("levels", levels, 1, 127)
    bits = next(bits for bits in (2, 4, 8) if 2 * levels + 1 <= 2**bits)

    def step(gradient, state, context):
        norm = tf.norm(gradient)
        scaled = tf.math.divide_no_nan(tf.abs(gradient) * levels, norm)
        scaled = tf.minimum(scaled, levels)  # a quotient that was rounded up would not fit
        numbers = tf.sign(gradient) * stochastic_round(scaled, context.worker_seed)
        everyone = yield AllGather((pack_bits(numbers + levels, bits), norm))
        values = [(unpack_bits(packed, bits, gradient.shape) - levels, norm) for packed, norm in everyone]
        values = [tf.cast(numbers, tf.float32) * (norm / levels) for numbers, norm in values]
        return mean_of(values), numbers * (norm / levels), state

    return Scheme(step, per_tensor=True)


@named
def terngrad():
    """Return a scheme that sends -1, 0 or 1 times the largest magnitude, drawn at random. It is unbiased.

    sent = s sign(g_i) b_i with s = max |g|, and b_i = 1 with probability |g_i| / s. It uses an allgather of 2 bits per
    element.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(terngrad(), [0.0, -4.0]).numpy().tolist()
        [0.0, -4.0]

    References:
        arXiv:1705.07878, equations 1 to 3.
    """

    def step(gradient, state, context):
        scale = tf.reduce_max(tf.abs(gradient))
        goes = tf.random.stateless_uniform(gradient.shape, context.worker_seed) < tf.math.divide_no_nan(
            tf.abs(gradient), scale
        )
        numbers = tf.where(goes, tf.sign(gradient), 0.0)
        everyone = yield AllGather((pack_bits(numbers + 1, 2), scale))
        values = [tf.cast(unpack_bits(bits, 2, gradient.shape) - 1, tf.float32) * scale for bits, scale in everyone]
        return mean_of(values), numbers * scale, state

    return Scheme(step, per_tensor=True)


@named
def natural():
    """Return a scheme that rounds stochastically to a power of two. It is unbiased.

    For 2^k <= |g_i| < 2^(k+1), sent = sign(g_i) 2^(k+1) with probability |g_i| / 2^k - 1, else sign(g_i) 2^k. It uses
    an allgather of 9 bits per element. The variance is at most |g|^2 / 8.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(natural(), [0.25, -4.0]).numpy().tolist()
        [0.25, -4.0]

    References:
        arXiv:1905.10988, definition 1 and theorem 1.
    """

    def step(gradient, state, context):
        float_bits = tf.bitcast(tf.abs(gradient), tf.int32)  # 8 bits of exponent, then 23 of mantissa
        above = tf.random.stateless_uniform(gradient.shape, context.worker_seed) * 2.0**23 < tf.cast(
            float_bits % 2**23, tf.float32
        )
        exponents = tf.cast(float_bits // 2**23 + tf.cast(above, tf.int32), tf.uint8)
        bits = pack_bits(gradient >= 0, 1)
        everyone = yield AllGather((exponents, bits))
        values = [powers(*own, gradient.shape) for own in everyone]
        return mean_of(values), powers(exponents, bits, gradient.shape), state

    return Scheme(step)


def powers(exponents, bits, shape):
    """Return powers of two from a float32's exponents, with their signs; the exponent 0 stands for 0."""
    return unpack_signs(bits, shape) * tf.bitcast(tf.cast(exponents, tf.int32) * 2**23, tf.float32)
