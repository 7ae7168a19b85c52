"""Keras 3 on Horovod: an optimizer that exchanges gradients in ``model.fit``, compressed or not.

Horovod's own wrapper was written for Keras 2; under Keras 3 it trains every rank alone and says nothing. This one
overrides ``apply``, which ``fit`` and custom loops both call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import warnings

import keras
import numpy as np
import tensorflow as tf

from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.gallery import parse_scheme
from dgc_lab.compression.naming import identity
from dgc_lab.compression.scheme import Scheme
from dgc_lab.distributed.communicators import Communicator, communicator_here
from dgc_lab.distributed.keras_refusals import check_for_momentum, check_optimizer

UNCOMPRESSED = DGCConfig(
    ratio=1.0, momentum=0.0, accumulate=False, momentum_correction=False, factor_masking=False, dense_below=2**31
)

BEFORE_THE_EXCHANGE = ("gradient_accumulation_steps", "loss_scale_factor")  # taken over from the inner optimizer


@keras.saving.register_keras_serializable(package="dgc_lab")
class DistributedOptimizer(keras.optimizers.Optimizer):
    """A Keras optimizer whose gradients are averaged over all Horovod ranks before it applies them.

    At the first step the trained variables and the inner optimizer's state are taken from rank 0. The learning rate,
    schedules and callbacks that change it are the inner optimizer's. Its ``gradient_accumulation_steps`` and
    ``loss_scale_factor`` come before the exchange: gradients are added up first and sent once for all these steps.
    Saving the model saves the residuals and velocities of the rank that saves: to resume, use
    `dgc_lab.distributed.SaveRanks`. What else of Keras works: docs/keras.md. One list of variables for all ranks, and
    gradients for the same ones in every step: Horovod's elastic runs, ``join`` and process sets are not supported.

    Args:
        optimizer: the Keras optimizer that applies the update. With a `DGCConfig`, or a scheme with momentum such as
            ``signum()``, SGD without momentum: the momentum is there. Else any.
        config: how to compress: a `dgc_lab.compression.DGCConfig`, or a scheme of `dgc_lab.compression` such as
            ``powersgd(rank=2)``; None averages whole gradients.
        switches: with a scheme, the config that says what goes whole, and has clipping and weight decay.
        communicator: who takes part; Horovod's ranks if None, one worker where there are none.
        name: of the optimizer.

    Raises:
        ValueError: optimizer is not a Keras optimizer, or has use_ema with gradient_accumulation_steps; with a config
            that has momentum, it is not SGD (Adam is outside the algorithm), has momentum of its own (it would be
            applied twice), or weight decay or clipping (the config's come before the accumulation); config is `local`
            SGD; there are switches without a scheme.
        RanksDisagree: at the first step, on all ranks, when they differ in config, model or step.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), DGCConfig(ratio=0.5, dense_below=0))
        >>> model.compile(optimizer, loss="mse", jit_compile=False)
        >>> history = model.fit(np.ones((8, 4)), np.ones((8, 2)), epochs=2, verbose=0)
        >>> history.history["loss"][0] > history.history["loss"][1]
        True

    Source: arXiv:1712.01887; https://keras.io/api/optimizers (``apply``).
    """

    def __init__(
        self,
        optimizer,
        config: DGCConfig | Scheme | None = None,
        communicator: Communicator | None = None,
        name: str = "distributed",
        switches: DGCConfig | None = None,
    ):
        check_optimizer(optimizer)
        if isinstance(config, DGCConfig) or getattr(config, "momentum", 0):
            check_for_momentum(optimizer)
        if switches is not None and not isinstance(config, Scheme):
            raise ValueError(f"switches must be None: they go with a scheme, got {switches} with config {config}")
        if getattr(config, "every", 1) > 1:
            raise ValueError(f"config must exchange in every step, got {config}: local SGD is for ModelTrainer")
        both = {which: getattr(optimizer, which) for which in BEFORE_THE_EXCHANGE}
        super().__init__(learning_rate=0.0, name=name, **both)
        for which in both:
            setattr(optimizer, which, None)
        self.inner_optimizer, self.config, self.switches, self.communicator = optimizer, config, switches, communicator
        self.compressor = None
        self._started = False

    def build(self, variables):
        """Create velocities, residuals and the inner optimizer's state; Keras calls it."""
        if self.built:
            return
        self.communicator = communicator_here(self.communicator)
        weights = [variable.value for variable in variables]
        names = [variable.path for variable in variables]
        with tf.init_scope():  # fit builds while it traces, and the first step wants their values
            self.compressor = Compressor(self.config or UNCOMPRESSED, weights, self.communicator, names, self.switches)
            self.inner_optimizer.build(variables)
            super().build(variables)

    @tf.autograph.experimental.do_not_convert  # as Keras has it for its own loop
    def apply(self, grads, trainable_variables=None):
        """Exchange the gradients, then let the inner optimizer apply the update; the same on all ranks.

        Arguments are those of a Keras optimizer; of ``grads``, some may be ``tf.IndexedSlices`` or None.

        Raises:
            ValueError: called inside ``jit_compile=True``: Horovod's collectives are no XLA operations; or inside a
                ``LossScaleOptimizer`` or a ``tf.distribute`` strategy; or a variable is not among those that it was
                built with.
            tf.errors.InvalidArgumentError: a rank's gradient holds NaN or infinity; on all ranks.
        """
        refuse_surroundings()
        if not self.built:
            self.build(trainable_variables)
        known = self._trainable_variables
        given = known if trainable_variables is None else list(trainable_variables)
        by_variable = {id(variable): gradient for variable, gradient in zip(given, grads, strict=True)}
        unknown = [variable.path for variable in given if all(variable is not one for one in known)]
        if unknown:
            raise ValueError(
                f"trainable_variables must be among those of the first call, got also {unknown}. After layers were "
                "unfrozen, compile the model with a new optimizer"
            )
        self._start()
        gradients = [by_variable.get(id(variable)) for variable in known]
        if self.loss_scale_factor:
            gradients = [g if g is None else tf.math.scalar_mul(1 / self.loss_scale_factor, g) for g in gradients]
        exchange = self._accumulate_and_exchange if self.gradient_accumulation_steps else self._exchange
        exchange(gradients)

    def _exchange(self, gradients):
        updates, _ = self.compressor([gradients])
        with counting_updates(self.inner_optimizer, self.gradient_accumulation_steps):
            self.inner_optimizer.apply(updates, self._trainable_variables)

    def _accumulate_and_exchange(self, gradients):
        """Add up a step's gradients; in the last one of `gradient_accumulation_steps` exchange their mean."""
        steps, done = self.gradient_accumulation_steps, self.inner_optimizer.iterations
        there = [(old, old + g) for old, g in zip(self._accumulated_gradients, gradients, strict=True) if g is not None]

        def exchange():
            means = iter([new / steps for _, new in there])
            # The sums are cleared first: NaN in one of them ends the exchange, and must not be in the next one.
            with tf.control_dependencies([old.value.assign(tf.zeros_like(old.value)) for old, _ in there]):
                self._exchange([None if g is None else next(means) for g in gradients])

        def wait():
            for old, new in there:
                old.assign(new)
            done.assign_add(1)

        keras.ops.cond((done + 1) % steps == 0, exchange, wait)

    def _start(self):
        """Before the first step: the same step and the same values on all ranks."""
        if self._started:
            return
        with tf.init_scope():
            step = f"step {int(self.compressor.step)} (every rank must load its own state, or none)"
            self.communicator.assert_same_on_all_ranks(step)
            state = [variable.value for variable in (*self._trainable_variables, *self.inner_optimizer.variables)]
            self.communicator.broadcast(state)
        self._started = True

    @property
    def variables(self):
        return [*self._variables, *self.inner_optimizer.variables]

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self):
        done, steps = self.inner_optimizer.iterations, self.gradient_accumulation_steps
        return done // steps if steps else done

    def finalize_variable_values(self, var_list):
        self.inner_optimizer.finalize_variable_values(var_list)

    @property
    def bytes_sent(self) -> int:
        """Payload that this rank has handed to the collectives since it was built, in bytes."""
        return int(tf.reduce_sum(self.compressor.bytes_sent)) if self.built else 0

    @property
    def _state(self):
        sums = self._accumulated_gradients if self.gradient_accumulation_steps else []
        return [*self.compressor.state, *(total.value for total in sums)]

    def save_own_variables(self, store):
        # Keras saves the inner optimizer by itself.
        if self.built:
            store["rank"], store["workers"] = np.array(self.communicator.first), np.array(self.communicator.size)
            for number, variable in enumerate(self._state):
                store[str(number)] = variable.numpy()

    def load_own_variables(self, store):
        if not store.keys():  # saved before it was built
            return
        if not self.built:  # as Keras's own optimizers do
            warnings.warn("residuals and velocities are left as they are: the optimizer was not built", stacklevel=2)
            return
        state, held = self._state, len(store.keys()) - 2
        saved = "rank {} of {}".format(*(int(np.asarray(store[which])) for which in ("rank", "workers")))
        own = f"rank {self.communicator.first} of {self.communicator.size}"
        if len(state) > 1 and saved != own:  # beside the step there is nothing of whole gradients, and it is the same
            raise ValueError(f"the file holds residuals of {saved}, and this is {own}: each rank must load its own")
        if held != len(state):
            raise ValueError(f"the file holds {held} of the {len(state)} state variables")
        for number, variable in enumerate(state):
            variable.assign(np.asarray(store[str(number)]))

    def get_config(self):
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        inner["config"] |= {which: getattr(self, which) for which in BEFORE_THE_EXCHANGE}
        how, switches = self.config, self.switches
        how = dataclasses.asdict(how) if isinstance(how, DGCConfig) else how and identity(how)
        switches = switches and dataclasses.asdict(switches)
        return {"name": self.name, "optimizer": inner, "config": how, "switches": switches}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        inner = keras.saving.deserialize_keras_object(config["optimizer"], custom_objects=custom_objects)
        how = config["config"]
        how = scheme_of(how) if isinstance(how, str) else how and DGCConfig(**how)
        switches = config.get("switches") and DGCConfig(**config["switches"])
        return cls(inner, how, name=config["name"], switches=switches)


