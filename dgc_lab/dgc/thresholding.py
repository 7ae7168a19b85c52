"""Choose which elements of a gradient are sent: a threshold on the absolute value, and a mask made from it.

Pure functions on tensors: they run eagerly and inside ``tf.function``, on CPU and GPU, and the ratio may be a tensor,
so that one traced training step serves every ratio.

What holds for every rule:

- ``ratio`` is the share of elements to keep, in [0, 1]. Of n elements k = ceil(ratio * n) are wanted. The product is
  taken 1e-7 smaller than it is, so that 0.1 (which float32 stores a hair above 0.1) of 10 elements is 1 and not 2.
- ratio 0 keeps nothing (threshold infinity) and ratio 1 keeps everything (threshold 0).
- An element is kept when ``|x| >= threshold``. All elements that tie with it are kept, so more than k can be.
- Between 0 and 1 the threshold is never below the smallest normal number of the dtype: zeros are never sent, and an
  all-zero tensor sends nothing. An empty tensor has threshold infinity.

Source: Lin et al., Deep Gradient Compression, arXiv:1712.01887, Algorithm 1 and section 5.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import ml_dtypes
import tensorflow as tf
from numpy.typing import ArrayLike

from dgc_lab.common import Seed, check_number

# A threshold read off a sample is the s-th largest of its elements. With s >= 32 the share it lets pass scatters by
# about 1 / sqrt(32) = 18 % around the ratio.
MINIMUM_KEPT_IN_SAMPLE = 32
SMALL_TENSOR = 10_000  # elements up to which a tensor is looked at whole: a sample would cost more than it spares
# The paper's hierarchical selection repairs a sampled threshold outside this band of the wanted number.
TOO_FEW, TOO_MANY = 0.8, 1.3
#: Whose threshold holds for a tensor: its own, one over the elements of all tensors, or the first tensor's.
SCOPES = ("tensor", "global", "first")
# What arguments may be; who takes a function from the room is told so at its door, and a training step is not asked.
Ratio, Sample = Annotated[float, "in [0, 1]"], Annotated[float, "in (0, 1]"]
Rule, Scope = Literal["exact", "sampled", "hierarchical"], Literal[SCOPES]


def exact_threshold(x: ArrayLike, ratio: Ratio, sample: Sample | None = None, seed: Seed = None):
    """Threshold that keeps the k = ceil(ratio * n) largest magnitudes and ties with the k-th: a scalar of x's dtype.

    Args:
        x: floating-point tensor of any shape, n elements.
        ratio: share to keep in [0, 1], number or scalar tensor.
        sample, seed: not used; here so that the three rules are called alike.

    Raises:
        ValueError, tf.errors.InvalidArgumentError: ratio outside [0, 1] (the latter for a tensor inside a graph).
        TypeError: x is not floating point.

    Example:
        >>> float(exact_threshold(tf.constant([3.0, -1.0, 0.5, -4.0]), 0.5))
        3.0
    """
    return _each("exact", [x], ratio, sample, [seed])[0]


def sampled_threshold(x: ArrayLike, ratio: Ratio, sample: Sample = 0.01, seed: Seed = (0, 0)):
    """Threshold read off a strided sample with a random start: one pass over the sample in place of one over x.

    A tensor of up to 10 000 elements gets its exact threshold. Of a larger one the sample holds about ``sample * n``
    elements, and never fewer than 32 / ratio (all of x if that is more than n): the threshold is then read off at least
    32 values that pass it. On gradients whose order holds no period the kept share scatters around ``ratio`` with a
    relative standard deviation of 1 / sqrt(ratio * elements sampled), so 18 % at most; five of those are the band that
    the tests hold it to. The stride is odd, for the row lengths of weight matrices are mostly even.

    Args:
        x, ratio: as in `exact_threshold`.
        sample: share of x to look at, in (0, 1]; the paper takes 0.001 to 0.01.
        seed: two integers or an integer tensor of shape (2,); the same seed draws the same start.

    Raises: as `exact_threshold`; also a ValueError for a sample outside (0, 1].

    Example:
        >>> x = tf.random.experimental.stateless_shuffle(tf.range(100_000.0), (0, 0))
        >>> float(exact_threshold(x, 0.01)), float(sampled_threshold(x, 0.01))  # keep 1000 and 1310 of them
        (99000.0, 98690.0)

    Source: arXiv:1712.01887, section 5 ("sampling 0.1 % to 1 % of the gradients").
    """
    return _each("sampled", [x], ratio, sample, [seed])[0]


def hierarchical_threshold(x: ArrayLike, ratio: Ratio, sample: Sample = 0.01, seed: Seed = (0, 0)):
    """Sampled threshold, repaired where it is far off: between 0.8 k and 1.3 k elements are kept, whatever the sample.

    When more pass, the exact k-th largest among them replaces the sampled threshold. When fewer pass, the share read
    off the sample is doubled until enough do. Ties can still exceed the band, and a tensor with fewer than 0.8 k
    non-zero elements stays below it.

    Args, Raises: x, ratio, sample and seed are as in `sampled_threshold`.

    Example:
        >>> x = tf.random.experimental.stateless_shuffle(tf.range(100_000.0), (0, 0))
        >>> float(sampled_threshold(x, 0.01)), float(hierarchical_threshold(x, 0.01))  # keep 1310 and 1000 of them
        (98690.0, 99000.0)

    Source: arXiv:1712.01887, section 5 (hierarchical threshold selection).
    """
    return _each("hierarchical", [x], ratio, sample, [seed])[0]


#: Functions of (x, ratio, sample, seed) that find a threshold, by name; a `DGCConfig` and `thresholds` take the name.
RULES = {"exact": exact_threshold, "sampled": sampled_threshold, "hierarchical": hierarchical_threshold}


def thresholds(
    gradients: list[ArrayLike],
    ratio: Ratio,
    rule: Rule = "exact",
    scope: Scope = "tensor",
    sample: Sample = 0.01,
    seed: Seed = (0, 0),
):
    """One threshold per gradient tensor: a list of scalar tensors, as long as ``gradients``.

    Args:
        gradients: list of floating-point tensors, any shapes.
        ratio, sample, seed: as `sampled_threshold`.
        rule: ``"exact"``, ``"sampled"`` or ``"hierarchical"``.
        scope: ``"tensor"``, each tensor its own threshold; ``"global"``, one over the elements of all;
            ``"first"``, the first tensor's threshold for all, which is what the published masking code does.

    Raises:
        ValueError: rule, scope, sample or ratio is not one of those allowed.

    Example:
        >>> small, large = tf.constant([1.0, 2.0]), tf.constant([30.0, 40.0])
        >>> [float(t) for t in thresholds([small, large], 0.5)]
        [2.0, 40.0]
        >>> [float(t) for t in thresholds([small, large], 0.5, scope="global")]
        [30.0, 30.0]
    """
    if scope == "tensor" or not len(gradients):
        seeds = [tf.stack([seed[0], seed[1] + 1000 * i]) for i in range(len(gradients))]  # each draws its own start
        return _each(rule, gradients, ratio, sample, seeds, "gradients")
    together = gradients[0] if scope == "first" else tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0)
    return _each(rule, [together], ratio, sample, [seed], "gradients") * len(gradients)


def keep_masks(
    gradients: list[ArrayLike],
    ratio: Ratio,
    rule: Rule = "exact",
    scope: Scope = "tensor",
    sample: Sample = 0.01,
    seed: Seed = (0, 0),
):
    """One boolean tensor per gradient, True for what is kept at its threshold.

    Args, Raises: gradients, ratio, rule, scope, sample and seed are as in `thresholds`.

    Example:
        >>> [mask.numpy().tolist() for mask in keep_masks([tf.constant([1.0, -2.0]), tf.constant([3.0, 4.0])], 0.5)]
        [[False, True], [False, True]]
    """
    found = thresholds(gradients, ratio, rule, scope, sample, seed)
    return [keep_mask(gradient, threshold) for gradient, threshold in zip(gradients, found, strict=True)]


def keep_mask(x: tf.Tensor, threshold: float):
    """True where ``|x| >= threshold``: what is sent. Positive and negative elements are treated alike.

    Example:
        >>> keep_mask(tf.constant([3.0, -1.0, -4.0]), 3.0).numpy().tolist()
        [True, False, True]
    """
    return tf.abs(x) >= threshold


def split(x: tf.Tensor, threshold: float):
    """Part x by the ``threshold`` into what is sent and what is not: ``kept + dropped == x`` exactly, each like x.

    Example:
        >>> kept, dropped = split(tf.constant([3.0, -1.0, -4.0]), 3.0)
        >>> kept.numpy().tolist(), dropped.numpy().tolist()
        ([3.0, 0.0, -4.0], [0.0, -1.0, 0.0])

    Source: arXiv:1712.01887, Algorithm 1: ``v * mask`` is sent, ``v * !mask`` stays.
    """
    mask, zero = keep_mask(x, threshold), tf.zeros([], x.dtype)
    return tf.where(mask, x, zero), tf.where(mask, zero, x)


def elements_to_keep(ratio, x):
    """k = ceil(ratio * n) for x's n elements, int32 scalar; see the top of this module for the rounding.

    Example:
        >>> int(elements_to_keep(0.1, tf.zeros([10]))), int(elements_to_keep(0.001, tf.zeros([10])))
        (1, 1)
    """
    share = _double(ratio) * (1 - 1e-7) * tf.cast(tf.size(x), tf.float64)
    return tf.cast(tf.math.ceil(share), tf.int32)


def _each(rule, tensors, ratio, sample, seeds, name="x"):
    """One threshold per tensor: ratio 1 is answered without a search, and those of other ratios are above zero.

    The ratio is looked at once for all tensors: in a graph each such condition takes time to build, and memory.
    """
    tensors = [tf.convert_to_tensor(x) for x in tensors]
    for x in tensors:
        if not x.dtype.is_floating:
            raise TypeError(f"{name} must hold floating-point numbers, got {x.dtype.name}")
    ratio = checked_ratio(ratio) if tf.is_tensor(ratio) else _double(ratio)
    zeros = [tf.zeros([], x.dtype) for x in tensors]

    def largest():
        return [
            SEARCHES["exact" if _is_small(x) else rule](tf.reshape(x, [-1]), ratio, sample, seed)
            for x, seed in zip(tensors, seeds, strict=True)
        ]

    known = tf.get_static_value(ratio)
    if known is None and tensors:
        return tf.cond(ratio >= 1, lambda: zeros, largest)
    return zeros if known is not None and known >= 1 else largest()


def _exact(flat, ratio, sample, seed):
    return _kth_largest(tf.abs(flat), elements_to_keep(ratio, flat))


def _sampled(flat, ratio, sample, seed):
    part = _sampled_magnitudes(flat, ratio, sample, seed)
    return _kth_largest(part, elements_to_keep(ratio, part))


def _hierarchical(flat, ratio, sample, seed):
    magnitudes = tf.abs(flat)
    wanted = tf.cast(elements_to_keep(ratio, flat), tf.float64)
    part = _sampled_magnitudes(flat, ratio, sample, seed)

    def passing(threshold):
        return tf.reduce_sum(tf.cast(magnitudes >= threshold, tf.float64))

    def lower(share, threshold, _):
        share = tf.minimum(2 * share, 1.0)
        from_sample = _kth_largest(part, elements_to_keep(share, part))
        threshold = tf.where(share < 1, from_sample, _smallest_normal(flat.dtype))
        return share, threshold, passing(threshold)

    threshold = _kth_largest(part, elements_to_keep(ratio, part))
    _, threshold, passed = tf.while_loop(
        lambda share, threshold, passed: (passed < TOO_FEW * wanted) & (share < 1),
        lower,
        (ratio, threshold, passing(threshold)),
    )
    return tf.cond(
        passed > TOO_MANY * wanted,
        lambda: _kth_largest(tf.boolean_mask(magnitudes, magnitudes >= threshold), tf.cast(wanted, tf.int32)),
        lambda: threshold,
    )


SEARCHES = {"exact": _exact, "sampled": _sampled, "hierarchical": _hierarchical}


def checked_ratio(ratio):
    """The tensor as a float64 scalar; an error when it lies outside [0, 1], now or when it runs."""
    known, ratio = tf.get_static_value(ratio), _double(ratio)
    if known is not None:
        check_number("ratio", float(known), "in [0, 1]")
        return ratio
    check = tf.debugging.Assert((ratio >= 0) & (ratio <= 1), ["ratio must be in [0, 1], got", ratio])
    with tf.control_dependencies([check]):
        return tf.identity(ratio)


def _double(number):
    """A number or tensor as float64; tf.cast alone makes float32 of a number first, and 1 of what is just below it."""
    return tf.cast(number, tf.float64) if tf.is_tensor(number) else tf.constant(number, tf.float64)


def _is_small(x):
    """Whether a tensor's size is known before it runs and is not worth a sample."""
    return x.shape.num_elements() is not None and x.shape.num_elements() <= SMALL_TENSOR


def _sampled_magnitudes(flat, ratio, sample, seed):
    """|x| of every stride-th element from a random start; the stride is odd, and 1 where the sample would be small."""
    size = tf.cast(tf.size(flat), tf.float64)
    enough = tf.maximum(sample * size, MINIMUM_KEPT_IN_SAMPLE / tf.maximum(ratio, 1e-12))
    stride = tf.cast(tf.clip_by_value(size / enough, 1.0, math.inf), tf.int32)
    stride -= 1 - stride % 2
    start = tf.random.stateless_uniform([], seed, maxval=stride, dtype=tf.int32)
    return tf.abs(flat[start::stride])


def _kth_largest(magnitudes, k):
    """The k-th largest value, or the smallest normal number above it; for k = 0 infinity, the smallest of no values."""
    largest = tf.math.top_k(magnitudes, k, sorted=False).values
    return tf.maximum(tf.reduce_min(largest), _smallest_normal(magnitudes.dtype))


def _smallest_normal(dtype) -> float:
    return float(ml_dtypes.finfo(dtype.as_numpy_dtype).smallest_normal)
