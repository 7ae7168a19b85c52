"""Checks that reject setups in which `dgc_lab.distributed.DistributedOptimizer` would hang or train wrongly.

They run before the first training step, so that every rank raises the same error and none waits for another.
"""

from __future__ import annotations

import keras
import tensorflow as tf

# TensorFlow has no public function that tells whether XLA will compile the graph under construction.
from tensorflow.python.ops import control_flow_util


def check_optimizer(optimizer) -> None:
    """Check that `optimizer` is a Keras optimizer whose options work on several ranks.

    Raises:
        ValueError: `optimizer` is not a Keras optimizer, is a ``LossScaleOptimizer``, or combines use_ema with
            gradient_accumulation_steps.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"optimizer must be a Keras 3 optimizer, got {optimizer!r}")
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "optimizer must not be a LossScaleOptimizer: DistributedOptimizer would not scale the loss with it. Set "
            "loss_scale_factor on the optimizer inside, or use mixed_bfloat16"
        )
    if optimizer.use_ema and optimizer.gradient_accumulation_steps:
        raise ValueError(
            "use_ema must be False with gradient_accumulation_steps, got True: Keras would update the average after "
            "every batch, even if the weights have not changed"
        )


def check_plain_sgd(optimizer) -> None:
    """Check that `optimizer` is SGD without the options that a config with momentum provides.

    Raises:
        ValueError: `optimizer` is not SGD, or has momentum, weight decay or clipping.
    """
    if type(optimizer) is not keras.optimizers.SGD:
        raise ValueError(
            f"optimizer must be keras.optimizers.SGD, got {type(optimizer).__name__}: compression with momentum, such "
            "as Deep Gradient Compression, is defined for SGD only. Without such a config, any optimizer works"
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


def refuse_loss_scaling() -> None:
    """Raise the ValueError for a ``LossScaleOptimizer`` around `DistributedOptimizer`."""
    raise ValueError(
        "the policy must not be mixed_float16, and LossScaleOptimizer must not wrap DistributedOptimizer: it skips the "
        "step on a rank whose gradients overflow, while the other ranks wait for it. Use mixed_bfloat16 or float32"
    )
