"""Accumulate gradients into a worker's state, and select the elements that pass their tensor's threshold.

`accumulate_and_select` is the paper's accumulation, selection and factor masking (arXiv:1712.01887, Algorithm 1 and
appendix B) for all tensors at once. On a CPU it runs as one operation (``native.cc``), elsewhere as the TensorFlow
code below; both give the same bits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

from dgc_lab.common import check_list, check_whole
from dgc_lab.compression import native
from dgc_lab.compression.scheme import StepContext
from dgc_lab.compression.segment_search import segment_numbers
from dgc_lab.compression.thresholding import checked_ratio, sampling, segments_of, vector_thresholds

BLOCK = 64
SMALLEST_HALF = 2.0**-24  # the smallest float16 above zero


class Rule(NamedTuple):
    """Rule for choosing the elements to send; ratio, rule, scope and sample are as in `dgc_lab.compression.DGCConfig`.

    Example:
        >>> Rule(0.01).rule
        'sampled'
    """

    ratio: float | tf.Tensor
    rule: str = "sampled"
    scope: str = "tensor"
    sample: float = 0.01


def select(x: tf.Tensor, rule: Rule, context: StepContext):
    """Return the elements of a flat vector that pass their tensor's threshold: int32 indices, float32 values.

    Elements that are NaN or infinite are always among them. Values are rounded to the wire's value type.

    Args:
        x: float32 (n,), tensors of ``context.sizes`` one after another.
        rule: rule for the elements that pass.
        context: sizes, seed and the wire's value type.

    Example:
        >>> context = StepContext((3,), (0, 0), (0, 0), workers=1)
        >>> indices, values = select(tf.constant([0.5, -2.0, 1.0]), Rule(0.3), context)
        >>> indices.numpy().tolist(), values.numpy().tolist()
        ([1], [-2.0])
    """
    return accumulate_and_select(x, (), rule, context)[:2]


def accumulate_and_select(
    gradient: tf.Tensor,
    state: tuple,
    rule: Rule,
    context: StepContext,
    momentum: float = 0.0,
    nesterov: bool = False,
    clear_velocity: bool = True,
):
    """Add a gradient to the state, then extract the elements that pass their tensor's threshold.

    Args:
        gradient: float32 (n,), the tensors of ``context.sizes`` one after another.
        state: ``(residual, velocity)``, ``(residual,)`` or, to select from the gradient itself, ``()``: float32 (n,).
        rule: rule for the elements to send.
        context: sizes, seed and the wire's value type.
        momentum, nesterov: momentum of the velocity that is added to the residual.
        clear_velocity: clear the velocity, too, where an element is sent (momentum factor masking).

    Returns:
        ``(indices, values, state)``: int32 (k,), ascending; float32 (k,), rounded to the value type; the new state,
        in which the rounding error stays in the residual.

    Raises:
        ValueError: the ratio is not in [0, 1].

    Example:
        >>> state, context = (tf.constant([0.0, 1.0]), tf.zeros([2])), StepContext((2,), (0, 0), (0, 0), workers=1)
        >>> sent = accumulate_and_select(tf.constant([0.5, 2.0]), state, Rule(0.5), context, momentum=0.9)
        >>> indices, values, (residual, velocity) = sent
        >>> indices.numpy().tolist(), values.numpy().tolist(), residual.numpy().tolist(), velocity.numpy().tolist()
        ([1], [3.0], [0.5, 0.0], [0.5, 0.0])
    """
    ratio = checked_ratio(rule.ratio)
    if operations := native.operations():
        segments = segments_of(context.sizes, rule.scope)
        strides, starts = sampling(segments, ratio, rule.rule, rule.sample, context.seed)
        new, indices, values = operations.dgc_accumulate_and_select(
            gradients=context.parts if state and context.parts and context.gradient is gradient else [gradient],
            state=list(state),
            ratio=ratio,
            strides=strides,
            starts=starts,
            sizes=context.sizes,
            segments=segments,
            hierarchical=rule.rule == "hierarchical",
            momentum=momentum,
            nesterov=nesterov,
            clear_velocity=clear_velocity,
            round_to_half=context.value_type == "float16",
        )
        return indices, values, tuple(new)
    residual, *velocity = accumulate(gradient, state, momentum, nesterov) if state else [gradient]
    limits = vector_thresholds(residual, context.sizes, ratio, *rule[1:], context.seed)
    if context.value_type == "float16":  # a value that would be sent as zero waits
        limits = tf.maximum(limits, SMALLEST_HALF)
    indices = elements_above(residual, limits, context.sizes)
    chosen = tf.gather(residual, indices)
    values = as_sent(chosen, context.value_type)
    if not state:
        return indices, values, ()
    new = [replaced(residual, indices, chosen - values)]
    if velocity:
        # Everything is sent at ratio 1: that is momentum SGD, and the velocity stays.
        clears = tf.cast(clear_velocity, tf.int32) * tf.cast(ratio < 1, tf.int32)
        cleared = indices[: tf.size(indices) * clears]
        new.append(replaced(velocity[0], cleared, tf.zeros(tf.shape(cleared))))
    return indices, values, tuple(new)


def accumulate(gradient: tf.Tensor, state: tuple, momentum: float, nesterov: bool) -> tuple:
    """Return the state with a gradient added: momentum correction, then local accumulation (appendix B).

    Example:
        >>> residual, velocity = accumulate(tf.constant([1.0]), (tf.constant([0.5]), tf.constant([2.0])), 0.5, False)
        >>> float(velocity[0]), float(residual[0])
        (2.0, 2.5)
    """
    residual, *velocity = state
    if not velocity:
        return (residual + gradient,)
    if nesterov:
        velocity = momentum * (velocity[0] + gradient)
        # Snapshot keeps the order of the two additions: TensorFlow may otherwise reorder a chain of them.
        return tf.raw_ops.Snapshot(input=residual + gradient) + velocity, velocity
    velocity = momentum * velocity[0] + gradient
    return residual + velocity, velocity


def elements_above(x: tf.Tensor, limits: tf.Tensor, sizes: tuple[int, ...]) -> tf.Tensor:
    """Return the indices of elements that are not below their tensor's threshold, int32 (k,), ascending.

    Elements that are not finite are always among them.

    Args:
        x: float32 (n,), tensors of ``sizes`` one after another.
        limits: float32, a threshold for each tensor or (1,) for all.

    Raises:
        ValueError: sizes are not whole numbers of at least 0.

    Example:
        >>> elements_above(tf.constant([3.0, 1.0, 3.0]), tf.constant([2.0, 5.0]), (2, 1)).numpy().tolist()
        [0]
    """
    sizes = [check_whole("sizes", size, 0) for size in check_list("sizes", sizes)]
    if tf.config.list_logical_devices("GPU"):  # few kernels for all tensors
        limit = limits[0] if limits.shape == [1] else tf.gather(limits, segment_numbers(tuple(sizes)))
        return tf.cast(tf.where(not_below(tf.abs(x), limit))[:, 0], tf.int32)
    # Tensor by tensor, and blocks of them first: on a CPU each pass over all elements takes as long as the rest.
    found, begin = [], 0
    each = [limits[0]] * len(sizes) if limits.shape == [1] else tf.unstack(limits)
    for part, limit, size in zip(tf.split(x, sizes), each, sizes, strict=True):
        block = math.gcd(size, BLOCK) or 1
        rows = tf.reshape(part, [-1, block])
        # Two reductions that only read are faster than one over tf.abs(x), which would be written first.
        maxima = tf.maximum(tf.reduce_max(rows, 1), -tf.reduce_min(rows, 1))
        opened = tf.cast(tf.where(not_below(maxima, limit))[:, 0], tf.int32)
        inside = tf.cast(tf.where(not_below(tf.abs(tf.gather(rows, opened)), limit)), tf.int32)
        found.append(tf.gather(opened, inside[:, 0]) * block + inside[:, 1] + begin)
        begin += size
    return tf.concat(found, 0)


def not_below(magnitudes: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """Return True where a magnitude is at least the limit, or NaN.

    Example:
        >>> not_below(tf.constant([1.0, 2.0, float("nan")]), 2.0).numpy().tolist()
        [False, True, True]
    """
    # Not `tf.logical_not(magnitudes < limit)`, which graphs replace by `magnitudes >= limit`: False for NaN.
    return (magnitudes >= limit) | tf.math.is_nan(magnitudes)


def as_sent(values: tf.Tensor, value_type: str) -> tf.Tensor:
    """Return float32 values as the wire delivers them: rounded to ``value_type`` and limited to its range.

    NaN and infinity are kept, so that later checks find them.

    Example:
        >>> as_sent(tf.constant([1e6, 0.1]), "float16").numpy().tolist()
        [65504.0, 0.0999755859375]
    """
    if value_type == "float32":
        return values
    largest = tf.as_dtype(value_type).max
    rounded = tf.cast(tf.cast(tf.clip_by_value(values, -float(largest), float(largest)), value_type), tf.float32)
    return tf.where(tf.math.is_finite(values), rounded, values)


def replaced(x: tf.Tensor, indices: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return x with the elements at distinct ``indices`` replaced by ``values``.

    Example:
        >>> replaced(tf.constant([1.0, 2.0, 3.0]), tf.constant([1]), tf.constant([0.0])).numpy().tolist()
        [1.0, 0.0, 3.0]
    """
    # tf.tensor_scatter_nd_update copies x first, on a CPU always. Adding changes it where it lies in memory when
    # nothing else uses it. What it leaves is exact: old + (value - old) is value where that is 0 or a rounding error.
    old = tf.gather(x, indices)
    return tf.raw_ops.ScatterNdNonAliasingAdd(input=x, indices=indices[:, None], updates=values - old)
