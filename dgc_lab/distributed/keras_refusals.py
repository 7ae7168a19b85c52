"""Checks that reject setups in which `dgc_lab.distributed.DistributedOptimizer` would hang or train wrongly.

They run before the first training step, so that every rank raises the same error and none waits for another.
"""

from __future__ import annotations

from typing import NoReturn

import keras
import tensorflow as tf

# TensorFlow has no public function that tells whether XLA will compile the graph under construction.
from tensorflow.python.ops import control_flow_util

from dgc_lab.common import check_keras


def check_optimizer(optimizer, distributed: type) -> None:
    """Check that `optimizer` is a Keras optimizer that works on several ranks.

    Args:
        optimizer: inner optimizer of a `DistributedOptimizer`.
        distributed: class of optimizers that exchange gradients.

    Raises:
        ValueError: `optimizer` is not a Keras optimizer; is or holds a ``LossScaleOptimizer``, a `DistributedOptimizer`
            or Horovod's; or combines use_ema with gradient_accumulation_steps.
    """
    check_keras("backend")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"optimizer must be a Keras 3 optimizer, got {optimizer!r}")
    for one in held_optimizers(optimizer):
        if isinstance(one, distributed):
            reason = (
                "DistributedOptimizer: gradients would be exchanged twice. Pass the optimizer inside it, and its "
                "config as config"
            )
        elif isinstance(one, keras.optimizers.LossScaleOptimizer):
            reason = (
                "LossScaleOptimizer: DistributedOptimizer would not scale the loss with it. Pass the optimizer inside "
                "it: under the policy mixed_float16, DistributedOptimizer scales the loss by itself"
            )
        elif any(each.__module__.startswith("horovod.") for each in type(one).__mro__):
            reason = (
                "hvd.DistributedOptimizer: it does not exchange gradients under Keras 3. Pass the optimizer that it "
                "wraps"
            )
        else:
            continue
        around = "" if one is optimizer else f"{type(optimizer).__name__} around a "
        raise ValueError(f"optimizer must not be a {around}{reason}")
    if optimizer.use_ema and optimizer.gradient_accumulation_steps:
        raise ValueError(
            "use_ema must be False with gradient_accumulation_steps, got True: Keras would update the average after "
            "every batch, even if the weights have not changed"
        )


def held_optimizers(optimizer: keras.optimizers.Optimizer) -> list:
    """Return the optimizer and all optimizers in its attributes, even in lists, dictionaries and other optimizers.

    Example:
        >>> scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
        >>> [type(one).__name__ for one in held_optimizers(scaled)]
        ['LossScaleOptimizer', 'Adam']
    """
    values = keras.tree.flatten(vars(optimizer))  # TensorFlow's own lists of attributes repeat some of them
    inside = {id(value): value for value in values if isinstance(value, keras.optimizers.Optimizer)}
    return [optimizer, *(one for each in inside.values() for one in held_optimizers(each))]


def learning_rates(optimizer: keras.optimizers.Optimizer) -> list[float]:
    """Return the different learning rates of an optimizer and of those inside it.

    Example:
        >>> learning_rates(keras.optimizers.SGD(0.5))
        [0.5]
    """
    # MultiOptimizer itself has none.
    rates = [getattr(one, "learning_rate", None) for one in held_optimizers(optimizer)]
    return list(dict.fromkeys(float(rate) for rate in rates if rate is not None))


def check_plain_sgd(optimizer) -> None:
    """Check that `optimizer` is SGD without the options that a `DGCConfig`, or a scheme with momentum, provides.

    Raises:
        ValueError: `optimizer` is not SGD, or has momentum, weight decay or clipping.
    """
    if type(optimizer) is not keras.optimizers.SGD:
        raise ValueError(
            f"optimizer must be keras.optimizers.SGD, got {type(optimizer).__name__}: a DGCConfig, or a "
            "scheme with momentum, is defined for SGD only. Without such a config, any optimizer works"
        )
    if optimizer.momentum:
        raise ValueError(
            f"momentum must be 0 in the inner SGD, got {optimizer.momentum}: the config applies momentum already. "
            "Set it there"
        )
    if optimizer.nesterov:
        raise ValueError("nesterov must be False in the inner SGD, got True: set nesterov in the config")
    for name in ("weight_decay", "clipnorm", "global_clipnorm", "clipvalue"):
        if getattr(optimizer, name):
            instead = name if name == "weight_decay" else "clip_norm, which clips the norm of all gradients together"
            raise ValueError(
                f"{name} must be None in the inner SGD, got {getattr(optimizer, name)}: it must act before gradients "
                f"are accumulated. Use the config's {instead}"
            )


