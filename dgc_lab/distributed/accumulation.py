"""Gradient accumulation: sums of gradients between exchanges, and learning-rate schedules that still count batches."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf


def accumulate(optimizer: keras.optimizers.Optimizer, gradients: list, exchange: Callable) -> None:
    """Add gradients to sums; every `gradient_accumulation_steps` batches, exchange their mean and clear them.

    The optimizer's own counter counts batches, and the inner optimizer's counts updates.

    Raises ValueError if a variable has a gradient in only some batches of an update: its sum might never be exchanged.
    """
    check_same_variables(optimizer, gradients)
    steps, batches = optimizer.gradient_accumulation_steps, optimizer._iterations
    # Before the exchange: if NaN makes it fail, all ranks still agree on the batch that triggers the next one.
    batches.assign_add(1)
    pairs = zip(optimizer._accumulated_gradients, gradients, strict=True)
    sums = [(total, total + gradient) for total, gradient in pairs if gradient is not None]

    def exchange_mean():
        means = iter([new / steps for _, new in sums])
        # Also before the exchange, because a sum that holds NaN must not reach the next one.
        with tf.control_dependencies([total.value.assign(tf.zeros_like(total.value)) for total, _ in sums]):
            exchange([None if gradient is None else next(means) for gradient in gradients])

    def keep():
        for total, new in sums:
            total.assign(new)

    keras.ops.cond(batches % steps == 0, exchange_mean, keep)


def check_same_variables(optimizer: keras.optimizers.Optimizer, gradients: list) -> None:
    """Raise ValueError unless the same variables have gradients in all batches of an update."""
    pairs = zip(optimizer._trainable_variables, gradients, strict=True)
    found = frozenset(variable.path for variable, gradient in pairs if gradient is not None)
    with tf.init_scope():  # the next update may train other variables, as after freezing a layer
        begins = int(optimizer._iterations) % optimizer.gradient_accumulation_steps == 0
    if begins or optimizer._with_gradients is None:
        optimizer._with_gradients = found
    if changed := sorted(found ^ optimizer._with_gradients):
        raise ValueError(
            "with gradient_accumulation_steps, the same variables must have gradients in all batches of an update, "
            f"but {changed} have them only in some: pass zeros instead of None"
        )


@keras.saving.register_keras_serializable(package="dgc_lab")
class AccumulatedSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Schedule that is evaluated at a number of updates and follows `schedule`, which counts batches.

    With ``gradient_accumulation_steps``, a Keras optimizer evaluates its schedule at the number of batches before the
    one that triggers an update. `DistributedOptimizer` calls its inner optimizer only for updates, so the inner
    optimizer counts updates. This schedule converts the count.

    Args:
        schedule: Keras learning-rate schedule, evaluated at a number of batches.
        steps: number of batches that each update accumulates.

    Example:
        >>> halved_after_4_batches = keras.optimizers.schedules.PiecewiseConstantDecay([4], [1.0, 0.5])
        >>> schedule = AccumulatedSchedule(halved_after_4_batches, steps=3)
        >>> [float(schedule(update)) for update in range(3)]  # after batches 2, 5 and 8
        [1.0, 0.5, 0.5]
    """

    def __init__(self, schedule, steps: int):
        self.schedule, self.steps = schedule, steps

    def __call__(self, step):
        return self.schedule(step * self.steps + self.steps - 1)

    def get_config(self):
        return {"schedule": keras.optimizers.schedules.serialize(self.schedule), "steps": self.steps}

    @classmethod
    def from_config(cls, config):
        return cls(keras.optimizers.schedules.deserialize(config["schedule"]), config["steps"])


def per_update(learning_rate, steps: int | None):
    """Return the learning rate of an optimizer that counts updates: a schedule that counts batches is converted.

    A loaded schedule has been converted before.
    """
    is_schedule = isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule)
    converted = isinstance(learning_rate, AccumulatedSchedule) or not is_schedule or not steps
    return learning_rate if converted else AccumulatedSchedule(learning_rate, steps)
