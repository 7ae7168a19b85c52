"""Schemes whose workers send the same positions: drawn with a common seed, or one worker's largest. Lesson 8.

A ratio may be a ``tf.Variable``, which can change without a new trace.
"""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.compression.elements import pack_bits, unpacked
from dgc_lab.compression.scheme import AllGather, AllReduceMean, Scheme, SparseVector
from dgc_lab.compression.schemes.naming import named
from dgc_lab.compression.schemes.quantized import from_integers, to_integers
from dgc_lab.compression.segment_search import largest_elements
from dgc_lab.compression.selection import Rule, select
from dgc_lab.compression.thresholding import checked_ratio
from dgc_lab.compression.wrappers import with_error_feedback

DRAWN = 5  # positions that `cocktail` draws for each one that it sends; its authors' code draws 10 % and sends 2 %
SCALE_BLOCK = 128  # values of `cocktail` that share a scale, as in the authors' code


@named
def random_k(ratio: float = 0.01):
    """Return a scheme that sends random elements, with error feedback.

    All workers draw the same positions, so no index is sent: sent = g + e at these positions, else 0;
    e' = g + e - sent. It uses an allreduce of 4 bytes per element sent.

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
        indices = random_positions(gradient.shape[0], checked_ratio(ratio), context.seed)
        mean, own = yield from mean_at(gradient, indices)
        return mean, own, state

    return with_error_feedback(Scheme(step))


def mean_at(gradient: tf.Tensor, indices: tf.Tensor):
    """Ask for the mean at positions that are the same on all workers; return it and this worker's part of it."""
    values, size = tf.gather(gradient, indices), gradient.shape[0]
    mean = yield AllReduceMean(values)
    return SparseVector([(indices, mean)], size), SparseVector([(indices, values)], size)


def random_positions(size: int, ratio: tf.Tensor, seed) -> tf.Tensor:
    """Return random positions in a vector, int32, ascending and distinct: one from each of its stretches."""
    count = tf.cast(tf.round(ratio * size), tf.int64)
    count = tf.minimum(tf.maximum(count, tf.cast(ratio > 0, tf.int64)), size)  # at least one, as for the largest
    # Stretches of about size / count elements: a shuffle of all would take longer than the rest.
    edges = tf.range(count + 1) * size // tf.maximum(count, 1)
    drawn = tf.random.stateless_uniform([count], seed, dtype=tf.float64)
    drawn *= tf.cast(edges[1:] - edges[:-1], tf.float64)
    return tf.cast(edges[:-1] + tf.cast(drawn, tf.int64), tf.int32)


@named
def leader_k(ratio: float = 0.01):
    """Return a scheme that sends the elements that are largest on one worker, with error feedback.

    Workers lead in turns, one step each: all send x = g + e at the positions where the leader's |x| is at least its
    threshold; e' = x - sent. So the mean has equally many elements with 4 workers and with 1024. It uses an allgather
    of the leader's positions, 4 bytes each, and an allreduce of 4 bytes per element sent.

    Args:
        ratio: share of the elements to send, in [0, 1].

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(leader_k(0.5), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]

    References:
        arXiv:2104.11125 (ScaleCom), cyclic local top-k (CLT-k), without the low-pass filter of its residual.
    """

    def step(gradient, turn, context):
        nothing = tf.zeros([0], tf.int32)
        leads = turn % context.workers == context.worker
        own = tf.cond(leads, lambda: select(gradient, Rule(ratio), context)[0], lambda: nothing)
        everyone = yield AllGather((own,))
        indices = tf.concat([positions for (positions,) in everyone], 0)
        mean, own = yield from mean_at(gradient, indices)
        return mean, own, turn + 1

    return with_error_feedback(Scheme(step, lambda gradient: tf.zeros([], tf.int64)))


@named
def cocktail(ratio: float = 0.01):
    """Return a scheme that combines random positions, the largest elements and 4 bits, with error feedback.

    All workers draw the same 5 ratio n positions; each sends the largest fifth of x = g + e there, as integers from
    -7 to 7 times a scale for each 128 of them; e' = x - sent. It uses an allgather of 9 bits per element sent, 5 of
    which say where among the drawn positions it is, and 4 bytes per scale.

    Args:
        ratio: share of the elements to send, in [0, 1].

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(cocktail(0.5), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]

    References:
        Wang et al. 2023, "CocktailSGD: fine-tuning foundation models over 500Mbps networks" (ICML), for gradients in
        place of weights, without the second compression of the mean.
    """

    def step(gradient, state, context):
        size, share = gradient.shape[0], checked_ratio(ratio)
        drawn = random_positions(size, tf.minimum(DRAWN * share, 1.0), context.seed)
        values = tf.gather(gradient, drawn)
        largest = largest_elements(tf.abs(values), tf.maximum(share, 1 / DRAWN))
        mask = tf.scatter_nd(largest[:, None], tf.ones_like(largest), tf.shape(drawn))
        message = (pack_bits(mask, 1), *to_integers(tf.gather(values, largest), 4, SCALE_BLOCK))
        everyone = yield AllGather(message)
        *entries, own = [cocktail_entries(drawn, *one) for one in (*everyone, message)]
        entries = [(indices, values / context.workers) for indices, values in entries]
        return SparseVector(entries, size), SparseVector([own], size), state

    return with_error_feedback(Scheme(step))


def cocktail_entries(drawn, mask, packed, scales):
    """Return the positions and values of a message of `cocktail`."""
    indices = tf.gather(drawn, tf.where(unpacked(mask, 1)[: tf.size(drawn)])[:, 0])
    return indices, from_integers(packed, scales, 4, SCALE_BLOCK, tf.size(indices))
