"""Schemes that send some of the elements: the largest, random ones, those above a threshold.

A ratio may be a ``tf.Variable``, which can change without a new trace.
"""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.dgc_scheme import scheme_of
from dgc_lab.compression.naming import named
from dgc_lab.compression.scheme import AllReduceMean, Scheme, SparseMean, SparseVector
from dgc_lab.compression.selection import Rule, as_sent, elements_above, select
from dgc_lab.compression.thresholding import checked_ratio
from dgc_lab.compression.wrappers import with_error_feedback


@named
def masking(ratio: float = 0.01):
    """Return a scheme that sends the largest elements, by a threshold for each tensor, and drops the rest (lesson 4).

    sent = g where |g| is at least the threshold, else 0. An allgather of 8 bytes per element sent.

    Args:
        ratio: share of the elements to send, in [0, 1].

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(masking(0.5), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]

    References:
        arXiv:1704.05021, without its residuals.
    """

    def step(gradient, state, context):
        indices, values = select(gradient, Rule(ratio), context)
        mean = yield SparseMean(indices, values, gradient.shape[0], ratio)
        return mean, SparseVector([(indices, values)], gradient.shape[0]), state

    return Scheme(step, selects_non_finite=True)


@named
def top_k(ratio: float = 0.01):
    """Return a scheme that sends the largest elements, with error feedback.

    sent = top_k(g + e); e' = g + e - sent. An allgather of 8 bytes per element sent.

    Args:
        ratio: share of the elements to send, in [0, 1].

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(top_k(0.5), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]

    References:
        arXiv:1809.07599, Algorithm 1.
    """
    return with_error_feedback(masking(ratio))


@named
def random_k(ratio: float = 0.01):
    """Return a scheme that sends random elements, with error feedback.

    All workers draw the same positions, so no index is sent: sent = g + e at these positions, else 0;
    e' = g + e - sent. An allreduce of 4 bytes per element sent.

    Args:
        ratio: share of the elements to send, in [0, 1].

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> float(tf.norm(sent_alone(random_k(0.5), [4.0, -4.0])))
        4.0

    References:
        arXiv:1809.07599, definition 2.2 (rand-k).
    """

    def step(gradient, state, context):
        size = gradient.shape[0]
        share = checked_ratio(ratio)
        count = tf.cast(tf.round(share * size), tf.int64)
        count = tf.minimum(tf.maximum(count, tf.cast(share > 0, tf.int64)), size)  # at least one, as for the largest
        # One of each stretch of about size / count elements: a shuffle of all would take longer than the rest.
        edges = tf.range(count + 1) * size // tf.maximum(count, 1)
        drawn = tf.random.stateless_uniform([count], context.seed, dtype=tf.float64)
        drawn *= tf.cast(edges[1:] - edges[:-1], tf.float64)
        indices = tf.cast(edges[:-1] + tf.cast(drawn, tf.int64), tf.int32)
        values = tf.gather(gradient, indices)
        mean = yield AllReduceMean(values)
        return SparseVector([(indices, mean)], size), SparseVector([(indices, values)], size), state

    return with_error_feedback(Scheme(step))


@named
def threshold(limit: float = 0.001):
    """Return a scheme that sends all elements of at least this magnitude, with error feedback.

    sent = x where |x| >= limit, else 0, of x = g + e; e' = x - sent. An allgather of 8 bytes per element sent.

    Args:
        limit: smallest magnitude that is sent, at least 0.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(threshold(0.3), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]

    References:
        Strom 2015, "Scalable distributed DNN training using commodity GPU cloud computing" (Interspeech), without its
        bits. Lesson 8.
    """

    def step(gradient, state, context):
        indices = elements_above(gradient, tf.constant([limit], tf.float32), context.sizes)
        values = as_sent(tf.gather(gradient, indices), context.value_type)
        mean = yield SparseMean(indices, values, gradient.shape[0])
        return mean, SparseVector([(indices, values)], gradient.shape[0]), state

    return with_error_feedback(Scheme(step, selects_non_finite=True))


@named
def dgc(ratio: float = 0.01, momentum: float = 0.9):
    """Return Deep Gradient Compression: velocities are accumulated, and cleared where they were sent (lesson 5).

    u' = m u + g; v' = v + u'; sent = v' where |v'| is at least the threshold; there both are cleared. An allgather of
    8 bytes per element sent.

    Args:
        ratio: share of the elements to send, in [0, 1].
        momentum: at least 0 and below 1.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(dgc(0.5), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]

    References:
        arXiv:1712.01887, Algorithm 1, equation 7 and appendix B.
    """
    return scheme_of(DGCConfig(momentum=momentum), ratio)
