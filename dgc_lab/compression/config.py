"""Options of Deep Gradient Compression, and the number of bytes that they lead to.

`dgc_lab.compression.dgc_scheme` has the algorithm.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import tensorflow as tf

from dgc_lab.common import check_choice, check_flag, check_instance, check_list, check_number, check_whole
from dgc_lab.compression.break_even import DENSE_ELEMENT, dense_is_shorter
from dgc_lab.compression.segment_search import JUST_BELOW_1
from dgc_lab.compression.thresholding import RULES, SCOPES
from dgc_lab.compression.wire_format import INDEX_TYPES, VALUE_TYPES, Layout

#: The paper's ratios during warm-up, one for each stage: sparsity 75, 93.75, 98.4375 and 99.6 %; then 99.9 %.
PAPER_WARM_UP = (0.25, 0.0625, 0.015625, 0.004)
REDUCTIONS = ("average", "sum")
# The options of masking alone (lesson 4): it drops elements that it does not send, applies momentum after the
# exchange, and sends no tensor uncompressed.
MASKING = {
    **dict.fromkeys(("accumulate", "momentum_correction", "factor_masking", "dense_vectors"), False),
    "dense_below": 0,
}


@runtime_checkable
class Collectives(Protocol):
    """The participants in a training run: the interface of `dgc_lab.distributed.communicators`."""

    size: int
    first: int
    local: int
    allreduce: Callable
    allgather: Callable
    reduce_within_host: Callable
    assert_same_on_all_ranks: Callable


@dataclass(frozen=True)
class DGCConfig:
    """Options of Deep Gradient Compression; the defaults are the paper's algorithm at 0.1 %.

    Attributes:
        ratio: share of each tensor's elements that a worker sends, in [0, 1].
        momentum: in [0, 1). Apply the update with plain SGD, because it already includes this momentum.
        nesterov: use Nesterov's momentum.
        accumulate: keep elements that were not sent and add the next gradients to them. If False they are dropped
            (masking alone), and momentum is applied after the exchange: a local velocity would keep them.
        momentum_correction: apply momentum before accumulation, on each worker (the paper's eq. 7). If False, it is
            applied to the averaged sparse update after the exchange (eq. 5), which the paper warns against.
        factor_masking: clear the velocity, too, where an element is sent (section 3.3). At ratio 1 the velocity stays:
            sending everything is momentum SGD. At 0.3, a constant gradient moves a weight a fifth as far, at 0.01 nine
            tenths as far.
        clip_norm: largest L2 norm of a step's whole gradient; a larger one is scaled down. None for no clipping. It
            applies to the gradient over all workers; each worker clips to its share of it (`clip_locally`).
        weight_decay: this factor times the weights is added to the local gradient, before everything else, but not to
            gradients of rows (embeddings), which it would make dense.
        warm_up: ratios of the stages before ``ratio`` applies, falling, such as `PAPER_WARM_UP`; ``(1.0,)`` trains
            dense first. See `geometric_warm_up`.
        warm_up_steps: steps in each stage of the warm-up.
        rule: rule for finding thresholds: ``"exact"``, ``"sampled"`` or ``"hierarchical"``.
        scope: scope of a threshold: ``"tensor"``, ``"global"`` or ``"first"`` (`dgc_lab.compression.thresholding`).
        sample: share of the elements that the sampled rules use, in (0, 1].
        dense_vectors: send tensors of one dimension (biases, batch norm) uncompressed.
        dense_below: send tensors with fewer elements than this uncompressed.
        values: type of sparse values on the wire; the rounding error of ``"float16"`` stays in the residual.
            Uncompressed tensors are sent as float32.
        indices: encoding of their positions: ``"int32"``, 4 bytes each, or ``"run_lengths"``, 2 bytes for the number
            of elements between one and the next, the paper's encoding (`dgc_lab.compression.wire_format`).
        switch_to_dense: send the same elements by allreduce, with zeros between them, in steps whose ratio and number
            of workers make that cheaper (`dgc_lab.compression.break_even`), including those of the warm-up.
        reduction: ``"average"`` if each worker's gradient is the mean over its own batch; ``"sum"`` if it is
            already divided by the number of workers, as in the paper. The division happens only once.
        seed: integer from which samples are drawn, the same on all workers.

    Raises:
        ValueError: a value is out of range; the message names it.

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
        for name, allowed in {"warm_up_steps": (1,), "dense_below": (0,), "seed": (0, 2**31 - 1)}.items():
            object.__setattr__(self, name, check_whole(name, getattr(self, name), *allowed))  # an int, not numpy's
        for name, default in type(self).__dataclass_fields__.items():
            if isinstance(default.default, bool):
                check_flag(name, getattr(self, name))
        object.__setattr__(self, "warm_up", tuple(self.warm_up))
        for stage in self.warm_up:
            check_number("warm_up", stage, "a sequence of ratios")
        stages = self.warm_up if not self.warm_up or self.ratio == 0 else (*self.warm_up, self.ratio)
        falls = all(later < earlier for earlier, later in itertools.pairwise(stages))
        if not falls or not all(0 < ratio <= 1 for ratio in self.warm_up):
            raise ValueError(
                f"warm_up must hold ratios that fall from at most 1 towards the ratio {self.ratio:g}, "
                f"got {list(self.warm_up)}"
            )

    def ratio_at(self, step: int | tf.Tensor) -> float | tf.Tensor:
        """Return the ratio of a step, counted from 0: that of its warm-up stage, or ``ratio`` after the warm-up."""
        if not self.warm_up:
            return self.ratio
        stage = step // self.warm_up_steps
        if tf.is_tensor(stage):
            return tf.gather(tf.constant([*self.warm_up, self.ratio], tf.float64), tf.minimum(stage, len(self.warm_up)))
        return self.warm_up[stage] if stage < len(self.warm_up) else self.ratio

    @property
    def has_local_velocity(self) -> bool:
        """Whether each worker has its own velocity, which is applied before accumulation (momentum correction)."""
        return self.momentum_correction and self.momentum > 0 and self.accumulate

    def is_dense(self, shape) -> bool:
        """Return whether a tensor of this shape is sent uncompressed, by `dense_vectors` and `dense_below`."""
        shape = tf.TensorShape(shape)
        return (self.dense_vectors and shape.rank <= 1) or shape.num_elements() < self.dense_below


def geometric_warm_up(ratio: float, stages: int = 4) -> tuple[float, ...]:
    """Return warm-up ratios that fall by the same factor from stage to stage, and from the last stage to ``ratio``.

    Args:
        ratio: the ratio after the warm-up, in (0, 1).
        stages: number of stages before it, 1 to 1000.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> [round(stage, 4) for stage in geometric_warm_up(0.001, stages=2)]
        [0.1, 0.01]

    References:
        arXiv:1712.01887, section 3.3 (the sparsity rises exponentially).
    """
    check_number("ratio", ratio, "above 0 and below 1")
    check_whole("stages", stages, 1, 1000)
    return tuple(ratio ** ((stage + 1) / (stages + 1)) for stage in range(stages))


def payload_bytes(shapes: Sequence[Sequence[int]], config: DGCConfig, workers: int = 1) -> tuple[int, int]:
    """Return a worker's payload in a step, and the size of the uncompressed gradient, in bytes.

    The estimate assumes ceil(ratio * n) elements of each compressed tensor, and no gap too long for a run length. In a
    real step, a sampled threshold selects a few more or fewer elements; the step counts its own bytes.

    Args:
        shapes: shape of each gradient tensor.
        config: ratio, exemptions, value and index type.
        workers: number of workers, on which the choice of the collective depends (`dgc_lab.compression.break_even`).

    Returns:
        ``(compressed, dense)`` in bytes; the former include the header of the message.

    Raises:
        ValueError: shapes are not lists of whole numbers, or workers is below 1.

    Example:
        >>> payload_bytes([[100, 100], [100]], DGCConfig(ratio=0.01))
        (1208, 40400)
        >>> payload_bytes([[100, 100], [100]], DGCConfig(ratio=0.01, values="float16", indices="run_lengths"))
        (808, 40400)

    References:
        arXiv:1712.01887, section 3 (values of 32 bits, run lengths of zeros of 16).
    """
    check_whole("workers", workers, 1)
    check_instance("config", config, DGCConfig)
    shapes = [
        [check_whole("shapes", side, 0) for side in check_list("shapes", s)] for s in check_list("shapes", shapes)
    ]
    sizes = [tf.TensorShape(shape).num_elements() for shape in shapes]
    dense = DENSE_ELEMENT * sum(sizes)
    sparse = [size for size, shape in zip(sizes, shapes, strict=True) if not config.is_dense(shape)]
    layout = Layout(config.values, config.indices, fixed=1, sparse=1)  # fixed: the number of a non-finite gradient
    switches = config.switch_to_dense and dense_is_shorter(config.ratio, workers, layout.entry_bytes)
    if switches or not sparse:
        return dense + 4 * workers, dense  # all workers' numbers travel in a table that is added up
    # k as in `segment_search.elements_to_keep`, but not in int32, which is too small for the largest tensors.
    entries = sum(math.ceil(config.ratio * JUST_BELOW_1 * size) for size in sparse)
    return DENSE_ELEMENT * (sum(sizes) - sum(sparse)) + entries * layout.entry_bytes + layout.header_bytes, dense
