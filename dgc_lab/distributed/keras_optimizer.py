"""Keras 3 on Horovod: an optimizer that exchanges gradients in ``model.fit``, compressed or not.

Horovod's own wrapper was written for Keras 2. Under Keras 3 it trains each rank alone, without any error. This one
overrides ``apply``, which both ``fit`` and custom loops call.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from dgc_lab.common import check_instance, check_text
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.scheme import Scheme
from dgc_lab.distributed.accumulation import accumulate, per_update
from dgc_lab.distributed.communicators import Communicator, check_communicator, communicator_here, describe_variables
from dgc_lab.distributed.keras_refusals import (
    check_optimizer,
    check_plain_sgd,
    check_surroundings,
    check_variables,
    refuse_loss_scaling,
    refuse_unknown,
    refuse_unscaled_loss,
)
from dgc_lab.distributed.keras_saving import (
    assign_weights,
    load_compression,
    load_inner_optimizer,
    load_state,
    save_compression,
    save_state,
)
from dgc_lab.distributed.loss_scaling import add_loss_scale, divided, update_or_skip

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

    An optimizer that is created under the policy mixed_float16 scales the loss like Keras's ``LossScaleOptimizer``: its
    ``dynamic_scale`` doubles after 2000 updates without an overflow. If the gradients of any rank overflow, all ranks
    halve the scale and skip the update, which changes nothing else. The number of ``skipped_updates`` and the scale are
    saved with the model. A custom loop must compute the gradients of ``optimizer.scale_loss(loss)``.

    Args:
        optimizer: Keras optimizer that applies the update. With a `DGCConfig`, or a scheme with momentum such as
            ``signum()`` or ``demo()``, it must be SGD without momentum, because the config applies the momentum.
        config: how to compress: a `dgc_lab.compression.DGCConfig`, or a scheme from `dgc_lab.compression` such as
            ``powersgd(rank=2)``. If None, the ranks average uncompressed gradients.
        communicator: the workers that take part. If None, Horovod's ranks, or one worker if Horovod is not running.
        name: name of the optimizer.
        options: with a scheme, the config that selects the tensors sent uncompressed and sets clipping and weight
            decay.

    Raises:
        ValueError: `optimizer` is not a Keras optimizer, is or holds a ``LossScaleOptimizer`` or another
            ``DistributedOptimizer``, or combines use_ema with gradient_accumulation_steps; with a `DGCConfig`, or a
            scheme with momentum, it is not SGD, or has momentum, weight decay or clipping of its own; `config` is
            `local_sgd`; `options` is set without a scheme. Also, later, if a ``LossScaleOptimizer`` wraps this
            optimizer, or if the model is quantized to float8.
        RanksDisagree: at the first step, on all ranks, if they differ in config, optimizer, model or step.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), DGCConfig(ratio=0.5, dense_below=0))
        >>> model.compile(optimizer, loss="mse", jit_compile=False)
        >>> history = model.fit(tf.ones([8, 4]), tf.ones([8, 2]), epochs=2, verbose=0)
        >>> history.history["loss"][0] > history.history["loss"][1]
        True

    References:
        Lin et al., Deep Gradient Compression, arXiv:1712.01887; https://keras.io/api/optimizers (``apply``).
    """

    def __new__(
        cls,
        optimizer: keras.optimizers.Optimizer,
        config: DGCConfig | Scheme | None = None,
        communicator: Communicator | None = None,
        name: str = "distributed",
        options: DGCConfig | None = None,
    ):
        """Return a `LossScaledOptimizer` under the policy mixed_float16, unless the loss has a constant scale."""
        constant = getattr(optimizer, "loss_scale_factor", None) is not None
        scaled = keras.config.dtype_policy().name == "mixed_float16" and not constant
        return super().__new__(LossScaledOptimizer if scaled and cls is DistributedOptimizer else cls)

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        config: DGCConfig | Scheme | None = None,
        communicator: Communicator | None = None,
        name: str = "distributed",
        options: DGCConfig | None = None,
    ):
        check_optimizer(optimizer, DistributedOptimizer)
        if not isinstance(config, DGCConfig | Scheme | None):
            raise ValueError(f"config must be a DGCConfig, a Scheme or None, got {config!r}")
        check_communicator(communicator)
        if isinstance(config, DGCConfig) or getattr(config, "momentum", 0) != 0:  # None: the state is momentum
            check_plain_sgd(optimizer)
        if options is not None:
            check_instance("options", options, DGCConfig)
            if not isinstance(config, Scheme):
                raise ValueError(f"options must be None unless config is a scheme, got {options} with config {config}")
        if getattr(config, "every", 1) > 1:
            raise ValueError(f"config must exchange in every step, got {config.label}: train it with ModelTrainer")
        keras.optimizers.Optimizer.__init__(  # not that of LossScaleOptimizer, which accepts fewer options
            self,
            learning_rate=0.0,
            name=check_text("name", name),
            gradient_accumulation_steps=optimizer.gradient_accumulation_steps,
            loss_scale_factor=optimizer.loss_scale_factor,
        )
        optimizer.gradient_accumulation_steps = optimizer.loss_scale_factor = None  # they act before the exchange
        self.inner_optimizer, self.config, self.options, self.communicator = optimizer, config, options, communicator
        schedule = optimizer._learning_rate  # the public `learning_rate` is its current value
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            self.learning_rate = schedule
        self.compressor = None
        self._started, self.loss_scale, self._with_gradients = False, {}, None

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
            keras.optimizers.Optimizer.build(self, variables)  # LossScaleOptimizer's would build the inner one again

    @tf.autograph.experimental.do_not_convert  # Keras does the same for its own training loop
    def apply(self, grads, trainable_variables=None):
        """Exchange the gradients and apply the same update on every rank.

        Args:
            grads: gradients as tensors, ``tf.IndexedSlices`` or None, one for each variable.
            trainable_variables: the variables; if None, those of the first call.

        Raises:
            ValueError: XLA compiles the step (``jit_compile=True``); a ``tf.distribute`` strategy is active; a
                variable is not among those of the first call; or the loss was not scaled under mixed_float16.
            tf.errors.InvalidArgumentError: on all ranks, if some rank's gradient holds NaN or infinity. Under
                mixed_float16, only once the scale has fallen to 2**-15.
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
        gradients = self._unscaled([by_variable.get(id(variable)) for variable in known])
        if self.gradient_accumulation_steps:
            accumulate(self, gradients, self._exchange)
        else:
            self._exchange(gradients)

    def _unscaled(self, gradients):
        return gradients if self.loss_scale_factor == 1 else divided(gradients, self.loss_scale_factor)

    def _exchange(self, gradients):
        updates, _ = self.compressor([gradients])
        self.inner_optimizer.apply(updates, self._trainable_variables)

    def _start(self):
        """Before the first step, check that all ranks have the same step and variables; broadcast rank 0's values."""
        if self._started:
            return
        with tf.init_scope():
            inner, advice = self.inner_optimizer, "(every rank must load its own state, or none)"
            # Not the sums of accumulated gradients: each rank has its own.
            state = [*self._trainable_variables, self._iterations, *self.loss_scale.values(), *inner.variables]
            alike = f"step {int(self.compressor.step)} {advice}, {type(inner).__name__}, {describe_variables(state)}"
            self.communicator.assert_same_on_all_ranks(alike)
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
        self.inner_optimizer.learning_rate = per_update(learning_rate, self.gradient_accumulation_steps)

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
        """Payload bytes that this rank has passed to collectives since it was built, except in skipped updates."""
        return int(tf.reduce_sum(self.compressor.bytes_sent)) if self.built else 0

    def set_weights(self, weights):
        """Set all `variables`, including the inner optimizer's, from a list of arrays.

        Raises:
            ValueError: the optimizer is not built, or the arrays do not match the variables. None is changed.
        """
        assign_weights(self, weights)

    def save_own_variables(self, store):
        save_state(self, store)  # Keras saves the inner optimizer separately

    def load_own_variables(self, store):
        load_state(self, store)

    def get_config(self):
        return {
            "name": self.name,
            "optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "config": save_compression(self.config),
            "options": save_compression(self.options),
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "loss_scale_factor": self._loss_scale_factor,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        inner = load_inner_optimizer(config, custom_objects)
        compression, options = load_compression(config["config"]), load_compression(config["options"])
        return cls(inner, compression, name=config["name"], options=options)


@keras.saving.register_keras_serializable(package="dgc_lab")
class LossScaledOptimizer(DistributedOptimizer, keras.optimizers.LossScaleOptimizer):
    """`DistributedOptimizer` that scales the loss dynamically.

    ``compile`` wraps all other optimizers in a ``LossScaleOptimizer`` under the policy mixed_float16, which would
    decide on each rank alone. This class has that type, so that ``compile`` leaves it as it is, and the same variables.
    """

    initial_scale, dynamic_growth_steps = 2.0**15, 2000  # as in Keras

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.loss_scale, self._scales_loss = add_loss_scale(self), False

    def scale_loss(self, loss):
        self._scales_loss = True
        return keras.ops.multiply(loss, self.dynamic_scale)  # float32: the scale may be too large for float16

    def _unscaled(self, gradients):
        if not self._scales_loss:
            refuse_unscaled_loss()
        return divided(gradients, self.dynamic_scale)

    def _exchange(self, gradients):
        compressor = self.compressor
        workers = compressor.prepared([gradients])
        outcome = compressor.exchanged(workers, compressor.ratio_of_step())

        def update():
            updates, _ = compressor.commit(workers[0], outcome, None, [])
            self.inner_optimizer.apply(updates, self._trainable_variables)

        update_or_skip(self, tf.reduce_all(outcome.table[:, 0] < 0), update)
