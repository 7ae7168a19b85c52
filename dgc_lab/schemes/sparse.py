"""Schemes that send some of the elements: the largest, some at random, those above a threshold.

A ratio may be a ``tf.Variable``, which can change without a new trace.
"""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.dgc.algorithm import State, local_step
from dgc_lab.dgc.config import DGCConfig
from dgc_lab.dgc.thresholding import checked_ratio
from dgc_lab.schemes.elements import in_places, largest, mean_of_entries
from dgc_lab.schemes.memory import with_memory
from dgc_lab.schemes.naming import named
from dgc_lab.schemes.scheme import All, Mean, Scheme


@named
def masking(ratio: float = 0.01):
    """The largest elements, by a threshold for each tensor; the rest is dropped (lesson 4).

    sent = g where |g| is at least the threshold, else 0. An allgather of 8 bytes for an element that passes.

    ``ratio`` is the share that is sent, in [0, 1].

    Source: arXiv:1704.05021, without its residuals.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(masking(0.5), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]
    """

    def step(gradient, state, turn):
        indices, values = largest(gradient, ratio, turn.seed)
        everyone = yield All((indices, values))
        return mean_of_entries(everyone, gradient.shape), in_places(indices, values, gradient.shape), state

    return Scheme(step)


@named
def top_k(ratio: float = 0.01):
    """The largest elements; the rest waits in the memory.

    sent = top_k(g + e); e' = g + e - sent. An allgather of 8 bytes for an element that passes.

    ``ratio`` is the share that is sent, in [0, 1].

    Source: arXiv:1809.07599, Algorithm 1.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(top_k(0.5), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]
    """
    return with_memory(masking(ratio))


@named
def random_k(ratio: float = 0.01):
    """Elements at random, the same places on all workers, so that no index travels; the rest waits in the memory.

    sent = g + e in the places drawn, else 0; e' = g + e - sent. An allreduce of 4 bytes for each of them.

    ``ratio`` is the share that is sent, in [0, 1].

    Source: arXiv:1809.07599, definition 2.2 (rand-k).

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> float(tf.norm(sent_alone(random_k(0.5), [4.0, -4.0])))
        4.0
    """

    def step(gradient, state, turn):
        flat = tf.reshape(gradient, [-1])
        size = flat.shape[0]
        share = checked_ratio(tf.cast(ratio, tf.float64))
        count = tf.cast(tf.round(share * size), tf.int64)
        count = tf.minimum(tf.maximum(count, tf.cast(share > 0, tf.int64)), size)  # at least one, as of the largest
        # One of each stretch of about size / count elements: a shuffle of all would take longer than the rest.
        edges = tf.range(count + 1) * size // tf.maximum(count, 1)
        drawn = tf.random.stateless_uniform([count], turn.seed, dtype=tf.float64)
        drawn *= tf.cast(edges[1:] - edges[:-1], tf.float64)
        places = tf.cast(edges[:-1] + tf.cast(drawn, tf.int64), tf.int32)
        chosen = tf.gather(flat, places)
        mean = yield Mean(chosen)
        return in_places(places, mean, gradient.shape), in_places(places, chosen, gradient.shape), state

    return with_memory(Scheme(step))


@named
def threshold(limit: float = 0.001):
    """All elements of at least this magnitude; the rest waits in the memory.

    sent = x where |x| >= limit, else 0, of x = g + e; e' = x - sent. An allgather of 8 bytes for each of them.

    Source: Strom 2015, "Scalable distributed DNN training using commodity GPU cloud computing", without its bits.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(threshold(0.3), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]
    """

    def step(gradient, state, turn):
        flat = tf.reshape(gradient, [-1])
        indices = tf.cast(tf.where(tf.abs(flat) >= limit)[:, 0], tf.int32)
        values = tf.gather(flat, indices)
        everyone = yield All((indices, values))
        return mean_of_entries(everyone, gradient.shape), in_places(indices, values, gradient.shape), state

    return with_memory(Scheme(step))


@named
def dgc(ratio: float = 0.01, momentum: float = 0.9):
    """Deep Gradient Compression: velocities are added up, and cleared where they were sent (lesson 5).

    u' = m u + g; v' = v + u'; sent = v' where |v'| is at least the threshold; there both are cleared. An allgather of
    8 bytes for an element that passes.

    ``ratio`` is the share that is sent, in [0, 1]; ``momentum`` at least 0 and below 1.

    Source: arXiv:1712.01887, Algorithm 1 and equation 7.

    Example:
        >>> from dgc_lab.schemes import sent_alone
        >>> sent_alone(dgc(0.5), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]
    """
    config = DGCConfig(momentum=momentum)

    def init(gradient):
        return tf.zeros([tf.size(gradient)]), tf.zeros([tf.size(gradient)])

    def step(gradient, state, turn):
        state = State(*([kept] for kept in state))
        sent, state, _ = local_step([tf.reshape(gradient, [-1])], state, ratio, config, turn.seed)
        indices, values = sent.indices[0], sent.values[0]
        everyone = yield All((indices, values))
        kept = state.velocity[0], state.residual[0]
        return mean_of_entries(everyone, gradient.shape), in_places(indices, values, gradient.shape), kept

    return Scheme(step, init, momentum=momentum)
