"""One worker trains one of the lab's networks with masked gradients. Lesson 4.

The loop is that of `dgc_lab.training.model_trainer.ModelTrainer`; masking is one more scheme to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from dgc_lab.common import check_choice, check_number, check_whole
from dgc_lab.compression.config import MASKING, DGCConfig
from dgc_lab.compression.gradients import flatten
from dgc_lab.compression.quantized import dense
from dgc_lab.compression.scheme import Scheme, SparseMean, SparseVector
from dgc_lab.compression.thresholding import RULES, SCOPES
from dgc_lab.compression.wrappers import with_momentum
from dgc_lab.distributed.communicators import OneWorker
from dgc_lab.training.events import Evaluation, Step
from dgc_lab.training.model_trainer import ModelTrainer, batches_of
from dgc_lab.workloads.batches import cross_entropy, grow_gpu_memory, make_evaluator
from dgc_lab.workloads.data import load
from dgc_lab.workloads.dataset import Dataset
from dgc_lab.workloads.models import MODELS


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """Everything that fixes a training run, but for the ratio.

    Attributes:
        dataset: one of `dgc_lab.workloads.load`; the model goes with it (`dgc_lab.workloads.models.MODELS`).
        steps: number of updates, at least 1.
        batch: examples per update, 1 to 65 536.
        learning_rate: above 0.
        momentum: in [0, 1); applied to what the mask lets through, as the published code does.
        rule: how the threshold is found: ``"exact"``, ``"sampled"``, ``"hierarchical"``, or ``"off"`` for no mask.
        scope: whose threshold: ``"tensor"``, ``"global"`` or ``"first"`` (see `dgc_lab.compression.thresholds`).
        seed: integer, 0 to 2 147 483 647, from which first weights, batches, dropout and samples are drawn.
        evaluations: how often the test set is measured, at even distances; the last time is after the last step.

    Raises:
        ValueError: a value is outside what is said above; the message names it.

    Example:
        >>> MaskingConfig(dataset="mnist", steps=100).batch
        64
    """

    dataset: str = "digits"
    steps: int = 300
    batch: int = 64
    learning_rate: float = 0.05
    momentum: float = 0.9
    rule: str = "sampled"
    scope: str = "tensor"
    seed: int = 0
    evaluations: int = 10

    def __post_init__(self):
        for name, value in vars(self).items():
            if getattr(value, "shape", None) == ():  # NumPy's numbers, which a row's JSON cannot hold
                object.__setattr__(self, name, np.asarray(value).item())
        for name, allowed in {"dataset": MODELS, "rule": (*RULES, "off"), "scope": SCOPES}.items():
            check_choice(name, getattr(self, name), allowed)
        for name, limits in {"steps": (1,), "batch": (1, 2**16), "seed": (0, 2**31 - 1), "evaluations": (1,)}.items():
            check_whole(name, getattr(self, name), *limits)
        check_number("learning_rate", self.learning_rate, "above 0", finite=True)
        check_number("momentum", self.momentum, "at least 0 and below 1")

    def facts(self) -> dict:
        """All of it as JSON values by name: what a row in a file says, and what a run that goes on must have."""
        return dataclasses.asdict(self)

    def check_ratios(self, ratios) -> None:
        """A ValueError for a ratio outside [0, 1], and with rule "off" for any ratio but 1: nothing would apply it."""
        for ratio in ratios:
            check_number("ratio", ratio, "in [0, 1]")
            if self.rule == "off" and ratio != 1:
                raise ValueError(f"ratio must be 1 with rule 'off', which sends everything, got {ratio!r}")

    @property
    def model(self) -> str:
        """Name of the network that goes with the data set."""
        return MODELS[self.dataset].__name__


def check_alone(settings: MaskingConfig) -> None:
    """Raise ValueError for settings of several workers, which are a `MaskingConfig`, too."""
    if (workers := getattr(settings, "workers", None)) is not None:
        raise ValueError(f"settings must be of one worker, got {workers}: a DistributedTrainer is for them")


class Trainer(ModelTrainer):
    """A model, its data on the device, and one traced training step that serves every ratio.

    Args:
        settings: what to train.
        data: the data set, if it is loaded already.
        masks: your own choice of what is kept, in place of the settings' rule and scope: a function of (list of
            gradients, ratio, seed) that returns a list of boolean tensors, True for what is kept.

    Attributes:
        names: name of each trained tensor, such as ``dense/kernel``.
        sizes: elements in each of them.
        has_masks: whether it was given ``masks``.
        traces: how often TensorFlow has traced the training step.

    Raises:
        ValueError: ``masks`` were given beside the rule "off".

    Example:
        >>> trainer = Trainer(MaskingConfig(steps=10, evaluations=2))
        >>> [event.step for event in trainer.run(ratio=0.01) if isinstance(event, Evaluation)]
        [5, 10]
    """

    def __init__(self, settings: MaskingConfig, data: Dataset | None = None, masks: Callable | None = None):
        grow_gpu_memory()
        check_alone(settings)
        self.has_masks = masks is not None
        if self.has_masks and settings.rule == "off":
            raise ValueError("masks must be None with rule 'off', which applies none")
        self.settings, self.data = settings, data or load(settings.dataset)
        self.evaluate = make_evaluator(self.data.x_test, self.data.y_test)
        options = DGCConfig(seed=settings.seed, **MASKING)
        if self.has_masks or settings.rule == "off":
            scheme = masked_by(masks) if self.has_masks else dense()
            compression = with_momentum(scheme, settings.momentum) if settings.momentum else scheme
        else:
            own = {name: getattr(settings, name) for name in ("momentum", "rule", "scope")}
            compression, options = dataclasses.replace(options, **own), None
        super().__init__(
            MODELS[settings.dataset](settings.seed),
            cross_entropy,
            batches_of(self.data.x_train, self.data.y_train, settings.batch, settings.seed),
            compression,
            settings.learning_rate,
            OneWorker(),
            settings.seed,
            options,
        )

    def run(self, ratio: float) -> Iterator[Step | Evaluation]:
        """Train from the first weights on, keeping the share ``ratio``, in [0, 1], of each step's gradients.

        Yields:
            A `Step` after every update and an `Evaluation` now and then, the last one after the last step. Several
            steps run at once, so the weights can be some steps ahead of a `Step`; at an `Evaluation` they are not.

        Raises:
            ValueError: ratio outside [0, 1], or other than 1 with rule "off".
            TrainingDiverged: a gradient held NaN or infinity.
        """
        settings = self.settings
        settings.check_ratios([ratio])
        self.reset()
        config = dataclasses.replace(self.config, ratio=ratio)
        for event in self._train(config, settings.steps, self.evaluate, settings.evaluations):
            if isinstance(event, Evaluation):
                yield event
            else:  # one worker sends nothing
                yield Step(event.step, event.loss, event.kept, event.kept_overall, event.seconds)


def masked_by(masks: Callable) -> Scheme:
    """Return the scheme that keeps what a user's function of (list of gradients, ratio, seed) chooses."""
    traced = tf.function(masks)  # so that a user may write Python branches on tensors

    def step(gradient, state, context):
        chosen = flatten(traced(context.parts, context.ratio, seed=context.seed))
        indices = tf.cast(tf.where(chosen)[:, 0], tf.int32)
        values, size = tf.gather(gradient, indices), gradient.shape[0]
        mean = yield SparseMean(indices, values, size, context.ratio)
        return mean, SparseVector([(indices, values)], size), state

    return Scheme(step, name="masks of one's own")
