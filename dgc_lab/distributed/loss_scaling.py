"""Dynamic loss scaling on several ranks: if the gradient of any of them overflows, all of them skip the update.

Under the policy mixed_float16, small gradients would be rounded to zero, so the loss is multiplied by a scale and the
gradients are divided by it. Keras's ``LossScaleOptimizer`` halves the scale and skips the update if a gradient is not
finite, and doubles it after 2000 updates without that. It decides on each rank alone. Here, all ranks make the same
decision, because the exchange tells each of them whether any gradient was not finite.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

# Below SMALLEST, a smaller scale does not help; beyond LARGEST, the scale would overflow.
SMALLEST, LARGEST = 2.0**-15, 2.0**127


def add_loss_scale(optimizer: keras.optimizers.LossScaleOptimizer) -> dict:
    """Create the variables of the scale, and return them by name. They have the same values on all ranks."""
    start = keras.initializers.Constant(optimizer.initial_scale)
    optimizer.dynamic_scale = optimizer.add_variable((), start, "float32", name="dynamic_scale")
    optimizer.step_counter = optimizer.add_variable((), dtype="int", name="step_counter")
    optimizer.skipped_updates = optimizer.add_variable((), dtype="int", name="skipped_updates")
    return {name: getattr(optimizer, name) for name in ("dynamic_scale", "step_counter", "skipped_updates")}


def divided(gradients: list, scale) -> list:
    """Return the gradients (tensors, ``tf.IndexedSlices`` or None), in float32, divided by the scale.

    Example:
        >>> divided([tf.constant([8.0], tf.float16), None], 4.0)[0].numpy().tolist()
        [2.0]
    """
    return [g if g is None else tf.math.scalar_mul(1 / scale, tf.cast(g, tf.float32)) for g in gradients]


def update_or_skip(optimizer: keras.optimizers.LossScaleOptimizer, finite: tf.Tensor, update: Callable) -> None:
    """Call `update` if all ranks' gradients are finite, otherwise skip it and halve the scale.

    At the smallest scale `update` is called in any case, because its gradients are not finite for another reason.
    """
    scale, counter = optimizer.dynamic_scale, optimizer.step_counter

    def apply():
        update()
        grows = counter + 1 >= optimizer.dynamic_growth_steps
        scale.assign(tf.where(grows, tf.minimum(2 * scale, LARGEST), scale))
        counter.assign(tf.where(grows, tf.zeros_like(counter), counter + 1))

    def skip():
        scale.assign(scale / 2)
        counter.assign(0)
        optimizer.skipped_updates.assign_add(1)

    tf.cond(tf.logical_or(finite, scale <= SMALLEST), apply, skip)
