"""Learning-rate schedules under gradient accumulation: Keras advances them per batch, not per update."""

from __future__ import annotations

import keras


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


def serialize_with_schedule(optimizer: keras.optimizers.Optimizer) -> dict:
    """Return the saved form of an optimizer, with the schedule inside an `AccumulatedSchedule` as its own.

    The optimizer's class decides how its config names the learning rate.

    Example:
        >>> halved = keras.optimizers.schedules.PiecewiseConstantDecay([4], [1.0, 0.5])
        >>> saved = serialize_with_schedule(keras.optimizers.SGD(AccumulatedSchedule(halved, steps=3)))
        >>> saved["config"]["learning_rate"]["class_name"]
        'PiecewiseConstantDecay'
    """
    rate = optimizer._learning_rate  # the public `learning_rate` is its current value
    if not isinstance(rate, AccumulatedSchedule):
        return keras.saving.serialize_keras_object(optimizer)
    optimizer.learning_rate = rate.schedule
    try:
        return keras.saving.serialize_keras_object(optimizer)
    finally:
        optimizer.learning_rate = rate
