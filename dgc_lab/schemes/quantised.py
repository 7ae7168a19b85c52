"""Schemes that send every element in fewer bits: shorter floats, whole numbers, signs, rounding by chance. Lesson 8."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.schemes.elements import chance, mean_of, pack_bits, round_by_chance, unpack_bits
from dgc_lab.schemes.memory import with_memory
from dgc_lab.schemes.naming import named
from dgc_lab.schemes.scheme import All, Mean, Scheme


@named
def dense():
    """Whole gradients: what all others are measured against.

    update = mean of g over the workers. An allreduce of 4 bytes an element.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(dense(), [0.25, -0.5]).numpy().tolist()
        [0.25, -0.5]
    """

    def step(gradient, state, turn):
        mean = yield Mean(gradient)
        return mean, gradient, state

    return Scheme(step)


@named
def float16():
    """Whole gradients in 16 bits, of which 11 are digits, added up in 16 bits: from 6e-8 to 65 504.

    update = mean of float16(g). An allreduce of 2 bytes an element. A sum that is larger is infinity, as in Horovod's
    own compression, and the next step finds its gradients not finite.

    Source: arXiv:1710.03740, section 3.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(float16(), [0.25, 1e-9]).numpy().tolist()
        [0.25, 0.0]
    """

    def step(gradient, state, turn):
        short = tf.cast(gradient, tf.float16)
        mean = yield Mean(short)
        return tf.cast(mean, tf.float32), tf.cast(short, tf.float32), state

    return Scheme(step)


@named
def bfloat16():
    """Whole gradients in 16 bits, of which 8 are digits: as wide a range as float32.

    update = mean of bfloat16(g), added up in float32. An allgather of 2 bytes an element, since Horovod's allreduce
    for TensorFlow knows no bfloat16.

    Source: arXiv:1905.12322, section 2.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(bfloat16(), [0.25, 1.001]).numpy().tolist()
        [0.25, 1.0]
    """

    def step(gradient, state, turn):
        short = tf.cast(gradient, tf.bfloat16)
        everyone = yield All((short,))
        return mean_of([tf.cast(own, tf.float32) for (own,) in everyone]), tf.cast(short, tf.float32), state

    return Scheme(step)


@named
def int8():
    """Whole numbers from -127 to 127 times one scale for each tensor, the nearest ones.

    q = round(g / s) with s = max |g| / 127; update = mean of s q. An allgather of a byte an element.

    Source: arXiv:1712.05877, section 2.1, without its zero point.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(int8(), [254.0, 1.2]).numpy().tolist()
        [254.0, 2.0]
    """

    def step(gradient, state, turn):
        scale = tf.reduce_max(tf.abs(gradient)) / 127
        numbers = tf.cast(tf.round(tf.math.divide_no_nan(gradient, scale)), tf.int8)
        everyone = yield All((numbers, scale))
        values = [tf.cast(numbers, tf.float32) * scale for numbers, scale in everyone]
        return mean_of(values), tf.cast(numbers, tf.float32) * scale, state

    return Scheme(step)


@named
def sign():
    """Signs, a bit each; all follow the sign of the majority. Biased, and without memory.

    update = sign(sum of sign(g)): a gradient of 0 votes +1, and a tie moves nothing. An allgather of a bit an element.

    Source: arXiv:1802.04434, Algorithm 3 (majority vote).

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(sign(), [0.25, -0.5]).numpy().tolist()
        [1.0, -1.0]
    """

    def step(gradient, state, turn):
        bits = pack_bits(gradient >= 0, 1)
        everyone = yield All((bits,))
        votes = tf.add_n([signs(bits, gradient.shape) for (bits,) in everyone])
        return tf.sign(votes), signs(bits, gradient.shape), state

    return Scheme(step)


def signs(bits, shape):
    """1 and -1 from packed bits."""
    return 2.0 * tf.cast(unpack_bits(bits, 1, shape), tf.float32) - 1.0


@named
def ef_sign():
    """Signs times the mean magnitude, and a memory of what that leaves.

    c(x) = mean |x| sign(x); sent = c(g + e); e' = g + e - sent. An allgather of a bit an element.

    Source: arXiv:1901.09847, Algorithm 1.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(ef_sign(), [0.25, -0.75]).numpy().tolist()
        [0.5, -0.5]
    """

    def step(gradient, state, turn):
        bits, scale = pack_bits(gradient >= 0, 1), tf.reduce_mean(tf.abs(gradient))
        everyone = yield All((bits, scale))
        values = [scale * signs(bits, gradient.shape) for bits, scale in everyone]
        return mean_of(values), scale * signs(bits, gradient.shape), state

    return with_memory(Scheme(step))


@named
def signum(momentum: float = 0.9):
    """The sign of each worker's momentum; the majority decides.

    v' = m v + (1 - m) g; update = sign(sum of sign(v')), with votes as in `sign`. An allgather of a bit an element.

    Source: arXiv:1802.04434, Algorithm 2 (SIGNUM).

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(signum(), [0.25, -0.5]).numpy().tolist()
        [1.0, -1.0]
    """

    def step(gradient, velocity, turn):
        velocity = momentum * velocity + (1 - momentum) * gradient
        update, own, _ = yield from sign().step(velocity, (), turn)
        return update, own, velocity

    return Scheme(step, tf.zeros_like, momentum=momentum)


@named
def one_bit():
    """A bit an element and two values: the means of what is at least 0 and of what is below. With a memory.

    sent = mean of the elements of its sign, of x = g + e; e' = x - sent. An allgather of a bit an element.

    Source: Seide et al. 2014, "1-Bit Stochastic Gradient Descent", with one pair of values for a tensor, not a column.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(one_bit(), [1.0, 3.0, -1.0]).numpy().tolist()
        [2.0, 2.0, -1.0]
    """

    def step(gradient, state, turn):
        above = gradient >= 0
        both = [tf.where(mask, gradient, 0.0) for mask in (~above, above)]
        counts = [tf.math.count_nonzero(mask, dtype=tf.float32) for mask in (~above, above)]
        levels = tf.math.divide_no_nan(tf.stack([tf.reduce_sum(part) for part in both]), tf.stack(counts))
        everyone = yield All((pack_bits(above, 1), levels))
        values = [tf.gather(levels, unpack_bits(bits, 1, gradient.shape)) for bits, levels in everyone]
        return mean_of(values), tf.gather(levels, tf.cast(above, tf.int32)), state

    return with_memory(Scheme(step))


@named
def qsgd(levels: int = 4):
    """Magnitudes rounded by chance to multiples of norm / levels: right in the mean.

    sent = |g| sign(g_i) l_i / s, where l_i is s |g_i| / |g| rounded up or down by chance. An allgather of 2, 4 or 8
    bits an element. The variance is at most min(n / s^2, sqrt(n) / s) times |g|^2 for n elements.
    A ValueError for other levels than 1 to 127.

    Source: arXiv:1610.02132, section 3.1 and lemma 3.1.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(qsgd(levels=5), [3.0, -4.0]).numpy().tolist()
        [3.0, -4.0]
    """
    check_whole("levels", levels, 1, 127)
    bits = next(bits for bits in (2, 4, 8) if 2 * levels + 1 <= 2**bits)

    def step(gradient, state, turn):
        norm = tf.norm(gradient)
        scaled = tf.math.divide_no_nan(tf.abs(gradient) * levels, norm)
        scaled = tf.minimum(scaled, levels)  # a quotient that was rounded up would not fit
        numbers = tf.sign(gradient) * round_by_chance(scaled, turn.own_seed)
        everyone = yield All((pack_bits(numbers + levels, bits), norm))
        values = [(unpack_bits(packed, bits, gradient.shape) - levels, norm) for packed, norm in everyone]
        values = [tf.cast(numbers, tf.float32) * (norm / levels) for numbers, norm in values]
        return mean_of(values), numbers * (norm / levels), state

    return Scheme(step)


@named
def terngrad():
    """-1, 0 or 1 times the largest magnitude, by chance: right in the mean.

    sent = s sign(g_i) b_i with s = max |g|, and b_i = 1 with probability |g_i| / s. An allgather of 2 bits an element.

    Source: arXiv:1705.07878, equations 1 to 3.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(terngrad(), [0.0, -4.0]).numpy().tolist()
        [0.0, -4.0]
    """

    def step(gradient, state, turn):
        scale = tf.reduce_max(tf.abs(gradient))
        goes = chance(gradient, turn.own_seed) < tf.math.divide_no_nan(tf.abs(gradient), scale)
        numbers = tf.where(goes, tf.sign(gradient), 0.0)
        everyone = yield All((pack_bits(numbers + 1, 2), scale))
        values = [tf.cast(unpack_bits(bits, 2, gradient.shape) - 1, tf.float32) * scale for bits, scale in everyone]
        return mean_of(values), numbers * scale, state

    return Scheme(step)


@named
def natural():
    """Powers of two, the one above or the one below by chance: right in the mean.

    For 2^k <= |g_i| < 2^(k+1), sent = sign(g_i) 2^(k+1) with probability |g_i| / 2^k - 1, else sign(g_i) 2^k. An
    allgather of a byte and a bit an element. The variance is at most |g|^2 / 8.

    Source: arXiv:1905.10988, definition 1 and theorem 1.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(natural(), [0.25, -4.0]).numpy().tolist()
        [0.25, -4.0]
    """

    def step(gradient, state, turn):
        float_bits = tf.bitcast(tf.abs(gradient), tf.int32)  # 8 bits of exponent, then 23 of how far it is to the next
        above = chance(gradient, turn.own_seed) * 2.0**23 < tf.cast(float_bits % 2**23, tf.float32)
        exponents = tf.cast(float_bits // 2**23 + tf.cast(above, tf.int32), tf.uint8)
        bits = pack_bits(gradient >= 0, 1)
        everyone = yield All((exponents, bits))
        return (
            mean_of([powers(*own, gradient.shape) for own in everyone]),
            powers(exponents, bits, gradient.shape),
            state,
        )

    return Scheme(step)


def powers(exponents, bits, shape):
    """Powers of two from a float32's exponents, with their signs; the exponent 0 stands for 0."""
    return signs(bits, shape) * tf.bitcast(tf.cast(exponents, tf.int32) * 2**23, tf.float32)
