"""Deep Gradient Compression as a scheme, for one worker and all of its tensors at once.

The paper's Algorithm 1 is accumulation and selection alone; momentum correction, clipping and factor masking are in its
section 3, and appendix B has all of them together. With gradient g, velocity u and residual v (arXiv:1712.01887):

    g <- g x min(1, limit / |g|)     `dgc_lab.compression.gradients.clip_locally`, before the step
    u <- m u + g;  v <- v + u        `accumulate`: momentum correction, then local accumulation
    threshold <- ratio-th of |v|     `vector_thresholds`: one for each tensor
    mask <- |v| >= threshold         `elements_above`
    send v * mask                    `SparseMean`
    v <- v * !mask;  u <- u * !mask  `replaced`; the second one is momentum factor masking

`accumulate_and_select` is all of these but the first and the sending; `dgc_lab.compression.selection` has it.
"""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from dgc_lab.common import check_choice, check_instance
from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.scheme import Scheme, SparseMean, SparseVector
from dgc_lab.compression.selection import Rule, accumulate_and_select
from dgc_lab.compression.wrappers import with_momentum


def scheme_and_config(scheme: DGCConfig | Scheme, options: DGCConfig | None) -> tuple[Scheme, DGCConfig]:
    """Return the scheme, and its config for clipping, weight decay, wire format and exemptions."""
    if isinstance(scheme, DGCConfig):
        if options is not None:
            raise ValueError(f"options must be None with a DGCConfig, which has its own, got {options}")
        return scheme_of(scheme), scheme
    if not isinstance(scheme, Scheme):
        raise ValueError(f"scheme must be a DGCConfig or a Scheme, got {scheme!r}")
    options = DGCConfig() if options is None else check_instance("options", options, DGCConfig)
    check_choice("reduction", options.reduction, ("average",))  # a scheme's update is a mean
    return scheme, options


def scheme_of(config: DGCConfig, ratio: float | tf.Tensor | None = None) -> Scheme:
    """Return the scheme that a config of Deep Gradient Compression describes.

    Args:
        config: momentum, accumulation, masking and thresholds; its other fields concern the compressor.
        ratio: share to send, instead of the run's; a number or a scalar tensor.

    Raises:
        ValueError: `config` is not a `DGCConfig`.

    Example:
        >>> scheme_of(DGCConfig(momentum=0.5)).momentum
        0.5
    """
    check_instance("config", config, DGCConfig)
    corrects = config.has_local_velocity

    def init(gradient):
        if not config.accumulate:
            return ()
        # A scheme with momentum keeps its velocity first.
        return (tf.zeros_like(gradient), tf.zeros_like(gradient)) if corrects else (tf.zeros_like(gradient),)

    def step(gradient, state, context):
        share = context.ratio if ratio is None else ratio
        indices, values, state = accumulate_and_select(
            gradient,
            state[::-1],
            Rule(share, config.rule, config.scope, config.sample),
            context,
            config.momentum,
            config.nesterov,
            config.factor_masking,
        )
        mean, own = yield from mean_of_selected(indices, values, gradient.shape[0], share)
        return mean, own, state[::-1]

    scheme = Scheme(step, init, "dgc", selects_non_finite=True)
    if corrects:
        return replace(scheme, momentum=config.momentum, nesterov=config.nesterov)
    return with_momentum(scheme, config.momentum, config.nesterov) if config.momentum else scheme


def mean_of_selected(indices: tf.Tensor, values: tf.Tensor, size: int, ratio: float | tf.Tensor | None = None):
    """Ask for the mean of all workers' elements, as `SparseMean`; return it and this worker's own `SparseVector`."""
    mean = yield SparseMean(indices, values, size, ratio)
    return mean, SparseVector([(indices, values)], size)
