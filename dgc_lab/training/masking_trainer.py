"""Training of the lab's networks by one worker with masked gradients. Lesson 4.

`dgc_lab.training.model_trainer.ModelTrainer` has the loop; it treats masking as one more scheme.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import keras
import numpy as np

from dgc_lab.common import check_choice, check_instance, check_number, check_whole
from dgc_lab.compression.config import MASKING, DGCConfig
from dgc_lab.compression.schemes.quantized import dense
from dgc_lab.compression.thresholding import RULES, SCOPES
from dgc_lab.compression.wrappers import with_momentum
from dgc_lab.distributed.communicators import OneWorker
from dgc_lab.training.custom_masks import masking_scheme
from dgc_lab.training.events import Evaluation, Step
from dgc_lab.training.model_trainer import ModelTrainer
from dgc_lab.workloads.batches import cross_entropy
from dgc_lab.workloads.data import load
from dgc_lab.workloads.dataset import Dataset
from dgc_lab.workloads.gpu import grow_gpu_memory
from dgc_lab.workloads.models import MODELS, network_for

CHOICES = {"schedule": ("constant", "cosine", "warm-up"), "network": ("default", "resnet20")}
IMAGES = ("digits", "mnist", "fashion_mnist", "cifar10")


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """Settings of a training run, except for the ratio.

    Attributes:
        dataset: one of `dgc_lab.workloads.load`.
        network: ``"default"``, the network that the lab trains on this data (`dgc_lab.workloads.models.MODELS`), or
            ``"resnet20"``, for images.
        steps: number of updates, at least 1.
        batch: examples per update, 1 to 65 536.
        learning_rate: above 0.
        schedule: ``"constant"``; ``"cosine"``, which falls to 0 at the last step; or ``"warm-up"``, which rises from 0
            to the learning rate in the first tenth of the steps (of at least 10), and then falls in the same way.
        momentum: in [0, 1); applied to the masked gradient, as in the published code.
        rule: how the threshold is found: ``"exact"``, ``"sampled"``, ``"hierarchical"``, or ``"off"`` for no mask.
        scope: whose threshold: ``"tensor"``, ``"global"`` or ``"first"`` (see `dgc_lab.compression.thresholds`).
        seed: integer, 0 to 2 147 483 647, for initial weights, batches, dropout and samples.
        evaluations: number of evaluations on the test set, evenly spaced; the last one follows the last step.

    Raises:
        ValueError: a value is not allowed; the message names it.

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
    schedule: str = "constant"
    network: str = "default"

    def __post_init__(self):
        for name, value in vars(self).items():
            if getattr(value, "shape", None) == ():  # a row's JSON cannot hold NumPy's numbers
                object.__setattr__(self, name, np.asarray(value).item())
        for name, allowed in {"dataset": MODELS, "rule": (*RULES, "off"), "scope": SCOPES, **CHOICES}.items():
            check_choice(name, getattr(self, name), allowed)
        if self.network == "resnet20" and self.dataset not in IMAGES:
            raise ValueError(f"network must be 'default' for {self.dataset}, which has no images, got 'resnet20'")
        for name, limits in {"steps": (1,), "batch": (1, 2**16), "seed": (0, 2**31 - 1), "evaluations": (1,)}.items():
            check_whole(name, getattr(self, name), *limits)
        check_number("learning_rate", self.learning_rate, "above 0", finite=True)
        check_number("momentum", self.momentum, "at least 0 and below 1")

    def to_dict(self) -> dict:
        """Return all settings by name as JSON values: a row records them, and a resumed run must have the same."""
        return dataclasses.asdict(self)

    def check_ratios(self, ratios) -> None:
        """Raise ValueError if a ratio is not in [0, 1], or not 1 with rule "off", which would ignore it."""
        for ratio in ratios:
            check_number("ratio", ratio, "in [0, 1]")
            if self.rule == "off" and ratio != 1:
                raise ValueError(f"ratio must be 1 with rule 'off', which sends everything, got {ratio!r}")

    def rate(self) -> float | keras.optimizers.schedules.LearningRateSchedule:
        """Return the learning rate, or its schedule."""
        if self.schedule == "constant":
            return self.learning_rate
        rise = self.steps // 10 if self.schedule == "warm-up" else 0
        peak = {"warmup_steps": rise, "warmup_target": self.learning_rate} if rise else {}
        first = 0.0 if rise else self.learning_rate
        return keras.optimizers.schedules.CosineDecay(first, self.steps - rise, **peak)

    @property
    def model(self) -> str:
        """Name of the data set's network."""
        return MODELS[self.dataset].__name__ if self.network == "default" else self.network


