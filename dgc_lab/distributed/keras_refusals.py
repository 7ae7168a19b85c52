"""What `dgc_lab.distributed.DistributedOptimizer` refuses, because it would train otherwise than Keras or than said."""

from __future__ import annotations

import keras


def check_optimizer(optimizer) -> None:
    """A ValueError for what is no Keras optimizer, or one whose options do not go together on several ranks."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"optimizer must be a Keras 3 optimizer, got {optimizer!r}")
    if optimizer.use_ema and optimizer.gradient_accumulation_steps:
        raise ValueError(
            "use_ema must be False with gradient_accumulation_steps, got True: Keras averages the weights after every "
            "batch then, whether it has changed them or not"
        )


def check_for_momentum(optimizer) -> None:
    """A ValueError for one that must not be joined with compression that has the momentum in it."""
    if type(optimizer) is not keras.optimizers.SGD:
        raise ValueError(
            f"optimizer must be keras.optimizers.SGD, got {type(optimizer).__name__}: compression with momentum in it, "
            "such as Deep Gradient Compression, is defined for SGD alone. Any optimizer is fine without such a config"
        )
    if optimizer.momentum:
        raise ValueError(
            f"momentum must be 0 in the inner SGD, got {optimizer.momentum}: the config has the momentum, "
            "and it would be applied twice"
        )
    if optimizer.nesterov:
        raise ValueError("nesterov must be given to the config, got True in the inner SGD: it is a kind of momentum")
    for name in ("weight_decay", "clipnorm", "global_clipnorm", "clipvalue"):
        if getattr(optimizer, name):
            instead = name if name == "weight_decay" else "clip_norm, by the norm of all gradients together"
            raise ValueError(
                f"{name} must be None in the inner SGD, got {getattr(optimizer, name)}: it comes before the "
                f"accumulation, and the config has {instead}"
            )
