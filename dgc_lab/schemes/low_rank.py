"""Schemes that send a gradient's matrix as the product of thin ones."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.schemes.naming import named
from dgc_lab.schemes.scheme import Mean, Scheme


@named
def powersgd(rank: int = 2):
    """Two thin matrices whose product is near the gradient's matrix; allreduce carries both. With a memory.

    P = orthonormal(mean of M Q); Q' = mean of M^T P; update = P Q'^T, of M = g + e as a matrix; e' = M - update. One
    step of the power method, from the Q of the step before. An allreduce of 4 (rows + columns) bytes for each rank.
    A ValueError for a rank below 1.

    Source: arXiv:1905.13727, Algorithms 1 and 2.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(powersgd(rank=1), [[1.0, 2.0], [2.0, 4.0]]).numpy().round(3).tolist()
        [[1.0, 2.0], [2.0, 4.0]]
    """

    check_whole("rank", rank, 1)

    def init(gradient):
        rows, columns = matrix(gradient).shape
        return tf.random.stateless_normal([columns, min(rank, rows, columns)], (0, 0)), tf.zeros_like(gradient)

    def step(gradient, state, turn):
        right, memory = state
        corrected = gradient + memory
        left = yield Mean(matrix(corrected) @ right)
        left, _ = tf.linalg.qr(left)
        right = yield Mean(tf.matmul(matrix(corrected), left, transpose_a=True))
        update = tf.reshape(tf.matmul(left, right, transpose_b=True), gradient.shape)
        return update, update, (right, corrected - update)

    return Scheme(step, init)


def matrix(gradient):
    """The gradient with a column for each output: convolutions and dense layers have these in the last dimension."""
    return tf.reshape(gradient, [-1, gradient.shape[-1] if gradient.shape.rank else 1])
