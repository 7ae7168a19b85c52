"""Schemes that adapt to the gradient: the share they send, the levels they round to, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import tensorflow as tf

from dgc_lab.common import check_number, check_whole
from dgc_lab.compression.dgc_scheme import mean_of_selected
from dgc_lab.compression.elements import mean_of, pack_bits, unpack_bits
from dgc_lab.compression.scheme import AllGather, AllReduceMean, Scheme
from dgc_lab.compression.schemes.naming import named
from dgc_lab.compression.schemes.sparse import masking
from dgc_lab.compression.segment_search import elements_to_keep
from dgc_lab.compression.selection import as_sent
from dgc_lab.compression.thresholding import checked_ratio
from dgc_lab.compression.wrappers import checked, with_error_feedback

# First and smallest value of an adaptive ratio, and the factor by which it changes.
FIRST, LEAST, CHANGE = 0.1, 0.001, 1.1


def adaptive(make: Callable[..., Scheme], keep: float = 0.5) -> Scheme:
    """Return a scheme whose ratio grows while it loses too much of the gradient, and else shrinks.

    With kept = mean of |sent|^2 / mean of |g|^2 over the workers: ratio' = 1.1 ratio if kept < keep, else ratio / 1.1,
    between 0.001 and 1. An allreduce of 8 bytes per step adds up both squared norms.

    Args:
        make: function of a ratio that returns a scheme, such as `masking`. Error feedback goes around the result.
        keep: share of the squared norm to keep, in [0, 1].

    Raises:
        ValueError: make is not a function, or keep is out of range.

    Example:
        >>> adaptive(masking, keep=0.3).name
        'masking, adaptive to keep 0.3'

    References:
        arXiv:2305.12201 (GraVAC), which compares kept at some ratios from time to time instead.
    """
    if not callable(make):
        raise ValueError(f"make must be a function of a ratio, got {make!r}")
    check_number("keep", keep, "in [0, 1]")
    first = make(FIRST)

    def init(gradient):
        return first.init(gradient), tf.constant(FIRST)

    def step(gradient, state, context):
        inner, ratio = state
        update, own, inner = yield from checked(make(ratio), gradient, inner, context)
        energies = [tf.reduce_sum(tf.convert_to_tensor(part) ** 2) for part in (own, gradient)]
        sent, whole = tf.unstack((yield AllReduceMean(tf.stack(energies))))
        ratio *= tf.where(sent < keep * whole, CHANGE, 1 / CHANGE)
        return update, own, (inner, tf.clip_by_value(ratio, LEAST, 1.0))

    name = first.name.partition(":")[0]
    return replace(first, step=step, init=init, name=name and f"{name}, adaptive to keep {keep}")


@named
def gravac(keep: float = 0.2):
    """Return a scheme that sends as many of the largest elements as it takes to keep a share of the squared norm.

    sent = top_k(g + e), where k grows by a tenth if |sent|^2 < keep |g + e|^2, and else shrinks; e' = g + e - sent. It
    uses an allgather of 8 bytes per element sent, and an allreduce of 8 bytes. See `adaptive`.

    Args:
        keep: share of the squared norm to keep, in [0, 1].

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(gravac(), [0.25, -0.5]).numpy().tolist()
        [0.0, -0.5]

    References:
        arXiv:2305.12201, with a different search.
    """
    return with_error_feedback(adaptive(masking, keep))


@named
def adaptive_quantization(ratio: float = 0.01):
    """Return a scheme that sends the positions of the largest elements of each sign, with error feedback.

    sent = mean of the chosen elements of the same sign, of x = g + e, else 0; e' = x - sent. It uses an allgather of 4
    bytes per element sent: each tensor has one value for each sign.

    Args:
        ratio: share of the elements to send, half of them for each sign, in [0, 1].

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(adaptive_quantization(1.0), [1.0, 3.0, -4.0, 0.0]).numpy().tolist()
        [2.0, 2.0, -4.0, 0.0]

    References:
        Dryden et al. 2016, "Communication quantization for data-parallel training of deep neural networks" (MLHPC),
        with 32 bits for a position.
    """

    def step(gradient, state, context):
        size = gradient.shape.num_elements()
        most = elements_to_keep(checked_ratio(ratio) / 2, size)
        (up, high), (down, low) = (largest_positive(side, most) for side in (gradient, -gradient))
        own = (up, down, tf.stack([high, -low]))
        everyone = yield AllGather(own)
        return mean_of([at_both(*each, gradient.shape) for each in everyone]), at_both(*own, gradient.shape), state

    return with_error_feedback(Scheme(step, per_tensor=True))


@named
def adaptive_sparsification(ratio: float = 0.01):
    """Return a scheme that sends elements at random, each divided by its probability. It is unbiased.

    sent_i = g_i / p_i with probability p_i = min(1, c |g_i|), else 0, where c makes the mean of all p_i the ratio. It
    uses an allgather of 8 bytes per element sent.

    Args:
        ratio: expected share of the elements to send, in [0, 1].

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(adaptive_sparsification(0.5), [0.0, -4.0]).numpy().tolist()
        [0.0, -4.0]

    References:
        arXiv:1710.09854, Algorithm 3, with three rounds.
    """

    def step(gradient, state, context):
        size, magnitudes = gradient.shape[0], tf.abs(gradient)
        chances = tf.math.divide_no_nan(magnitudes, tf.reduce_sum(magnitudes))
        wanted = tf.cast(checked_ratio(ratio) * size, tf.float32)
        for _ in range(3):  # a probability that reaches 1 stays there, and the others grow instead
            certain = chances >= 1
            others = tf.where(certain, 0.0, chances)
            left = wanted - tf.math.count_nonzero(certain, dtype=tf.float32)
            others *= tf.math.divide_no_nan(left, tf.reduce_sum(others))
            chances = tf.where(certain, 1.0, tf.minimum(others, 1.0))
        drawn = tf.random.stateless_uniform([size], context.worker_seed) < chances
        indices = tf.cast(tf.where(drawn)[:, 0], tf.int32)
        values = as_sent(tf.gather(gradient, indices) / tf.gather(chances, indices), context.value_type)
        mean, own = yield from mean_of_selected(indices, values, size, ratio)
        return mean, own, state

    return Scheme(step)


def largest_positive(x: tf.Tensor, most: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the positions of at most this many elements, the largest above 0, and their mean."""
    values, positions = tf.math.top_k(tf.nn.relu(tf.reshape(x, [-1])), most)
    positions = tf.boolean_mask(positions, values > 0)
    return positions, tf.math.divide_no_nan(tf.reduce_sum(values), tf.cast(tf.size(positions), tf.float32))


