"""Training of a Keras model by several workers with compressed gradients, simulated or on Horovod ranks.

If ``model.fit`` is enough, use `dgc_lab.distributed.DistributedOptimizer`. This loop lets you inspect the training,
and runs several workers in one process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from dgc_lab.common import check_instance, check_keras, check_number, check_whole
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.scheme import Scheme
from dgc_lab.distributed.batch_norm import average_statistics, mean, statistics_of
from dgc_lab.distributed.communicators import Communicator, check_communicator, default_communicator
from dgc_lab.distributed.keras_refusals import check_synchronized, check_variables
from dgc_lab.training.events import DistributedStep, Evaluation, TrainingDiverged, next_evaluation, readable_error
from dgc_lab.training.steps_at_once import StepsAtOnce


def dense(config: DGCConfig) -> DGCConfig:
    """Return the uncompressed baseline of ``config``: momentum SGD with the same clipping and weight decay.

    Raises:
        ValueError: `config` is not a `DGCConfig`.

    Example:
        >>> dense(DGCConfig(ratio=0.01, clip_norm=1.0)).ratio
        1.0
    """
    return dataclasses.replace(check_instance("config", config, DGCConfig), ratio=1.0, warm_up=())


class ModelTrainer:
    """Training loop for a Keras model, with one traced step for all workers.

    Args:
        model: a built Keras model.
        loss: function of (targets, outputs) that returns a tensor, such as a Keras loss; its mean is minimized.
        batches: function of a batch's number, an int32 scalar tensor, that returns ``(inputs, targets)``. It is
            traced, so derive random choices from that number. Worker w of N takes batch ``step * N + w``.
        config: how to compress: a `dgc_lab.compression.DGCConfig`, or a scheme of `dgc_lab.compression`.
        learning_rate: a number above 0, or a ``keras.optimizers.schedules.LearningRateSchedule``.
        communicator: the participants (`dgc_lab.distributed.communicators`). If None, Horovod's ranks, or one worker
            if Horovod is not running.
        seed: integer, 0 to 2 147 483 647, for dropout.
        options: with a scheme, the config that selects the tensors sent uncompressed and sets clipping and weight
            decay.

    Attributes:
        names: name of each trained tensor, such as ``dense/kernel``.
        sizes: number of elements of each trained tensor.
        traces: how often TensorFlow has traced the training step.

    Raises:
        ValueError: an argument is not allowed; the message names it. `model` must not compute in float16 or be
            quantized to float8, and on several workers it must not have synchronized batch normalization.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        >>> batches = lambda turn: (tf.random.stateless_normal([8, 4], [0, turn]), tf.zeros([8], tf.int32))
        >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        >>> trainer = ModelTrainer(model, loss, batches, DGCConfig(ratio=0.1, dense_below=0), learning_rate=0.5)
        >>> losses = [step.loss for step in trainer.run(steps=20)]
        >>> losses[-1] < losses[0] / 2
        True
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Callable,
        batches: Callable,
        config: DGCConfig | Scheme,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.1,
        communicator: Communicator | None = None,
        seed: int = 0,
        options: DGCConfig | None = None,
    ):
        check_keras("backend")
        if not isinstance(model, keras.Model) or not model.built:
            raise ValueError(f"model must be a built Keras model, got {model!r}")
        if not model.trainable_weights:
            raise ValueError(f"model must have trainable weights, {model.name!r} has none")
        if not isinstance(config, DGCConfig | Scheme):
            raise ValueError(f"config must be a DGCConfig or a Scheme, got {config!r}")
        for name, value in {"loss": loss, "batches": batches}.items():
            if not callable(value):
                raise ValueError(f"{name} must be a function, got {value!r}")
        if not isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            check_number("learning_rate", learning_rate, "above 0, or a schedule", finite=True)
        self.model, self.loss, self.batches = model, loss, batches
        self.learning_rate, self.seed = learning_rate, tf.Variable(check_whole("seed", seed, 0, 2**31 - 1))
        self.communicator = check_communicator(communicator) or default_communicator()
        if self.communicator.each_rank is not self.communicator:
            kind = type(self.communicator).__name__
            raise ValueError(f"communicator must make each rank a worker, got {kind}: use DistributedOptimizer for it")
        if any(layer.compute_dtype == "float16" for layer in model._flatten_layers()):
            raise ValueError(
                "model must not compute in float16, as under the policy mixed_float16: this loop does not scale the "
                "loss. Use mixed_bfloat16, or DistributedOptimizer"
            )
        check_variables(model.trainable_weights)
        if self.communicator.size > 1:
            check_synchronized(model._flatten_layers())
        self.weights = [weight.value for weight in model.trainable_weights]
        self.names = [weight.path.removeprefix(f"{model.name}/") for weight in model.trainable_weights]
        self.sizes = np.array([int(tf.size(weight)) for weight in self.weights])
        self.statistics = statistics_of(model)
        others = {id(weight) for weight in model.non_trainable_weights}
        self.dropout_states = [v.value for v in model.non_trainable_variables if id(v) not in others]
        self.compressor = Compressor(config, self.weights, self.communicator, self.names, options)
        self.config = self.compressor.config
        self.has_scheme = isinstance(config, Scheme)
        if self.has_scheme:  # a scheme has its own ratio
            self.config = dataclasses.replace(self.config, ratio=1.0, warm_up=())
        self.first_values = [variable.numpy() for variable in (*self.weights, *self.statistics)]
        self.traces, self._warm = 0, False
        # One trace for all workers: a large model's takes many seconds.
        self._traced_gradients = tf.function(self._worker_gradients)
        self._calls = StepsAtOnce(self._train_step, self.communicator.size + len(self.weights) + 1)

    @property
    def sent_uncompressed(self) -> list[str]:
        """Names of the weights whose gradients are sent uncompressed at any ratio: vectors and small tensors."""
        return [self.names[i] for i in self.compressor.parts.uncompressed]

    def run(
        self,
        steps: int,
        ratio: float | None = None,
        evaluate: Callable | None = None,
        evaluations: int = 10,
        look_every: int | None = None,
    ) -> Iterator[DistributedStep | Evaluation]:
        """Train from the initial weights.

        Args:
            steps: number of updates, at least 1.
            ratio: share of the elements that a worker sends, instead of the config's ratio; the warm-up stays. Must be
                None with a scheme, which has its own.
            evaluate: function of the model that returns (accuracy, loss); called on the first worker.
            evaluations: number of evaluations, evenly spaced; the last one follows the last step.
            look_every: for a caller that inspects or saves the trainer, or times events: after every multiple of this
                many steps, the trainer is in the state that the latest event describes.

        Yields:
            A `DistributedStep` after every update, and an `Evaluation` at regular intervals. Before an evaluation and
            at the end, batch normalization's statistics are averaged over the workers. Several steps run in one call,
            so the weights can be some steps ahead of a `DistributedStep`. They are never ahead of an `Evaluation`, or
            at a multiple of ``look_every``.

        Raises:
            ValueError: an argument is not allowed; the message names it.
            RanksDisagree: ranks have different models, configs or arguments.
            TrainingDiverged: a worker's gradient contains NaN or infinity; raised on all ranks.
        """
        check_whole("steps", steps, 1)
        check_whole("evaluations", evaluations, 1)
        if ratio is not None and self.has_scheme:
            raise ValueError(f"ratio must be None with {self.compressor.scheme.label}, got {ratio!r}")
        config = self.config if ratio is None else dataclasses.replace(self.config, ratio=ratio)
        self.communicator.assert_same_on_all_ranks(f"{steps} steps, ratio {config.ratio}, {evaluations} evaluations")
        self.reset()
        self.communicator.broadcast([*self.weights, *self.statistics])
        yield from self._train(config, steps, evaluate, evaluations, look_every=look_every)

    def reset(self) -> None:
        """Restore the initial weights and clear the compressor's state."""
        for variable, value in zip([*self.weights, *self.statistics], self.first_values, strict=True):
            variable.assign(value)
        self.compressor.reset()

    def reseed(self, seed: int, model: keras.Model) -> None:
        """Reset with a new seed and the weights of a similar model; ``batches`` must come from `batches_of`."""
        for own in (self.seed, self.batches.seed, self.compressor.seed):
            own.assign(seed)
        self.first_values = [variable.numpy() for variable in (*model.trainable_weights, *statistics_of(model))]
        self.reset()

    @property
    def steps_done(self) -> int:
        """Number of updates since the initial weights."""
        return int(self.compressor.step)

    def _train(self, config, steps, evaluate, evaluations, stop=bool, look_every=None):
        """Train from the current state up to ``steps`` updates."""
        if look_every is not None:
            check_whole("look_every", look_every, 1)
        if not self._warm:
            self._warm_up(config)
        step, seconds, dense_bytes, workers = self.steps_done, 0.0, 4 * int(self.sizes.sum()), self.communicator.size
        self._calls.begin()
        if step >= steps and evaluate is not None and self.communicator.first == 0:  # resumed at its end
            yield Evaluation(step, *map(float, evaluate(self.model)))
        while step < steps:
            due = next_evaluation(step, steps, evaluations)
            looked_at = step + look_every - step % look_every if look_every else due
            end = min(step + self._calls.size, due, looked_at)
            ratios = [config.ratio_at(number) for number in range(step, end)]
            results, each, error = self._calls(step, ratios, stop())
            stopping = error is None and self._calls.size == 0
            if (stopping or step + len(results) == due) and self.communicator.local < workers:
                average_statistics(self.model, self.communicator)  # simulated workers share theirs anyway
            for ratio, row in zip(ratios, results, strict=False):
                losses, num_sent, sent = row[:workers].astype(np.float32), row[workers:-1], int(row[-1])
                step, seconds, overall = step + 1, seconds + each, float(num_sent.sum() / self.sizes.sum())
                loss = float(losses.mean())
                yield DistributedStep(step, loss, num_sent / self.sizes, overall, seconds, sent, dense_bytes, ratio)
            if error:
                raise TrainingDiverged(f"step {step + 1}, ratio {config.ratio:g}: {readable_error(error)}") from error
            if stopping and step < steps:
                return
            if step == due and evaluate is not None and self.communicator.first == 0:
                yield Evaluation(step, *map(float, evaluate(self.model)))

    def _warm_up(self, config):
        """Trace the step and run it once, outside the measured time; undo its changes even after an interrupt."""
        variables = [*self.weights, *self.statistics, *self.compressor.state]
        before = [variable.numpy() for variable in variables]
        try:
            *_, error = self._calls(0, [config.ratio_at(0)])
        finally:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
        if error:
            raise TrainingDiverged(f"step 1, ratio {config.ratio:g}: {readable_error(error)}") from error
        self._warm = True

    def _worker_gradients(self, batch, statistics, deltas):
        """Return one worker's loss and gradients on a batch, and its new moving statistics.

        The step starts from the given ``statistics``, and from the common weights plus the worker's local ``deltas``.
        """
        common = [tf.identity(weight) for weight in self.weights[: len(deltas)]]
        for weight, value, delta in zip(self.weights, common, deltas, strict=False):
            weight.assign(value + tf.cast(delta, value.dtype))
        for variable, value in zip(self.statistics, statistics, strict=True):
            variable.assign(value)  # not the values that the previous worker's forward pass left
        for number, state in enumerate(self.dropout_states):
            state.assign(tf.cast(tf.stack([self.seed + number, batch]), state.dtype))
        inputs, targets = self.batches(batch)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.loss(targets, self.model(inputs, training=True)))
            # Add the regularization losses, as fit does.
            loss = tf.add_n([loss, *(tf.cast(each, loss.dtype) for each in self.model.losses)])
        gradients = tape.gradient(loss, self.weights)
        for weight, value in zip(self.weights, common, strict=False):
            weight.assign(value)
        return loss, gradients, [tf.identity(variable) for variable in self.statistics]

    def _train_step(self, step, ratio, requested):
        """Update all workers once; return losses, elements sent of each tensor and bytes, and the smallest request."""
        self.traces += 1  # Python runs only while TensorFlow traces
        communicator = self.communicator
        before = [tf.identity(variable) for variable in self.statistics]
        batches = [step * communicator.size + communicator.first + worker for worker in range(communicator.local)]
        deltas = self.compressor.local.by_worker if self.compressor.local else [[]] * communicator.local
        deltas = [[tf.convert_to_tensor(delta) for delta in own] for own in deltas]
        every = [self._traced_gradients(batch, before, own) for batch, own in zip(batches, deltas, strict=True)]
        losses, gradients, moved = zip(*every, strict=True)
        metadata = [tf.stack([tf.cast(loss, tf.float32), requested]) for loss in losses]
        # Moving averages are linear in the batches' statistics: averaging in every step or at the end is the same.
        for variable, values in zip(self.statistics, zip(*moved, strict=True), strict=True):
            variable.assign(mean(values))
        rate = self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate
        report = self.compressor.train(list(gradients), rate, ratio, metadata)
        for weight in self.model.trainable_weights:
            if weight.constraint is not None:
                weight.assign(weight.constraint(weight))
        losses, requests = tf.unstack(report.metadata, axis=1)
        sent = report.allreduce_bytes + report.allgather_bytes
        with tf.control_dependencies([self.compressor.step.read_value()]):  # only a completed step has results
            results = [tf.cast(part, tf.float64) for part in (losses, report.num_sent, sent[None])]
            return tf.concat(results, 0), tf.reduce_min(requests)
