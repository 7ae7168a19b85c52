"""Schemes that send the elements above a threshold that is given, estimated, or reused. Lesson 8."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.compression.dgc_scheme import mean_of_selected
from dgc_lab.compression.scheme import Scheme
from dgc_lab.compression.schemes.naming import named
from dgc_lab.compression.segment_search import SMALLEST_NORMAL
from dgc_lab.compression.selection import as_sent, elements_above
from dgc_lab.compression.thresholding import checked_ratio, vector_thresholds
from dgc_lab.compression.wrappers import with_error_feedback

FIRST_SHARE = 0.25  # of the elements, for the first of several fits


@named
def threshold(limit: float = 0.001):
    """Return a scheme that sends all elements of at least this magnitude, with error feedback.

    sent = x where |x| >= limit, else 0, of x = g + e; e' = x - sent. It uses an allgather of 8 bytes per element sent.

    Args:
        limit: smallest magnitude that is sent, at least 0.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(threshold(0.3), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]

    References:
        Strom 2015, "Scalable distributed DNN training using commodity GPU cloud computing" (Interspeech), without its
        rounding to 1 bit. Lesson 8.
    """

    def step(gradient, state, context):
        mean, own = yield from send_above(gradient, tf.constant([limit], tf.float32), context)
        return mean, own, state

    return with_error_feedback(Scheme(step, selects_non_finite=True))


@named
def threshold_reuse(ratio: float = 0.01, period: int = 32):
    """Return a scheme that sends the elements above a threshold found once in many steps, with error feedback.

    sent = x where |x| >= t, else 0, of x = g + e; e' = x - sent. t is the exact threshold of the whole vector in steps
    0, period, 2 period, ... and stays the same in between: more elements pass while residuals still grow. It uses an
    allgather of 8 bytes per element sent.

    Args:
        ratio: share of the elements to send when the threshold is new, in [0, 1].
        period: number of steps between two searches, at least 1.

    Raises:
        ValueError: period is below 1.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(threshold_reuse(0.5), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]

    References:
        arXiv:2201.07598 (Ok-Topk), section 3.1.3, without its sparse allreduce and its second selection from the sums.
    """
    check_whole("period", period, 1)

    def search(gradient, context):
        return vector_thresholds(gradient, context.sizes, checked_ratio(ratio), "exact", "global", 1.0, context.seed)[0]

    def step(gradient, state, context):
        count, limit = state
        limit = tf.cond(count % period == 0, lambda: search(gradient, context), lambda: limit)
        mean, own = yield from send_above(gradient, limit[None], context, ratio)
        return mean, own, (count + 1, limit)

    init = lambda gradient: (tf.zeros([], tf.int64), tf.zeros([]))  # noqa: E731
    return with_error_feedback(Scheme(step, init, selects_non_finite=True))


@named
def sidco(ratio: float = 0.01, stages: int = 2):
    """Return a scheme that sends the elements above a threshold fitted to their distribution, with error feedback.

    sent = x where |x| >= t, else 0, of x = g + e; e' = x - sent. Magnitudes are taken as exponentially distributed, so
    that t = mean |x| ln(1 / ratio) for each tensor; further stages fit the tail above the previous t in the same way.
    It uses an allgather of 8 bytes per element sent.

    Args:
        ratio: share of the elements to send, in [0, 1].
        stages: number of fits, at least 1. With several, the first one aims at a quarter of the elements.

    Raises:
        ValueError: stages is below 1.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(sidco(0.5, stages=1), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]

    References:
        arXiv:2101.10761 (SIDCo), fit of exponential distributions, with a fixed number of stages and a threshold of at
        most the largest magnitude, so that each tensor sends something.
    """
    check_whole("stages", stages, 1, 100)

    def step(gradient, state, context):
        share = tf.cast(checked_ratio(ratio), tf.float32)
        parts = tf.split(tf.abs(gradient), context.sizes)
        limits = tf.stack([fitted_threshold(part, share, stages) for part in parts])
        mean, own = yield from send_above(gradient, limits, context, ratio)
        return mean, own, state

    return with_error_feedback(Scheme(step, selects_non_finite=True))


def fitted_threshold(magnitudes: tf.Tensor, ratio: tf.Tensor, stages: int) -> tf.Tensor:
    """Return the threshold that a share of the magnitudes exceeds if their tail is exponential: float32 scalar."""
    first = tf.maximum(ratio, FIRST_SHARE) if stages > 1 else ratio
    rest = (ratio / first) ** (1 / max(stages - 1, 1))
    limit = tf.zeros([])
    for share in (first, *[rest] * (stages - 1)):
        above = magnitudes >= limit
        excess = tf.reduce_sum(tf.where(above, magnitudes - limit, 0.0))
        limit -= tf.math.divide_no_nan(excess, tf.math.count_nonzero(above, dtype=tf.float32)) * tf.math.log(share)
    limit = tf.minimum(limit, tf.reduce_max(magnitudes))
    # Zeros are never sent.
    limit = tf.where(limit > SMALLEST_NORMAL, limit, SMALLEST_NORMAL)  # also replaces NaN, unlike tf.maximum
    return tf.where(ratio > 0, limit, float("inf"))


def send_above(gradient: tf.Tensor, limits: tf.Tensor, context, ratio=None):
    """Ask for the mean of the elements above their tensor's threshold; return it, and this worker's part of it."""
    indices = elements_above(gradient, limits, context.sizes)
    values = as_sent(tf.gather(gradient, indices), context.value_type)
    return (yield from mean_of_selected(indices, values, gradient.shape[0], ratio))