def at_both(up: tf.Tensor, down: tf.Tensor, levels: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Return a tensor with the first level at some positions, the second one at others, and zeros elsewhere."""
    values = [tf.fill(tf.shape(positions), levels[number]) for number, positions in enumerate((up, down))]
    flat = tf.scatter_nd(tf.concat([up, down], 0)[:, None], tf.concat(values, 0), [shape.num_elements()])
    return tf.reshape(flat, shape)


@named
def sketch(levels: int = 16):
    """Return a scheme that sends, for each element, the number of its quantile, and the mean of each quantile.

    The quantiles divide the elements into groups of equal size: sent = mean of the elements in the same group. It uses
    an allgather of 1, 2, 4 or 8 bits per element. Unlike SketchML, which also packs the numbers and skips zeros, it
    sorts the tensor.

    Args:
        levels: number of groups, 2 to 256.

    Raises:
        ValueError: levels is out of range.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(sketch(levels=2), [1.0, 3.0, -1.0, 7.0]).numpy().tolist()
        [0.0, 5.0, 0.0, 5.0]

    References:
        Jiang et al. 2018, "SketchML: Accelerating distributed machine learning with data sketches" (SIGMOD), its
        quantile buckets.
    """
    check_whole("levels", levels, 2, 256)
    bits = next(bits for bits in (1, 2, 4, 8) if levels <= 2**bits)

    def step(gradient, state, context):
        flat, size = tf.reshape(gradient, [-1]), gradient.shape.num_elements()
        edges = tf.gather(tf.sort(flat), [number * size // levels for number in range(1, levels)])
        groups = tf.searchsorted(edges, flat, side="right")
        means = tf.math.unsorted_segment_mean(flat, groups, levels)
        everyone = yield AllGather((pack_bits(groups, bits), means))
        values = [tf.gather(means, unpack_bits(packed, bits, gradient.shape)) for packed, means in everyone]
        return mean_of(values), tf.reshape(tf.gather(means, groups), gradient.shape), state

    return Scheme(step, per_tensor=True)