@contextlib.contextmanager
def counting_updates(optimizer, steps: int | None):
    """Within, what an optimizer such as Adam asks its `iterations` for is its updates, one in ``steps`` batches.

    As Keras has it, its learning rate's schedule goes on counting the batches.
    """
    update = optimizer._backend_update_step

    def counted(*arguments):
        optimizer.gradient_accumulation_steps = steps
        try:
            update(*arguments)
        finally:
            optimizer.gradient_accumulation_steps = None

    optimizer._backend_update_step = counted
    try:
        yield
    finally:
        del optimizer._backend_update_step


def scheme_of(name: str) -> Scheme:
    """A published scheme by its name in a file; a ValueError for one that a file cannot hold."""
    try:
        return parse_scheme(name)
    except ValueError:
        raise ValueError(
            f"the model was saved with the scheme {name!r}, which a file cannot hold. Load it with compile=False, and "
            "compile it with that scheme again"
        ) from None


def refuse_surroundings() -> None:
    """A clear ValueError in place of an obscure error (XLA, strategies) or a hang (LossScaleOptimizer)."""
    if tf.distribute.has_strategy():
        raise ValueError(
            f"tf.distribute's {type(tf.distribute.get_strategy()).__name__} must not be around DistributedOptimizer: "
            "it exchanges gradients itself. Start a Horovod rank for each device"
        )
    frame = inspect.currentframe()
    while frame:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "the policy must not be mixed_float16: its LossScaleOptimizer leaves out a step on the rank whose "
                "gradients overflow, and the others wait for it. Use mixed_bfloat16 or float32"
            )
        # TensorFlow tells a traced function nowhere that it is for XLA; the tf.function that is tracing it knows.
        if getattr(caller, "_jit_compile", None) is True:
            raise ValueError(
                "jit_compile must be False, got True: Horovod's collectives are no XLA operations. "
                "Say model.compile(..., jit_compile=False); on a GPU Keras may otherwise choose True by itself"
            )
        frame = frame.f_back
