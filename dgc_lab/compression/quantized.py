"""Schemes that send every element in fewer bits: shorter floats, integers, signs, stochastic rounding. Lesson 8."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.compression.elements import mean_of, pack_bits, stochastic_round, unpack_bits
from dgc_lab.compression.naming import named
from dgc_lab.compression.scheme import AllGather, AllReduceMean, Scheme
from dgc_lab.compression.wrappers import with_error_feedback


@named
def dense():
    """Return a scheme without compression, the baseline of all others.

    update = mean of g over the workers. An allreduce of 4 bytes per element.

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

    update = mean of float16(g), added in 16 bits. An allreduce of 2 bytes per element. A larger sum is infinity, as in
    Horovod's own compression, and the next step then finds non-finite gradients.

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

    update = mean of bfloat16(g), added in float32. An allgather of 2 bytes per element, since Horovod's allreduce for
    TensorFlow does not support bfloat16.

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
def int8():
    """Return a scheme that rounds to the nearest integer from -127 to 127 times one scale for each tensor.

    q = round(g / s) with s = max |g| / 127; update = mean of s q. An allgather of 1 byte per element.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(int8(), [254.0, 1.2]).numpy().tolist()
        [254.0, 2.0]

    References:
        arXiv:1712.05877, section 2.1, without its zero point.
    """

    def step(gradient, state, context):
        scale = tf.reduce_max(tf.abs(gradient)) / 127
        numbers = tf.cast(tf.round(tf.math.divide_no_nan(gradient, scale)), tf.int8)
        everyone = yield AllGather((numbers, scale))
        values = [tf.cast(numbers, tf.float32) * scale for numbers, scale in everyone]
        return mean_of(values), tf.cast(numbers, tf.float32) * scale, state

    return Scheme(step, per_tensor=True)


@named
def sign():
    """Return a scheme that sends signs and follows the majority. It is biased and has no error feedback.

    update = sign(sum of sign(g)): a gradient of 0 votes +1, and a tie moves nothing. An allgather of 1 bit per element.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(sign(), [0.25, -0.5]).numpy().tolist()
        [1.0, -1.0]

    References:
        arXiv:1802.04434, Algorithm 3 (majority vote).
    """

    def step(gradient, state, context):
        bits = pack_bits(gradient >= 0, 1)
        everyone = yield AllGather((bits,))
        votes = tf.add_n([signs(bits, gradient.shape) for (bits,) in everyone])
        return tf.sign(votes), signs(bits, gradient.shape), state

    return Scheme(step)


def signs(bits, shape):
    """Return 1 and -1 from packed bits."""
    return 2.0 * tf.cast(unpack_bits(bits, 1, shape), tf.float32) - 1.0


@named
def ef_sign():
    """Return a scheme that sends signs times the mean magnitude, with error feedback.

    c(x) = mean |x| sign(x); sent = c(g + e); e' = g + e - sent. An allgather of 1 bit per element.

    Source: arXiv:1901.09847, Algorithm 1.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(ef_sign(), [0.25, -0.75]).numpy().tolist()
        [0.5, -0.5]
    """

    def step(gradient, state, context):
        bits, scale = pack_bits(gradient >= 0, 1), tf.reduce_mean(tf.abs(gradient))
        everyone = yield AllGather((bits, scale))
        values = [scale * signs(bits, gradient.shape) for bits, scale in everyone]
        return mean_of(values), scale * signs(bits, gradient.shape), state

    return with_error_feedback(Scheme(step, per_tensor=True))


@named
def signum(momentum: float = 0.9):
    """Return a scheme that sends the sign of each worker's momentum and follows the majority.

    v' = m v + (1 - m) g; update = sign(sum of sign(v')), with votes as in `sign`. An allgather of 1 bit per element.

    Source: arXiv:1802.04434, Algorithm 2 (SIGNUM).

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(signum(), [0.25, -0.5]).numpy().tolist()
        [1.0, -1.0]
    """

    def step(gradient, velocity, context):
        velocity = momentum * velocity + (1 - momentum) * gradient
        update, own, _ = yield from sign().step(velocity, (), context)
        return update, own, velocity

    return Scheme(step, tf.zeros_like, momentum=momentum)


@named
def one_bit():
    """Return a scheme that sends 1 bit per element and the mean of each sign's elements, with error feedback.

    sent = mean of the elements of the same sign, of x = g + e; e' = x - sent. An allgather of 1 bit per element.

    Source: Seide et al. 2014, "1-Bit Stochastic Gradient Descent", with one pair of values for a tensor, not a column.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(one_bit(), [1.0, 3.0, -1.0]).numpy().tolist()
        [2.0, 2.0, -1.0]
    """

    def step(gradient, state, context):
        above = gradient >= 0
        both = [tf.where(mask, gradient, 0.0) for mask in (~above, above)]
        counts = [tf.math.count_nonzero(mask, dtype=tf.float32) for mask in (~above, above)]
        levels = tf.math.divide_no_nan(tf.stack([tf.reduce_sum(part) for part in both]), tf.stack(counts))
        everyone = yield AllGather((pack_bits(above, 1), levels))
        values = [tf.gather(levels, unpack_bits(bits, 1, gradient.shape)) for bits, levels in everyone]
        return mean_of(values), tf.gather(levels, tf.cast(above, tf.int32)), state

    return with_error_feedback(Scheme(step, per_tensor=True))


@named
def qsgd(levels: int = 4):
    """Return a scheme that rounds magnitudes stochastically to multiples of norm / levels. It is unbiased.

    sent = |g| sign(g_i) l_i / s, where l_i is s |g_i| / |g| rounded stochastically. An allgather of 2, 4 or 8 bits per
    element. The variance is at most min(n / s^2, sqrt(n) / s) times |g|^2 for n elements.

    Args:
        levels: number of quantization levels above 0, 1 to 127.

    Raises:
        ValueError: levels is out of range.

    Source: arXiv:1610.02132, section 3.1 and lemma 3.1.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(qsgd(levels=5), [3.0, -4.0]).numpy().tolist()
        [3.0, -4.0]
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

    sent = s sign(g_i) b_i with s = max |g|, and b_i = 1 with probability |g_i| / s. An allgather of 2 bits per element.

    Source: arXiv:1705.07878, equations 1 to 3.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(terngrad(), [0.0, -4.0]).numpy().tolist()
        [0.0, -4.0]
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

    For 2^k <= |g_i| < 2^(k+1), sent = sign(g_i) 2^(k+1) with probability |g_i| / 2^k - 1, else sign(g_i) 2^k. An
    allgather of 9 bits per element. The variance is at most |g|^2 / 8.

    Source: arXiv:1905.10988, definition 1 and theorem 1.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(natural(), [0.25, -4.0]).numpy().tolist()
        [0.25, -4.0]
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
    return signs(bits, shape) * tf.bitcast(tf.cast(exponents, tf.int32) * 2**23, tf.float32)
