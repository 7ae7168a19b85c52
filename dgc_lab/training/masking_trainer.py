"""One worker trains with masked gradients: a generator of what happens, which one stops by reading no further."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from dgc_lab.common import check_choice, check_number, check_whole
from dgc_lab.compression.gradients import check_finite
from dgc_lab.compression.thresholding import RULES, SCOPES, keep_masks
from dgc_lab.training.events import Evaluation, Step, TrainingDiverged, next_evaluation, readable_error
from dgc_lab.training.steps_at_once import StepsAtOnce
from dgc_lab.workloads.batches import cross_entropy, grow_gpu_memory, make_evaluator, pick_batch
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
    """A ValueError for settings of several workers, which are a `MaskingConfig`, too."""
    if (workers := getattr(settings, "workers", None)) is not None:
        raise ValueError(f"settings must be of one worker, got {workers}: a DistributedTrainer is for them")


class Trainer:
    """A model, its data on the device, and one traced training step that serves every ratio.

    Args:
        settings: what to train.
        data: the data set, when it is loaded already.
        masks: your own choice of what is kept, in place of the settings' rule and scope: a function of (list of
            gradients, ratio, seed) that returns a list of boolean tensors, True for what is kept.

    Attributes:
        names: name of each trained tensor, such as ``dense/kernel``.
        sizes: elements in each of them.
        own_masks: whether it was given ``masks``.
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
        self.own_masks = masks is not None
        if self.own_masks and settings.rule == "off":
            raise ValueError("masks must be None with rule 'off', which applies none")
        self.settings = settings
        self.masks = masks or functools.partial(keep_masks, rule=settings.rule, scope=settings.scope)
        self.data = data or load(settings.dataset)
        self.train = tf.constant(self.data.x_train), tf.constant(self.data.y_train)
        self.model = MODELS[settings.dataset](settings.seed)
        self.first_values = [variable.numpy() for variable in self.model.variables]
        # Keras 3 wraps each tf.Variable; .value is the variable itself.
        self.weights = [variable.value for variable in self.model.trainable_variables]
        self.names = [variable.path.split("/", 1)[-1] for variable in self.model.trainable_variables]
        self.sizes = np.array([int(tf.size(weight)) for weight in self.weights])
        self.velocities = [tf.Variable(tf.zeros_like(weight)) for weight in self.weights]
        self.traces = 0
        # Only masks of the caller can have a Python branch on a tensor.
        self.train_step = tf.function(self._train_step, autograph=self.own_masks)
        self.calls = StepsAtOnce(lambda step, ratio, wish: (self.train_step(step, ratio), wish), 1 + len(self.weights))
        self.evaluate = functools.partial(make_evaluator(self.data.x_test, self.data.y_test), self.model)

    def reset(self) -> None:
        """Back to the first weights, the first state of dropout, and no velocity."""
        for variable, first in zip(self.model.variables, self.first_values, strict=True):
            variable.assign(first)
        for velocity in self.velocities:
            velocity.assign(tf.zeros_like(velocity))

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
        if not self.traces:  # tracing and warming up are no part of a run's time; reset undoes this step
            self.calls(0, [ratio])
        self.reset()
        self.calls.begin()
        step, seconds = 0, 0.0
        while step < settings.steps:
            due = next_evaluation(step, settings.steps, settings.evaluations)
            told, each, error = self.calls(step, [ratio] * min(self.calls.size, due - step))
            for loss, *kept in told:
                step, seconds, kept = step + 1, seconds + each, np.array(kept)
                yield Step(step, float(loss), kept / self.sizes, float(kept.sum() / self.sizes.sum()), seconds)
            if error:
                raise TrainingDiverged(f"step {step + 1}, ratio {ratio:g}: {readable_error(error)}") from error
            if step == due:
                yield Evaluation(step, *self.evaluate())

    def _train_step(self, step, ratio):
        """One update: gradient, mask, momentum. The batch's loss and the elements kept of each tensor, float64."""
        self.traces += 1  # Python runs only while TensorFlow traces
        settings = self.settings
        images, labels = pick_batch(*self.train, step, settings.batch, settings.seed)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(cross_entropy(labels, self.model(images, training=True)))
        gradients = tape.gradient(loss, self.weights)
        gradients = [check_finite(g, name) for g, name in zip(gradients, self.names, strict=True)]
        if settings.rule == "off":
            kept = self.sizes
        else:
            masks = self.masks(gradients, ratio, seed=tf.stack([settings.seed, step]))
            gradients = [tf.where(mask, g, 0.0) for mask, g in zip(masks, gradients, strict=True)]
            kept = tf.stack([tf.reduce_sum(tf.cast(mask, tf.int32)) for mask in masks])
        momentum, learning_rate = float(settings.momentum), float(settings.learning_rate)
        changed = []
        for weight, velocity, gradient in zip(self.weights, self.velocities, gradients, strict=True):
            velocity.assign(momentum * velocity + gradient)
            changed.append(weight.assign_sub(learning_rate * velocity))
        with tf.control_dependencies(changed):  # a step whose gradient is not finite tells nothing
            return tf.concat([tf.cast(loss, tf.float64)[None], tf.cast(kept, tf.float64)], 0)
