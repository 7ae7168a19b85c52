"""1-bit Adam: Adam's step as a scheme, so that plain SGD applies it."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.compression.scheme import AllReduceMean, Scheme
from dgc_lab.compression.schemes.naming import named
from dgc_lab.compression.schemes.signs import ef_sign


@named
def one_bit_adam(warm_up: int = 300, momentum: float = 0.9, decay: float = 0.999):
    """Return a scheme whose update is Adam's: uncompressed at first, then signs of the momentum (1-bit Adam).

    u = m v + (1 - m) g. In the warm-up: v' = mean of u; s' = d s + (1 - d) (mean of g)^2. Then s stays, and v' = mean
    of c(u + e) with c as in `ef_sign`; e' = u + e - c(u + e). Update: v' / (sqrt(s') + 1e-8). It uses an allreduce of 4
    bytes per element, then an allgather of 1 bit.

    Compress all tensors with it (``dense_below=0, dense_vectors=False``): uncompressed ones are trained with SGD, at
    Adam's small rate. Differences from the paper: the mean is not compressed again, since no server sends it, and after
    the warm-up no sqrt(s) is below its mean in the tensor. Bits give all elements the same magnitude, so those with
    hardly any gradient would take huge steps.

    Args:
        warm_up: steps at the start that send uncompressed gradients, at least 1.
        momentum: m, at least 0 and below 1.
        decay: d, at least 0 and below 1.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> scheme = one_bit_adam(warm_up=100)
        >>> scheme.dense_steps, scheme.momentum
        (100, 0.9)

    References:
        arXiv:2102.02888, Algorithm 1.
    """
    check_whole("warm_up", warm_up, 1)

    def init(gradient):
        return tuple(tf.zeros_like(gradient) for _ in range(3))

    def step(gradient, state, context):
        velocity, square, error = state
        own = momentum * velocity + (1 - momentum) * gradient
        if context.uncompressed:
            mean = yield AllReduceMean(gradient)
            velocity = momentum * velocity + (1 - momentum) * mean
            square = decay * square + (1 - decay) * mean**2
        else:
            velocity, own, (error, _) = yield from ef_sign().step(own, (error, ()), context)
        scales = tf.sqrt(square) + 1e-8
        if not context.uncompressed:
            scales = tf.maximum(scales, tf.reduce_mean(scales))
        return velocity / scales, own / scales, (velocity, square, error)

    return Scheme(step, init, momentum=momentum, per_tensor=True, dense_steps=warm_up)
