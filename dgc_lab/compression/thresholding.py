"""Thresholds on the magnitude of gradient elements: one for each tensor of a flat vector.

Pure functions on tensors. They run eagerly and inside ``tf.function``, on CPU and GPU, and the ratio may be a tensor,
so that one traced training step serves every ratio. All tensors' thresholds are found together: on a GPU a few kernels
do the work for a whole model.

These rules hold everywhere:

- ``ratio`` is the share of elements to keep, in [0, 1]. Of n elements, k = ceil(ratio * n) are wanted. The product is
  taken 1e-7 smaller than it is, so that 0.1 (which float32 stores slightly above 0.1) of 10 elements is 1 and not 2.
- ratio 0 keeps nothing (threshold infinity) and ratio 1 keeps everything (threshold 0).
- An element is kept when ``|x| >= threshold``. All elements that tie with it are kept, so there can be more than k.
- Between 0 and 1 the threshold is never below the smallest normal float32: zeros are never sent, and an all-zero tensor
  sends nothing. The threshold of an empty tensor is infinity.

Source: Lin et al., Deep Gradient Compression, arXiv:1712.01887, Algorithm 1 and section 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from dgc_lab.common import check_choice, check_list, check_number, check_whole
from dgc_lab.compression import native
from dgc_lab.compression.segment_search import search

# A threshold read off a sample is the s-th largest of its elements. With s >= 32 the share that passes it scatters by
# about 1 / sqrt(32) = 18 % around the ratio.
MINIMUM_KEPT_IN_SAMPLE = 32
SMALL_TENSOR = 10_000  # up to this many elements, sampling costs more than it saves
#: Names of the rules that find a threshold.
RULES = ("exact", "sampled", "hierarchical")
#: Whose threshold applies to a tensor: its own, one over the elements of all tensors, or the first tensor's.
SCOPES = ("tensor", "global", "first")


def exact_threshold(x: tf.Tensor, ratio: float):
    """Return the threshold that keeps the k = ceil(ratio * n) largest magnitudes: float32 scalar tensor.

    Elements that tie with the k-th are kept too.

    Args:
        x: floating-point tensor of any shape with n elements; float64 is rounded to float32.
        ratio: share to keep in [0, 1], number or scalar tensor.

    Raises:
        ValueError: ratio is outside [0, 1]. For a tensor inside a graph it is a tf.errors.InvalidArgumentError.
        TypeError: x is not floating point.

    Example:
        >>> float(exact_threshold(tf.constant([3.0, -1.0, 0.5, -4.0]), 0.5))
        3.0
    """
    return thresholds([x], ratio, "exact")[0]


def sampled_threshold(x: tf.Tensor, ratio: float, sample: float = 0.01, seed: Sequence[int] = (0, 0)):
    """Return a threshold estimated from a strided sample with a random start: float32 scalar tensor.

    A tensor of up to 10 000 elements gets its exact threshold. From a larger one, the sample takes about ``sample * n``
    elements, and never fewer than 32 / ratio (all of x if that is more than n), so at least 32 sampled values pass the
    threshold. On gradients without a period in their order, the share kept scatters around ``ratio`` with a relative
    standard deviation of 1 / sqrt(ratio * elements sampled), at most 18 %; the tests allow five of those. The stride is
    odd because rows of weight matrices mostly have even lengths.

    Args:
        x, ratio: as in `exact_threshold`.
        sample: share of x to sample, in (0, 1]; the paper uses 0.001 to 0.01.
        seed: two integers or an integer tensor of shape (2,); the same seed draws the same start.

    Raises:
        ValueError: sample is outside (0, 1]; otherwise as `exact_threshold`.

    Example:
        >>> x = tf.random.experimental.stateless_shuffle(tf.range(100_000.0), (0, 0))
        >>> float(exact_threshold(x, 0.01)), float(sampled_threshold(x, 0.01))  # they keep 1000 and 1089 elements
        (99000.0, 98911.0)

    References:
        arXiv:1712.01887, section 5 ("sampling 0.1 % to 1 % of the gradients").
    """
    return thresholds([x], ratio, "sampled", sample=sample, seed=seed)[0]


def thresholds(
    gradients: Sequence[tf.Tensor],
    ratio: float,
    rule: str = "exact",
    scope: str = "tensor",
    sample: float = 0.01,
    seed: Sequence[int] = (0, 0),
):
    """Return one threshold for each gradient tensor: a list of float32 scalar tensors.

    The rule ``"hierarchical"`` corrects a sampled threshold so that between 0.8 k and 1.3 k elements pass. If more
    pass, the exact k-th largest among them replaces it. If fewer pass, the share taken from the sample is doubled until
    enough do. Ties can still exceed this range, and a tensor with fewer than 0.8 k non-zero elements stays below it.

    Args:
        gradients: floating-point tensors of any shapes.
        ratio, sample, seed: as in `sampled_threshold`.
        rule: ``"exact"``, ``"sampled"`` or ``"hierarchical"``.
        scope: ``"tensor"``, each tensor its own threshold; ``"global"``, one over the elements of all;
            ``"first"``, the first tensor's threshold for all, as in the published masking code.

    Raises:
        ValueError: rule, scope, sample or ratio is not allowed.
        TypeError: a gradient is not floating point.

    Example:
        >>> small, large = tf.constant([1.0, 2.0]), tf.constant([30.0, 40.0])
        >>> [float(t) for t in thresholds([small, large], 0.5)]
        [2.0, 40.0]
        >>> [float(t) for t in thresholds([small, large], 0.5, scope="global")]
        [30.0, 30.0]

    References:
        arXiv:1712.01887, section 5 (hierarchical threshold selection).
    """
    check_choice("rule", rule, RULES)
    check_choice("scope", scope, SCOPES)
    check_number("sample", sample, "in (0, 1]")
    seed = checked_seed(seed)
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    for gradient in gradients:
        if not gradient.dtype.is_floating:
            raise TypeError(f"gradients must hold floating-point numbers, got {gradient.dtype.name}")
    if not gradients:
        return []
    flat = tf.concat([tf.reshape(tf.cast(gradient, tf.float32), [-1]) for gradient in gradients], 0)
    sizes = tuple(gradient.shape.num_elements() for gradient in gradients)
    found = tf.unstack(vector_thresholds(flat, sizes, checked_ratio(ratio), rule, scope, sample, seed))
    return found * (len(gradients) // len(found))


def keep_mask(x: tf.Tensor, threshold: float):
    """Return True where ``|x| >= threshold``, that is, for the selected elements; compared in float32.

    Raises:
        ValueError: threshold is not a number of at least 0.

    Example:
        >>> keep_mask(tf.constant([3.0, -1.0, -4.0]), 3.0).numpy().tolist()
        [True, False, True]
    """
    if not hasattr(threshold, "dtype"):
        check_number("threshold", threshold, "at least 0")
    return tf.abs(tf.cast(x, tf.float32)) >= tf.cast(threshold, tf.float32)


def split(x: tf.Tensor, threshold: float):
    """Return the elements of x that are sent and those that are not, each with zeros elsewhere.

    ``kept + dropped == x`` exactly; an element is kept if its magnitude is at least the ``threshold``.

    Example:
        >>> kept, dropped = split(tf.constant([3.0, -1.0, -4.0]), 3.0)
        >>> kept.numpy().tolist(), dropped.numpy().tolist()
        ([3.0, 0.0, -4.0], [0.0, -1.0, 0.0])

    References:
        arXiv:1712.01887, Algorithm 1: ``v * mask`` is sent, ``v * !mask`` stays.
    """
    mask, zero = keep_mask(x, threshold), tf.zeros([], x.dtype)
    return tf.where(mask, x, zero), tf.where(mask, zero, x)


def checked_seed(seed):
    """Return the seed; raise ValueError unless it is two whole numbers or a tensor."""
    if hasattr(seed, "dtype"):
        return seed
    numbers = [check_whole("seed", number, -(2**31), 2**31 - 1) for number in check_list("seed", seed)]
    if len(numbers) != 2:
        raise ValueError(f"seed must be two whole numbers, got {seed!r}")
    return tf.constant(numbers)


def checked_ratio(ratio) -> tf.Tensor:
    """Return the ratio as a float64 scalar tensor; an error if it is outside [0, 1], now or when the graph runs."""
    is_tensor = tf.is_tensor(ratio) or isinstance(ratio, tf.Variable)
    known = tf.get_static_value(ratio) if is_tensor else ratio  # None where only a run of the graph will tell
    if known is not None or not is_tensor:
        check_number("ratio", float(known) if is_tensor else known, "in [0, 1]")
    # tf.cast alone would first round to float32, which turns a ratio just below 1 into 1.
    ratio = tf.cast(ratio, tf.float64) if tf.is_tensor(ratio) else tf.constant(ratio, tf.float64)
    if known is not None:
        return ratio
    check = tf.debugging.Assert((ratio >= 0) & (ratio <= 1), ["ratio must be in [0, 1], got", ratio])
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(ratio)


# The thresholds of a flat vector --------------------------------------------------------------------------------------


def segments_of(sizes: Sequence[int], scope: str) -> tuple[int, ...]:
    """Return the sizes of the segments of the flat vector that have their own threshold."""
    return {"tensor": tuple(sizes), "global": (sum(sizes),), "first": tuple(sizes[:1])}[scope]


def sampling(segments: Sequence[int], ratio: tf.Tensor, rule: str, sample: float, seed):
    """Return stride and first element of each segment's sample, int32 (segments,); stride 1 takes all of it."""
    sizes = np.array(segments, np.float64)
    enough = tf.maximum(sample * sizes, MINIMUM_KEPT_IN_SAMPLE / tf.maximum(ratio, 1e-12))
    strides = tf.cast(tf.maximum(sizes / enough, 1.0), tf.int32)
    strides -= 1 - strides % 2
    strides = tf.where((sizes <= SMALL_TENSOR) | (rule == "exact"), 1, strides)
    drawn = tf.random.stateless_uniform([len(segments)], seed)
    starts = tf.cast(drawn * tf.cast(strides, tf.float32), tf.int32)
    return strides, tf.minimum(starts, strides - 1)  # the product may have been rounded up


def vector_thresholds(x: tf.Tensor, sizes: Sequence[int], ratio: tf.Tensor, rule, scope, sample, seed):
    """Return the thresholds of a flat float32 vector, float32: one for each of its segments by ``scope``.

    ``ratio`` is a float64 scalar tensor. C++ and TensorFlow find the same numbers.
    """
    segments = segments_of(sizes, scope)
    strides, starts = sampling(segments, ratio, rule, sample, seed)
    if operations := native.operations():
        return operations.dgc_thresholds(
            x, ratio, strides, starts, segments=segments, hierarchical=rule == "hierarchical"
        )
    magnitudes = tf.abs(x[: sum(segments)])

    def found():
        return search(magnitudes, np.array(segments), ratio, strides, starts, rule == "hierarchical")

    return tf.cond(ratio >= 1, lambda: tf.zeros([len(segments)]), found)