def check_one_worker(settings: MaskingConfig) -> None:
    """Raise ValueError unless ``settings`` is a `MaskingConfig` without ``workers``, which only its subclass has."""
    if getattr(check_instance("settings", settings, MaskingConfig), "workers", None) is not None:
        kind = type(settings).__name__
        raise ValueError(f"settings must be a plain MaskingConfig, got {kind}: use a DistributedTrainer for it")


class Trainer(ModelTrainer):
    """Trainer with masked gradients on one worker, with one traced step for every ratio.

    Args:
        settings: the run's settings.
        data: the data set, if it is loaded already.
        masks: custom masks instead of the settings' rule and scope: a function of (list of gradients, ratio, seed)
            that returns a list of boolean tensors, True for elements to keep.

    Attributes:
        names: name of each trained tensor, such as ``dense/kernel``.
        sizes: number of elements of each trained tensor.
        has_masks: whether the trainer uses custom ``masks``.
        traces: how often TensorFlow has traced the training step.

    Raises:
        ValueError: ``settings`` are for several workers, or ``masks`` are given with rule "off".

    Example:
        >>> trainer = Trainer(MaskingConfig(steps=10, evaluations=2))
        >>> [event.step for event in trainer.run(ratio=0.01) if isinstance(event, Evaluation)]
        [5, 10]
    """

    def __init__(self, settings: MaskingConfig, data: Dataset | None = None, masks: Callable | None = None):
        grow_gpu_memory()
        check_one_worker(settings)
        self.has_masks = masks is not None
        if self.has_masks and settings.rule == "off":
            raise ValueError("masks must be None with rule 'off', which applies no mask")
        self.settings, self.data = settings, data or load(settings.dataset)
        self.evaluate = self.data.evaluator()
        options = DGCConfig(seed=settings.seed, **MASKING)
        if self.has_masks or settings.rule == "off":
            scheme = masking_scheme(masks) if self.has_masks else dense()
            compression = with_momentum(scheme, settings.momentum) if settings.momentum else scheme
        else:
            own = {name: getattr(settings, name) for name in ("momentum", "rule", "scope")}
            compression, options = dataclasses.replace(options, **own), None
        super().__init__(
            network_for(settings.dataset, settings.seed, settings.network, self.data),
            cross_entropy,
            self.data.batches(settings.batch, settings.seed),
            compression,
            settings.rate(),
            OneWorker(),
            settings.seed,
            options,
        )

    def run(self, ratio: float) -> Iterator[Step | Evaluation]:
        """Train from the initial weights, keeping the share ``ratio``, in [0, 1], of each step's gradients.

        Yields:
            A `Step` after every update and an `Evaluation` at regular intervals, the last one after the last step.
            Several steps run in one call, so the weights can be some steps ahead of a `Step`, but never of an
            `Evaluation`.

        Raises:
            ValueError: ratio is not in [0, 1], or not 1 with rule "off".
            TrainingDiverged: a gradient contains NaN or infinity.
        """
        settings = self.settings
        settings.check_ratios([ratio])
        self.reset()
        config = dataclasses.replace(self.config, ratio=ratio)
        for event in self._train(config, settings.steps, self.evaluate, settings.evaluations):
            if isinstance(event, Evaluation):
                yield event
            else:  # a single worker sends nothing
                yield Step(event.step, event.loss, event.shares_sent, event.share_sent, event.seconds)
