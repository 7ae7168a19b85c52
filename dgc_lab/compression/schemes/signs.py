"""Schemes that send the sign of every element, 1 bit each. Lesson 8."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.compression.elements import mean_of, pack_bits, unpack_bits, unpack_signs
from dgc_lab.compression.scheme import AllGather, Scheme
from dgc_lab.compression.schemes.naming import named
from dgc_lab.compression.wrappers import with_error_feedback


@named
def sign():
    """Return a scheme that sends signs and follows the majority. It is biased and has no error feedback.

    update = sign(sum of sign(g)): a gradient of 0 votes +1, and a tie moves nothing. It uses an allgather of 1 bit per
    element.

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
        votes = tf.add_n([unpack_signs(bits, gradient.shape) for (bits,) in everyone])
        return tf.sign(votes), unpack_signs(bits, gradient.shape), state

    return Scheme(step)


@named
def ef_sign():
    """Return a scheme that sends signs times the mean magnitude, with error feedback.

    c(x) = mean |x| sign(x); sent = c(g + e); e' = g + e - sent. It uses an allgather of 1 bit per element.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(ef_sign(), [0.25, -0.75]).numpy().tolist()
        [0.5, -0.5]

    References:
        arXiv:1901.09847, Algorithm 1.
    """

    def step(gradient, state, context):
        bits, scale = pack_bits(gradient >= 0, 1), tf.reduce_mean(tf.abs(gradient))
        everyone = yield AllGather((bits, scale))
        values = [scale * unpack_signs(bits, gradient.shape) for bits, scale in everyone]
        return mean_of(values), scale * unpack_signs(bits, gradient.shape), state

    return with_error_feedback(Scheme(step, per_tensor=True))


@named
def signum(momentum: float = 0.9):
    """Return a scheme that sends the sign of each worker's momentum and follows the majority.

    v' = m v + (1 - m) g; update = sign(sum of sign(v')), with votes as in `sign`. It uses an allgather of 1 bit per
    element.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(signum(), [0.25, -0.5]).numpy().tolist()
        [1.0, -1.0]

    References:
        arXiv:1802.04434, Algorithm 2 (SIGNUM).
    """

    def step(gradient, velocity, context):
        velocity = momentum * velocity + (1 - momentum) * gradient
        update, own, _ = yield from sign().step(velocity, (), context)
        return update, own, velocity

    return Scheme(step, tf.zeros_like, momentum=momentum)


@named
def one_bit():
    """Return a scheme that sends 1 bit per element and the mean of each sign's elements, with error feedback.

    sent_i = mean of all elements of x = g + e that have the sign of x_i, where 0 counts as positive; e' = x - sent.
    It uses an allgather of 1 bit per element.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(one_bit(), [0.0, 3.0, -1.0]).numpy().tolist()
        [1.5, 1.5, -1.0]

    References:
        Seide et al. 2014, "1-Bit Stochastic Gradient Descent", with one pair of values per tensor instead of per
        column.
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
