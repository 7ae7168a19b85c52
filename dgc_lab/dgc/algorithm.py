"""Deep Gradient Compression, one worker's step: Algorithm 1 of the paper with all that it adds, as pure functions.

With gradient g, velocity u and residual v of each tensor (arXiv:1712.01887, Algorithm 1, section 3, appendix B):

    g <- g x min(1, limit / |g|)     `clip_locally`
    u <- m u + g;  v <- v + u        `accumulate`: momentum correction, then local accumulation
    threshold <- ratio-th of |v|     `dgc_lab.dgc.thresholding.thresholds`
    mask <- |v| >= threshold         `take_entries`, `take_masked`
    send v * mask
    v <- v * !mask;  u <- u * !mask  momentum factor masking is the second one; not where all is sent

`local_step` is these lines. Nothing here sends or stores: `dgc_lab.dgc.exchange` carries what was taken to all workers,
`dgc_lab.dgc.compressor` keeps velocity and residual. All tensors are flat here.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import tensorflow as tf

from dgc_lab.common import Seed
from dgc_lab.dgc.config import DGCConfig
from dgc_lab.dgc.selection import block_maxima, select
from dgc_lab.dgc.thresholding import keep_mask, thresholds
from dgc_lab.dgc.wire_format import add_in_order


class State(NamedTuple):
    """What a worker keeps from step to step, for each tensor that it compresses; None where the config keeps none."""

    velocity: list
    residual: list


class Selection(NamedTuple):
    """What a worker sends of its tensors, in one of two forms; the other one's tensors are empty.

    Attributes:
        indices: int32 (k,) of each tensor, where the elements stand that are sent.
        values: (k,) of the config's value type, what is sent for them.
        masked: float32 (n,), the same elements in their places and zeros between them.
        kept: int64 (tensors,), how many elements are sent of each.
    """

    indices: list
    values: list
    masked: list
    kept: tf.Tensor


def local_gradients(gradients, weights, config: DGCConfig, workers: int):
    """A worker's gradients with rows merged and weight decay added, before and after clipping; None stays None."""
    # What is added up over many steps is float32, whatever the weights are: 1 + 0.001 is 1 in bfloat16.
    gradients = [g if g is None else tf.cast(g, tf.float32) for g in gradients]
    gradients = [sum_duplicate_rows(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    if config.weight_decay:
        # A gradient that holds 1 / workers gets its share of the decay, for the exchange adds up the shares.
        decay = config.weight_decay / (1 if config.reduction == "average" else workers)
        gradients = [
            g if g is None or isinstance(g, tf.IndexedSlices) else g + decay * tf.cast(weight, tf.float32)
            for g, weight in zip(gradients, weights, strict=True)
        ]
    if config.clip_norm is None:
        return gradients, gradients
    return gradients, clip_locally(gradients, config.clip_norm, workers, config.reduction)


def local_step(
    gradients: list[tf.Tensor],
    state: State,
    ratio: Annotated[float, "in [0, 1]"],
    config: DGCConfig,
    seed: Seed,
    by_allreduce: bool = False,
):
    """One worker's step: what it sends of each tensor, and what stays with it.

    A ValueError where gradients and state are not of as many tensors.

    Args:
        gradients: flat float32 tensors, new in this step, clipped already.
        state: velocity and residual of each, flat, as the step before left them.
        ratio: share of the elements to send, in [0, 1]; number or float64 scalar tensor.
        config: the switches; its ratio and warm-up are not looked at.
        seed: int32 (2,), the same on all workers; what sampled thresholds draw from.
        by_allreduce: the form of the selection: all elements with zeros (True), or values and indices; bool or tensor.

    Returns:
        ``(selection, state, maxima)``: a `Selection`, the state after the step, and the block maxima of each residual
        before anything was taken, in which whatever is not finite shows.

    Example:
        >>> state = State([tf.constant([0.0, 1.0, 0.0])], [tf.constant([0.5, 0.0, 0.0])])
        >>> config = DGCConfig(momentum=0.5, rule="exact")
        >>> sent, state, _ = local_step([tf.constant([0.25, 2.0, -0.5])], state, 1 / 3, config, (0, 0))
        >>> sent.indices[0].numpy().tolist(), sent.values[0].numpy().tolist()
        ([1], [2.5])
        >>> state.velocity[0].numpy().tolist(), state.residual[0].numpy().tolist()
        ([0.25, 0.0, -0.5], [0.75, 0.0, -0.5])

    Source: arXiv:1712.01887, Algorithm 1; with momentum, appendix B.
    """
    if len(gradients) != len(state.velocity):
        raise ValueError(f"gradients must be {len(state.velocity)}, as in state, got {len(gradients)}")
    state = accumulate(gradients, state, config)
    maxima = [block_maxima(residual) for residual in state.residual]
    found = thresholds(state.residual, ratio, config.rule, config.scope, config.sample, seed)
    forms = (
        lambda: take_masked(state, found, ratio, config),
        lambda: take_entries(state, found, ratio, maxima, config),
    )
    taken = tf.cond(by_allreduce, *forms) if tf.is_tensor(by_allreduce) else forms[0 if by_allreduce else 1]()
    return *taken, maxima


def accumulate(gradients, state: State, config: DGCConfig) -> State:
    """The state with a step's gradients in it, before anything is taken out."""
    velocities, residuals = [], []
    for gradient, velocity, residual in zip(gradients, *state, strict=True):
        entered = gradient
        if config.corrects_momentum:
            entered = velocity = correct_momentum(gradient, velocity, config.momentum, config.nesterov)[0]
        velocities.append(velocity)
        if not config.accumulate:
            residuals.append(gradient)
        elif config.corrects_momentum and config.nesterov:
            residuals.append(add_in_order([residual, gradient, velocity]))
        else:
            residuals.append(residual + entered)
    return State(velocities, residuals)


def take_entries(state: State, thresholds, ratio, maxima, config: DGCConfig):
    """Take what passes the thresholds out of the state, as values and indices; (selection, state)."""
    indices, values, velocities, residuals = [], [], [], []
    for velocity, residual, threshold, blocks in zip(*state, thresholds, maxima, strict=True):
        where, sent, error = select(residual, threshold, config.values, blocks)
        indices.append(where)
        values.append(sent)
        if config.clears_velocity:  # nowhere, where everything is sent: that is momentum SGD
            velocity = zero_at(velocity, where[: tf.size(where) * tf.cast(ratio < 1, tf.int32)])
        velocities.append(velocity)
        residuals.append(zero_at(residual, where, error))
    kept = tf.convert_to_tensor([tf.size(where, tf.int64) for where in indices], tf.int64)
    return Selection(indices, values, [tf.zeros([0])] * len(indices), kept), State(velocities, residuals)


def take_masked(state: State, thresholds, ratio, config: DGCConfig):
    """The same with zeros between what is sent, which is not rounded then; (selection, state)."""
    masked, kept, velocities, residuals = [], [], [], []
    for velocity, residual, threshold in zip(*state, thresholds, strict=True):
        mask, zero = keep_mask(residual, threshold), tf.zeros([])
        masked.append(tf.where(mask, residual, zero))
        kept.append(tf.math.count_nonzero(mask))
        velocities.append(tf.where(mask & (ratio < 1), zero, velocity) if config.clears_velocity else velocity)
        residuals.append(tf.where(mask, zero, residual))
    indices = [tf.zeros([0], tf.int32)] * len(masked)
    values = [tf.zeros([0], config.values)] * len(masked)
    selection = Selection(indices, values, masked, tf.convert_to_tensor(kept, tf.int64))
    return selection, State(velocities, residuals)


def clip_locally(
    gradients: list[tf.Tensor | None],
    clip_norm: Annotated[float, "above 0"],
    workers: Annotated[int, "at least 1"],
    reduction: Literal["average", "sum"] = "average",
):
    """Scale a worker's gradients down together, to the share of the global norm that one of N workers may use.

    The gradients of N workers are nearly independent, so the norm of their sum is about sqrt(N) times that of one.
    A worker's own mean may therefore reach sqrt(N) times the norm that is allowed for the average; a gradient that
    holds 1/N already, 1/sqrt(N) of it. A ValueError for a norm that is not above 0, no worker, or another reduction.

    Args:
        gradients: list of tensors, ``tf.IndexedSlices`` with every row once, or None; the norm is that of all together.
        clip_norm: largest L2 norm of the gradient over all workers.
        workers: N.
        reduction: ``"average"``, each gradient is the worker's own mean, or ``"sum"``, it holds 1/N already.

    Example:
        >>> [clipped] = clip_locally([tf.constant([3.0, 4.0])], clip_norm=1.0, workers=4)
        >>> float(tf.norm(clipped))
        2.0

    Source: arXiv:1712.01887, section 3.2 (local gradient clipping).
    """
    limit = clip_norm * workers ** (0.5 if reduction == "average" else -0.5)
    norm = tf.linalg.global_norm(gradients)
    # A norm that overflows must not pass for a large gradient, which would be scaled to nothing.
    scale = tf.where(tf.math.is_finite(norm), tf.where(norm > limit, limit / norm, 1.0), float("nan"))
    return [None if g is None else tf.math.scalar_mul(scale, g) for g in gradients]


def correct_momentum(gradient: tf.Tensor, velocity: tf.Tensor, momentum: float, nesterov: bool = False):
    """The new velocity, and what is added to the residual in place of the gradient, as ``(velocity, addend)``.

    Vanilla: ``u = m u + g``, add u. With ``nesterov``: ``u = m (u + g)``, add ``u + g``. The ``gradient`` g and the
    ``velocity`` u are tensors of one shape, ``momentum`` m is in [0, 1).

    Example:
        >>> velocity, addend = correct_momentum(tf.constant([1.0]), tf.constant([2.0]), 0.5)
        >>> float(velocity[0]), float(addend[0])
        (2.0, 2.0)

    Source: arXiv:1712.01887, eq. 7 and appendix B.
    """
    if nesterov:
        velocity = momentum * (velocity + gradient)
        return velocity, velocity + gradient
    velocity = momentum * velocity + gradient
    return velocity, velocity


def sum_duplicate_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient with every row named once: rows that were named several times are added up.

    Example:
        >>> rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 0, 3]), tf.constant([5, 1]))
        >>> merged = sum_duplicate_rows(rows)
        >>> merged.indices.numpy().tolist(), merged.values.numpy().tolist()
        ([3, 0], [[5.0], [2.0]])
    """
    indices, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def zero_at(x: tf.Tensor, indices: tf.Tensor, left: float | tf.Tensor = 0.0):
    """x with ``left`` (zero, or the rounding error) in place of the elements at ``indices``, none of them twice.

    In a graph that has no other use for x, it is changed where it lies in memory and not copied.

    Example:
        >>> zero_at(tf.constant([1.0, 2.0, 3.0]), tf.constant([1])).numpy().tolist()
        [1.0, 0.0, 3.0]
    """
    old, places = tf.gather(x, indices), indices[:, None]
    left = tf.broadcast_to(tf.cast(left, x.dtype), tf.shape(indices))
    # tf.tensor_scatter_nd_update copies x first, on a CPU always. Adding does not, but cannot clear infinity. What it
    # leaves is the same to the bit: left is what rounding made of old - sent, so old + (left - old) is left.
    return tf.cond(
        tf.math.is_finite(tf.reduce_sum(old)),
        lambda: tf.raw_ops.ScatterNdNonAliasingAdd(input=x, indices=places, updates=left - old),
        lambda: tf.tensor_scatter_nd_update(x, places, left),
    )