def check_surroundings() -> None:
    """Check that no ``tf.distribute`` strategy is active and that XLA does not compile the current function.

    Raises:
        ValueError: a strategy is active, or the function being traced has ``jit_compile=True``.
    """
    if tf.distribute.has_strategy():
        raise ValueError(
            f"DistributedOptimizer must not run under tf.distribute's {type(tf.distribute.get_strategy()).__name__}: "
            "it exchanges gradients itself. Start one Horovod rank per device instead"
        )
    if tf.executing_eagerly():
        return
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ValueError(
            "jit_compile must be False, got True: XLA cannot compile Horovod's collectives. "
            "Call model.compile(..., jit_compile=False), because Keras may choose True by itself on a GPU; "
            "in a custom loop, call tf.function(..., jit_compile=False)"
        )


def refuse_loss_scaling() -> NoReturn:
    """Raise the ValueError for a ``LossScaleOptimizer`` (or ``MultiOptimizer``) around `DistributedOptimizer`."""
    raise ValueError(
        "LossScaleOptimizer must not wrap DistributedOptimizer, as compile does if the model has the policy "
        "mixed_float16 and the optimizer does not scale the loss: it would skip updates on one rank, while the others "
        "wait for it. Create DistributedOptimizer after keras.config.set_dtype_policy('mixed_float16') and without "
        "loss_scale_factor; to keep a constant loss_scale_factor, pass auto_scale_loss=False to compile. "
        "MultiOptimizer must not wrap it either: pass it to DistributedOptimizer"
    )


def refuse_unscaled_loss() -> NoReturn:
    """Raise the ValueError for gradients of a loss that was not scaled, as in a custom loop."""
    raise ValueError(
        "the loss must be scaled under the policy mixed_float16, got gradients without a call of scale_loss: in a "
        "custom loop, compute the gradients of optimizer.scale_loss(loss)"
    )


def check_variables(variables: list) -> None:
    """Check that each variable has a gradient.

    Raises:
        ValueError: some are scales of float8 layers, which have new values instead of gradients.
    """
    # Keras assigns these values and takes their maximum over batches; the compressor would add and average them.
    assigned = [variable.path for variable in variables if getattr(variable, "overwrite_with_gradient", False)]
    if assigned:
        raise ValueError(
            f"the model must not be quantized to float8, got {assigned[0]} and {len(assigned) - 1} other variables "
            "that take new values instead of gradients: these would be averaged and accumulated like gradients. Use "
            "mixed_bfloat16 or float32"
        )


def check_synchronized(layers: list) -> None:
    """Check that no layer relies on ``tf.distribute`` to share its moments.

    Raises:
        ValueError: a layer has ``synchronized=True``.

    Example:
        >>> check_synchronized([keras.layers.BatchNormalization(synchronized=True, name="shared")])
        Traceback (most recent call last):
        ValueError: synchronized must be False in batch normalization on several workers, got True in ['shared']: ...
    """
    found = [layer.name for layer in layers if getattr(layer, "synchronized", False)]
    if found:
        raise ValueError(
            f"synchronized must be False in batch normalization on several workers, got True in {found}: Keras shares "
            "moments only under tf.distribute. Use dgc_lab.distributed.AverageStatistics in fit, which averages the "
            "moving statistics, as ModelTrainer does by itself"
        )


def refuse_unknown(paths: list[str], knows_some: bool) -> NoReturn:
    """Raise the ValueError for variables that the optimizer was not built with, given their paths.

    An optimizer knows no variables after a model was loaded from an ``.h5`` file, and only some after layers were
    unfrozen.
    """
    if not knows_some:
        raise ValueError(
            "optimizer must be built with the model's variables, got none, as after loading an .h5 file, from which "
            "Keras cannot restore an optimizer: save the model in a .keras file, or compile it with a new optimizer"
        )
    raise ValueError(
        f"trainable_variables must be among those of the first call, got also {paths}. After unfreezing layers, "
        "compile the model with a new optimizer"
    )
