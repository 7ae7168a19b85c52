"""Every switch of Deep Gradient Compression in one place, and what they come to in bytes.

What the switches do is `dgc_lab.dgc.algorithm`'s business.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import tensorflow as tf

from dgc_lab.common import check_choice, check_number, check_whole
from dgc_lab.dgc.break_even import DENSE_ELEMENT, dense_is_shorter
from dgc_lab.dgc.thresholding import RULES, SCOPES
from dgc_lab.dgc.wire_format import INDEX_TYPES, VALUE_TYPES, Layout

#: The paper's ratios while it warms up, a stage each: sparsity 75, 93.75, 98.4375 and 99.6 %; after them 99.9 %.
PAPER_WARM_UP = (0.25, 0.0625, 0.015625, 0.004)
REDUCTIONS = ("average", "sum")
# What is off in masking alone (lesson 4): it drops what is not sent, has momentum after the exchange, and knows no
# tensor that is sent whole.
MASKING = {
    **dict.fromkeys(("accumulate", "momentum_correction", "factor_masking", "dense_vectors"), False),
    "dense_below": 0,
}


@runtime_checkable
class Collectives(Protocol):
    """Who takes part: what each of `dgc_lab.distributed.communicators` has."""

    size: int
    first: int
    local: int
    allreduce: Callable
    allgather: Callable
    reduce_within_host: Callable
    assert_same_on_all_ranks: Callable


@dataclass(frozen=True)
class DGCConfig:
    """Every switch of Deep Gradient Compression; the defaults are the paper's algorithm at 0.1 %.

    Attributes:
        ratio: share of each tensor's elements that a worker sends, in [0, 1].
        momentum: in [0, 1). The optimizer that applies the update must be plain SGD: momentum is here already.
        nesterov: Nesterov's momentum in place of the vanilla kind.
        accumulate: keep what was not sent and add the next gradients to it. Off, it is dropped: masking alone, and
            momentum comes after the exchange, for a velocity on each worker would keep what is to be dropped.
        momentum_correction: momentum before accumulation, on each worker (the paper's eq. 7). Off, momentum is
            applied to the averaged sparse update after the exchange (eq. 5), which the paper warns of.
        factor_masking: clear the velocity, too, where an element was sent (section 3.3). At a ratio of 1 it is kept:
            where everything is sent, this is momentum SGD.
        clip_norm: L2 norm over all of a step's gradients above which they are scaled down; None for no clipping.
            The norm is that of the gradient over all workers; each worker clips to its share of it (`clip_locally`).
        weight_decay: times the weights is added to the local gradient, before everything else; not to gradients that
            are rows (embeddings), which it would make dense.
        warm_up: ratios of the stages before ``ratio`` holds, falling, such as `PAPER_WARM_UP`; ``(1.0,)`` trains
            dense first. See `geometric_warm_up`.
        warm_up_steps: steps in each stage of the warm-up.
        rule: how thresholds are found: ``"exact"``, ``"sampled"`` or ``"hierarchical"``.
        scope: whose threshold: ``"tensor"``, ``"global"`` or ``"first"`` (`dgc_lab.dgc.thresholding.thresholds`).
        sample: share of the elements that the sampled rules look at, in (0, 1].
        dense_vectors: tensors of one dimension (biases, batch norm) are sent whole.
        dense_below: so are tensors with fewer elements than this.
        values: what sparse values travel as; the rounding error of ``"float16"`` stays in the residual. Whatever else
            is sent travels as float32.
        indices: how their positions are encoded: ``"int32"``, 4 bytes each, or ``"run_lengths"``, 2 bytes for the
            number of elements between one and the next, the paper's encoding (`dgc_lab.dgc.wire_format`).
        switch_to_dense: in steps whose ratio and number of workers make that shorter, send the same elements by
            allreduce, with zeros between them (`dgc_lab.dgc.break_even`); in the warm-up, too.
        reduction: ``"average"`` where each worker's gradient is the mean over its own batch; ``"sum"`` where it
            holds 1 / workers already, as in the paper. The division by the number of workers happens once.
        seed: integer from which samples are drawn, the same on all workers.

    Raises:
        ValueError: a value is outside what is said above; the message names it.

    Example:
        >>> DGCConfig(ratio=0.01, warm_up=PAPER_WARM_UP[:2], warm_up_steps=100).ratio_at(150)
        0.0625
        >>> DGCConfig(ratio=2)
        Traceback (most recent call last):
        ValueError: ratio must be in [0, 1], got 2
    """

    ratio: float = 0.001
    momentum: float = 0.9
    nesterov: bool = False
    accumulate: bool = True
    momentum_correction: bool = True
    factor_masking: bool = True
    clip_norm: float | None = None
    weight_decay: float = 0.0
    warm_up: tuple[float, ...] = ()
    warm_up_steps: int = 100
    rule: str = "sampled"
    scope: str = "tensor"
    sample: float = 0.01
    dense_vectors: bool = True
    dense_below: int = 1024
    values: str = "float32"
    indices: str = "int32"
    switch_to_dense: bool = True
    reduction: str = "average"
    seed: int = 0

    def __post_init__(self):
        choices = {
            "rule": RULES,
            "scope": SCOPES,
            "values": VALUE_TYPES,
            "indices": INDEX_TYPES,
            "reduction": REDUCTIONS,
        }
        for name, allowed in choices.items():
            check_choice(name, getattr(self, name), allowed)
        check_number("ratio", self.ratio, "in [0, 1]")
        check_number("momentum", self.momentum, "at least 0 and below 1")
        check_number("weight_decay", self.weight_decay, "at least 0", finite=True)
        check_number("sample", self.sample, "in (0, 1]")
        if self.clip_norm is not None:
            check_number("clip_norm", self.clip_norm, "above 0, or None for no clipping")
        if not isinstance(self.warm_up, Sequence) or isinstance(self.warm_up, str):
            raise ValueError(f"warm_up must be a sequence of ratios, got {self.warm_up!r}")
        for name, least in {"warm_up_steps": 1, "dense_below": 0}.items():
            check_whole(name, getattr(self, name), least)
        check_whole("seed", self.seed, 0, 2**31 - 1)
        object.__setattr__(self, "warm_up", tuple(self.warm_up))
        stages = self.warm_up if not self.warm_up or self.ratio == 0 else (*self.warm_up, self.ratio)
        falls = all(later < earlier for earlier, later in itertools.pairwise(stages))
        if not falls or not all(0 < ratio <= 1 for ratio in self.warm_up):
            raise ValueError(
                f"warm_up must hold ratios that fall from at most 1 towards the ratio {self.ratio:g}, "
                f"got {list(self.warm_up)}"
            )

    @functools.cached_property
    def corrects_momentum(self) -> bool:
        """Whether momentum comes before the accumulation, on each worker."""
        return self.momentum_correction and self.momentum > 0 and self.accumulate

    @functools.cached_property
    def clears_velocity(self) -> bool:
        """Whether sending an element clears its velocity, too."""
        return self.corrects_momentum and self.factor_masking

    def ratio_at(self, step: int) -> float:
        """The ratio of a step, 0 for the first: that of its stage of the warm-up, then ``ratio``."""
        stage = step // self.warm_up_steps
        return self.warm_up[stage] if stage < len(self.warm_up) else self.ratio

    def is_dense(self, shape) -> bool:
        """Whether a tensor of this shape is sent whole: one dimension or none, or few elements."""
        shape = tf.TensorShape(shape)
        return (self.dense_vectors and shape.rank <= 1) or shape.num_elements() < self.dense_below


def geometric_warm_up(ratio: float, stages: int = 4) -> tuple[float, ...]:
    """Ratios that fall by the same factor from stage to stage, and by once more to ``ratio``.

    Args:
        ratio: where the warm-up leads, in (0, 1).
        stages: number of stages before that, at least 1.

    Raises:
        ValueError: an argument is outside what is said above.

    Example:
        >>> [round(stage, 4) for stage in geometric_warm_up(0.001, stages=2)]
        [0.1, 0.01]

    Source: arXiv:1712.01887, section 3.3 (the sparsity rises exponentially).
    """
    check_number("ratio", ratio, "above 0 and below 1")
    check_whole("stages", stages, 1, 1000)
    return tuple(ratio ** ((stage + 1) / (stages + 1)) for stage in range(stages))


def payload_bytes(shapes: Sequence[Sequence[int]], config: DGCConfig, workers: int = 1) -> tuple[int, int]:
    """Bytes that one worker hands to the collectives in a step, and what sending all in float32 would take.

    The number of sent elements is taken as ceil(ratio * n) for each tensor that is not sent whole, and run lengths as
    if none were too long; what a real step sent is counted in the step, since a sampled threshold lets a few more or
    fewer pass. A ValueError for fewer than one worker.

    Args:
        shapes: shape of each gradient tensor.
        config: ratio, exemptions, value and index type.
        workers: their number; it decides what travels by allreduce (`dgc_lab.dgc.break_even`).

    Returns:
        ``(compressed, dense)`` in bytes; the header of a message is among the former.

    Example:
        >>> payload_bytes([[100, 100], [100]], DGCConfig(ratio=0.01))
        (1208, 40400)
        >>> payload_bytes([[100, 100], [100]], DGCConfig(ratio=0.01, values="float16", indices="run_lengths"))
        (808, 40400)

    Source: arXiv:1712.01887, section 3 (values of 32 bits, run lengths of zeros of 16).
    """
    check_whole("workers", workers, 1)
    sizes = [tf.TensorShape(shape).num_elements() for shape in shapes]
    dense = DENSE_ELEMENT * sum(sizes)
    sparse = [size for size, shape in zip(sizes, shapes, strict=True) if not config.is_dense(shape)]
    layout = Layout(config.values, config.indices, metadata=1)  # the number of a gradient that is not finite
    switches = config.switch_to_dense and dense_is_shorter(config.ratio, workers, layout.entry_bytes)
    if switches or not sparse:
        return dense + 4 * layout.metadata * workers, dense  # everybody's metadata are in the table that is added up
    entries = sum(-int(-config.ratio * (1 - 1e-7) * size // 1) for size in sparse)
    return DENSE_ELEMENT * (sum(sizes) - sum(sparse)) + entries * layout.entry_bytes + layout.header_bytes, dense
