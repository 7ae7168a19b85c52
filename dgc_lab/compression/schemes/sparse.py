"""Schemes that send the largest elements, or the largest blocks of them.

A ratio may be a ``tf.Variable``, which can change without a new trace.
"""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.dgc_scheme import mean_of_selected, scheme_of
from dgc_lab.compression.elements import in_blocks, mean_of
from dgc_lab.compression.scheme import AllGather, Scheme
from dgc_lab.compression.schemes.naming import named
from dgc_lab.compression.segment_search import largest_elements
from dgc_lab.compression.selection import Rule, select
from dgc_lab.compression.thresholding import checked_ratio
from dgc_lab.compression.wrappers import with_error_feedback


@named
def masking(ratio: float = 0.01):
    """Return a scheme that sends the largest elements, by a threshold for each tensor, and drops the rest (lesson 4).

    sent = g where |g| is at least the threshold, else 0. It uses an allgather of 8 bytes per element sent.

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
        mean, own = yield from mean_of_selected(indices, values, gradient.shape[0], ratio)
        return mean, own, state

    return Scheme(step, selects_non_finite=True)


@named
def top_k(ratio: float = 0.01):
    """Return a scheme that sends the largest elements, with error feedback.

    sent = top_k(g + e); e' = g + e - sent. It uses an allgather of 8 bytes per element sent.

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
def blocks(ratio: float = 0.01, size: int = 256):
    """Return a scheme that sends the blocks of elements with the largest norms, with error feedback.

    sent = the ratio of the blocks of x = g + e with the largest norms, and zeros elsewhere; e' = x - sent. One index
    serves a whole block: an allgather of 4 bytes per element sent and 4 bytes per block.

    Args:
        ratio: share of the blocks to send, in [0, 1].
        size: number of elements in a block, at least 1.

    Raises:
        ValueError: size is below 1.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(blocks(0.5, size=2), [1.0, 2.0, 0.0, 3.0]).numpy().tolist()
        [0.0, 0.0, 0.0, 3.0]

    References:
        Fei et al. 2021, "Efficient sparse collective communication" (OmniReduce, SIGCOMM), whose aggregators receive
        the blocks that are not zero, of 256 elements; its block gradient sparsification selects them by norm.
    """
    check_whole("size", size, 1, 2**31 - 1)

    def step(gradient, state, context):
        rows = in_blocks(gradient, min(size, max(gradient.shape[0], 1)))
        chosen = largest_elements(tf.norm(rows, axis=1), checked_ratio(ratio))
        message = (chosen, tf.gather(rows, chosen))
        everyone = yield AllGather(message)
        spread = [tf.scatter_nd(numbers[:, None], values, rows.shape) for numbers, values in (*everyone, message)]
        *values, own = [tf.reshape(one, [-1])[: gradient.shape[0]] for one in spread]
        return mean_of(values), own, state

    return with_error_feedback(Scheme(step))


@named
def dgc(ratio: float = 0.01, momentum: float = 0.9):
    """Return Deep Gradient Compression: velocities are accumulated, and cleared where they were sent (lesson 5).

    u' = m u + g; v' = v + u'; sent = v' where |v'| is at least the threshold; there both are cleared. It uses an
    allgather of 8 bytes per element sent.

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
