"""Schemes that send a gradient's matrix as the product of two thin matrices."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.compression.scheme import AllReduceMean, Scheme
from dgc_lab.compression.schemes.naming import named


@named
def powersgd(rank: int = 2):
    """Return a scheme that sends two thin matrices whose product approximates the gradient, with error feedback.

    P = orthonormal(mean of M Q); Q' = mean of M^T P; update = P Q'^T, of M = g + e as a matrix; e' = M - update. This
    is one step of the power method, starting from the previous Q. It uses an allreduce of 4 ``rank`` (rows + columns)
    bytes.

    Args:
        rank: columns of the thin matrices, at least 1.

    Raises:
        ValueError: rank is below 1.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(powersgd(rank=1), [[1.0, 2.0], [2.0, 4.0]]).numpy().round(3).tolist()
        [[1.0, 2.0], [2.0, 4.0]]

    References:
        arXiv:1905.13727, Algorithms 1 and 2.
    """

    check_whole("rank", rank, 1)

    def init(gradient):
        rows, columns = matrix(gradient).shape
        return tf.random.stateless_normal([columns, min(rank, rows, columns)], (0, 0)), tf.zeros_like(gradient)

    def step(gradient, state, context):
        right, error = state
        corrected = gradient + error
        left, right = yield from thin_factors(matrix(corrected), right)
        update = tf.reshape(tf.matmul(left, right, transpose_b=True), gradient.shape)
        return update, update, (right, corrected - update)

    return Scheme(step, init, per_tensor=True)


def thin_factors(m, right):
    """Yield the questions of one step of the power method on ``m``, and return P and Q; P Q^T approximates m."""
    left = yield AllReduceMean(m @ right)
    left, _ = tf.linalg.qr(left)
    right = yield AllReduceMean(tf.matmul(m, left, transpose_a=True))
    return left, right


def matrix(gradient):
    """Return the gradient with a column for each output, the last dimension of convolutions and dense layers."""
    return tf.reshape(gradient, [-1, gradient.shape[-1] if gradient.shape.rank else 1])
