"""Keras 3 on Horovod: an optimizer that exchanges gradients in ``model.fit``, compressed or not.

Horovod's own wrapper was written for Keras 2. Under Keras 3 it trains each rank alone, without any error. This one
overrides ``apply``, which both ``fit`` and custom loops call.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np
import tensorflow as tf

from dgc_lab.common import check_text
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.scheme import Scheme
from dgc_lab.distributed.accumulated_schedule import AccumulatedSchedule, serialize_with_schedule
from dgc_lab.distributed.communicators import Communicator, communicator_here
from dgc_lab.distributed.keras_refusals import (
    check_optimizer,
    check_plain_sgd,
    check_saved_state,
    check_surroundings,
    check_variables,
    check_weights,
    load_compression,
    refuse_loss_scaling,
    refuse_unknown,
    save_compression,
)

LearningRateSchedule = keras.optimizers.schedules.LearningRateSchedule
BEFORE_EXCHANGE = "gradient_accumulation_steps", "loss_scale_factor"  # the inner optimizer's options that act before it

UNCOMPRESSED = DGCConfig(
    ratio=1.0, momentum=0.0, accumulate=False, momentum_correction=False, factor_masking=False, dense_below=2**31
)


@keras.saving.register_keras_serializable(package="dgc_lab")
class DistributedOptimizer(keras.optimizers.Optimizer):
    """Keras optimizer that averages gradients over all Horovod ranks before applying them.

    Before the first step, rank 0 broadcasts the trained variables and the inner optimizer's state. The inner optimizer
    holds the learning rate, so schedules and callbacks work as usual. The inner optimizer's
    ``gradient_accumulation_steps`` and ``loss_scale_factor`` act before the exchange: the ranks add up gradients
    locally and exchange once for all these batches. Saving the model saves the residuals and velocities of the rank
    that saves it; to resume on several ranks, use `dgc_lab.distributed.SaveRanks`. docs/keras.md lists which other
    features of Keras work. All ranks must train the same variables and have gradients for the same ones in every step.
    Horovod's elastic runs, ``join`` and process sets are not supported.

    Args:
        optimizer: Keras optimizer that applies the update. With a `DGCConfig`, or a scheme with momentum such as
            ``signum()``, it must be SGD without momentum, because the config applies the momentum.
        config: how to compress: a `dgc_lab.compression.DGCConfig`, or a scheme from `dgc_lab.compression` such as
            ``powersgd(rank=2)``. If None, the ranks average uncompressed gradients.
        communicator: the workers that take part. If None, Horovod's ranks, or one worker if Horovod is not running.
        name: name of the optimizer.
        options: with a scheme, the config that selects the tensors sent uncompressed and sets clipping and weight
            decay.

    Raises:
        ValueError: `optimizer` is not a Keras optimizer, is or holds a ``LossScaleOptimizer`` or another
            ``DistributedOptimizer``, or combines use_ema with gradient_accumulation_steps; with a config that has
            momentum, it is not SGD, or has momentum, weight decay or clipping of its own; `config` is `local_sgd`;
            `options` is set without a scheme. Also, later, if a ``LossScaleOptimizer`` wraps this optimizer, as in
            ``model.compile`` under the policy mixed_float16, or if the model is quantized to float8.
        RanksDisagree: at the first step, on all ranks, if they differ in config, model or step.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), DGCConfig(ratio=0.5, dense_below=0))
        >>> model.compile(optimizer, loss="mse", jit_compile=False)
        >>> history = model.fit(np.ones((8, 4)), np.ones((8, 2)), epochs=2, verbose=0)
        >>> history.history["loss"][0] > history.history["loss"][1]
        True

    References:
        Lin et al., Deep Gradient Compression, arXiv:1712.01887; https://keras.io/api/optimizers (``apply``).
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        config: DGCConfig | Scheme | None = None,
        communicator: Communicator | None = None,
        name: str = "distributed",
        options: DGCConfig | None = None,
    ):
        check_optimizer(optimizer, DistributedOptimizer)
        if isinstance(config, DGCConfig) or getattr(config, "momentum", 0):
            check_plain_sgd(optimizer)
        if options is not None and not isinstance(config, Scheme):
            raise ValueError(f"options must be None unless config is a scheme, got {options} with config {config}")
        if getattr(config, "every", 1) > 1:
            raise ValueError(f"config must exchange in every step, got {config}: train local SGD with ModelTrainer")
        super().__init__(
            learning_rate=0.0,
            name=check_text("name", name),
            gradient_accumulation_steps=optimizer.gradient_accumulation_steps,
            loss_scale_factor=optimizer.loss_scale_factor,
        )
        optimizer.gradient_accumulation_steps = optimizer.loss_scale_factor = None  # they act before the exchange
        self.inner_optimizer, self.config, self.options, self.communicator = optimizer, config, options, communicator
        schedule = optimizer._learning_rate  # the public `learning_rate` is its current value
        if isinstance(schedule, LearningRateSchedule):
            self.learning_rate = schedule
        self.compressor = None
        self._started = False

    def build(self, variables):
        """Create velocities, residuals and the inner optimizer's state. Keras calls it before the first step."""
        if self.built:
            return
        self.communicator = communicator_here(self.communicator)
        check_variables(variables)
        weights = [variable.value for variable in variables]
        names = [variable.path for variable in variables]
        with tf.init_scope():  # fit builds while tracing, and the first step needs the variables' values
            self.compressor = Compressor(self.config or UNCOMPRESSED, weights, self.communicator, names, self.options)
            self.inner_optimizer.build(variables)
            super().build(variables)

    @tf.autograph.experimental.do_not_convert  # Keras does the same for its own training loop
    def apply(self, grads, trainable_variables=None):
        """Exchange the gradients and apply the same update on every rank.

        Args:
            grads: gradients as tensors, ``tf.IndexedSlices`` or None, one for each variable.
            trainable_variables: the variables; if None, those of the first call.

        Raises:
            ValueError: XLA compiles the step (``jit_compile=True``); a ``tf.distribute`` strategy is active; or a
                variable is not among those of the first call.
            tf.errors.InvalidArgumentError: on all ranks, if some rank's gradient holds NaN or infinity.
        """
        if not (self._started and tf.executing_eagerly()):  # before the first step, and on each trace
            check_surroundings()
        if not self.built:
            self.build(trainable_variables)
        known = self._trainable_variables
        given = known if trainable_variables is None else list(trainable_variables)
        by_variable = {id(variable): gradient for variable, gradient in zip(given, grads, strict=True)}
        if unknown := by_variable.keys() - {id(variable) for variable in known}:
            refuse_unknown([variable.path for variable in given if id(variable) in unknown], bool(known))
        self._start()
        gradients = [by_variable.get(id(variable)) for variable in known]
        if self.loss_scale_factor != 1:
            gradients = [g if g is None else tf.math.scalar_mul(1 / self.loss_scale_factor, g) for g in gradients]
        exchange = self._accumulate_and_exchange if self.gradient_accumulation_steps else self._exchange
        exchange(gradients)

    def _exchange(self, gradients):
        updates, _ = self.compressor([gradients])
        self.inner_optimizer.apply(updates, self._trainable_variables)

    def _accumulate_and_exchange(self, gradients):
        """Add gradients to the sums; every `gradient_accumulation_steps` batches, exchange the mean and clear them.

        This optimizer's own counter counts batches, and the inner optimizer's counts updates.
        """
        steps, batches = self.gradient_accumulation_steps, self._iterations
        # Before the exchange: if NaN makes it fail, all ranks still agree on the batch that triggers the next one.
        batches.assign_add(1)
        sums = [
            (total, total + g) for total, g in zip(self._accumulated_gradients, gradients, strict=True) if g is not None
        ]

        def exchange():
            means = iter([new / steps for _, new in sums])
            # Also before the exchange, because a sum that holds NaN must not reach the next one.
            with tf.control_dependencies([total.value.assign(tf.zeros_like(total.value)) for total, _ in sums]):
                self._exchange([None if g is None else next(means) for g in gradients])

        def accumulate():
            for total, new in sums:
                total.assign(new)

        keras.ops.cond(batches % steps == 0, exchange, accumulate)

    def _start(self):
        """Before the first step, check that all ranks are at the same step and broadcast rank 0's values."""
        if self._started:
            return
        with tf.init_scope():
            step = f"step {int(self.compressor.step)} (every rank must load its own state, or none)"
            self.communicator.assert_same_on_all_ranks(step)
            # Not the sums of accumulated gradients: each rank has its own.
            state = [*self._trainable_variables, self._iterations, *self.inner_optimizer.variables]
            self.communicator.broadcast([variable.value for variable in state])
        self._started = True

    @property
    def variables(self):
        return [*self._variables, *self.inner_optimizer.variables]

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        if self.gradient_accumulation_steps and isinstance(learning_rate, LearningRateSchedule):
            learning_rate = AccumulatedSchedule(learning_rate, self.gradient_accumulation_steps)
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def loss_scale_factor(self) -> float:
        """Constant factor that scales the loss; 1.0 if the inner optimizer had none."""
        return 1.0 if self._loss_scale_factor is None else self._loss_scale_factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor):
        # A LossScaleOptimizer sets this to None on the optimizer it wraps, and nothing else tells that optimizer about
        # it. Keras skips assignments that change nothing, so the getter above must not return None.
        if factor is None and hasattr(self, "inner_optimizer"):
            refuse_loss_scaling()
        self._loss_scale_factor = factor

    @property
    def iterations(self):
        return self.inner_optimizer.iterations

    def finalize_variable_values(self, var_list):
        self.inner_optimizer.finalize_variable_values(var_list)

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that this rank has passed to collectives since the optimizer was built."""
        return int(tf.reduce_sum(self.compressor.bytes_sent)) if self.built else 0

    @property
    def _state(self):
        accumulation = [self._iterations, *self._accumulated_gradients] if self.gradient_accumulation_steps else []
        return [*self.compressor.state, *(variable.value for variable in accumulation)]

    def set_weights(self, weights):
        """Set all `variables`, including the inner optimizer's, from a list of arrays.

        Raises:
            ValueError: the optimizer is not built, or the arrays do not match the variables. None is changed.
        """
        variables = self.variables
        check_weights(self.built, variables, weights)
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight)
        if len(self.compressor.state) > 1:  # more than the step
            warnings.warn(
                "velocities and residuals are not among the optimizer's variables, so set_weights and .h5 files leave "
                "them unchanged: save the model in a .keras file, or each rank with dgc_lab.distributed.SaveRanks",
                stacklevel=2,
            )

    def save_own_variables(self, store):
        # Keras saves the inner optimizer separately.
        if self.built:
            store["rank"], store["workers"] = np.array(self.communicator.first), np.array(self.communicator.size)
            for number, variable in enumerate(self._state):
                store[str(number)] = variable.numpy()

    def load_own_variables(self, store):
        if not store.keys():  # saved before it was built
            return
        if not self.built:  # Keras's own optimizers also only warn
            warnings.warn("residuals and velocities were not loaded: the optimizer is not built yet", stacklevel=2)
            return
        state = self._state
        check_saved_state(store, state, self.communicator)
        for number, variable in enumerate(state):
            variable.assign(np.asarray(store[str(number)]))

    def get_config(self):
        return {
            "name": self.name,
            "optimizer": serialize_with_schedule(self.inner_optimizer),
            "config": save_compression(self.config),
            "options": save_compression(self.options),
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "loss_scale_factor": self._loss_scale_factor,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        saved = dict(config["optimizer"])
        before = {name: config[name] for name in BEFORE_EXCHANGE if name in config}
        if not before:  # version 1 kept both with the inner optimizer, whose class may not take them
            saved["config"] = dict(saved["config"])
            before = {name: saved["config"].pop(name, None) for name in BEFORE_EXCHANGE}
        inner = keras.saving.deserialize_keras_object(saved, custom_objects=custom_objects)
        for name, value in before.items():
            setattr(inner, name, value)
        compression, options = load_compression(config["config"]), load_compression(config["options"])
        return cls(inner, compression, name=config["name"], options=options)
