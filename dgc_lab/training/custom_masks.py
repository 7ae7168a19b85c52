"""Masks other than "the largest elements", and the scheme that applies any mask. Lesson 4."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from dgc_lab.common import Seed
from dgc_lab.compression.gradients import flatten
from dgc_lab.compression.scheme import Scheme, SparseMean, SparseVector
from dgc_lab.compression.thresholding import exact_threshold, keep_mask


def random_masks(gradients: list[tf.Tensor], ratio: float | tf.Tensor, seed: Seed) -> list[tf.Tensor]:
    """Keep random elements: those with the largest random numbers, the share ``ratio`` of each of the ``gradients``.

    ``seed`` is two integers, or an int32 tensor of two; a different seed keeps different elements.

    Example:
        >>> [mask] = random_masks([tf.zeros([1000])], 0.01, tf.constant([0, 1]))
        >>> int(tf.math.count_nonzero(mask))
        10
    """
    masks = []
    for place, gradient in enumerate(gradients):
        numbers = tf.random.stateless_uniform(gradient.shape, tf.stack([seed[0], seed[1] + 1000 * place]))
        masks.append(keep_mask(numbers, exact_threshold(numbers, ratio)))
    return masks


def masks_by_sign(gradients: list[tf.Tensor], ratio: float | tf.Tensor, seed: Seed) -> list[tf.Tensor]:
    """Keep the largest positive and the largest negative elements of ``gradients``, each half of the share ``ratio``.

    Nothing is random, so ``seed`` has no effect.

    Example:
        >>> [mask] = masks_by_sign([tf.constant([9.0, 8.0, -1.0, -2.0])], 0.5, None)
        >>> mask.numpy().tolist()
        [True, False, False, True]
    """
    masks = []
    for gradient in gradients:
        parts = tf.nn.relu(gradient), tf.nn.relu(-gradient)
        # A threshold of 0, where too few elements have this sign, would keep all the others.
        positive, negative = (keep_mask(part, exact_threshold(part, ratio / 2)) & (part > 0) for part in parts)
        masks.append(positive | negative)
    return masks


def masking_scheme(masks: Callable, name: str = "custom masks") -> Scheme:
    """Return a scheme that keeps the elements that a function of (list of gradients, ratio, seed) selects.

    Example:
        >>> masking_scheme(random_masks, "random masking").name
        'random masking'
    """
    traced = tf.function(masks)  # AutoGraph allows Python branches on tensors

    def step(gradient, state, context):
        chosen, count = traced(context.parts, context.ratio, seed=context.seed), len(context.parts)
        if [mask.dtype for mask in chosen] != [tf.bool] * count:
            raise ValueError(f"masks must return {count} boolean tensors, one for each gradient, got {chosen}")
        chosen = [tf.broadcast_to(mask, g.shape) for mask, g in zip(chosen, context.parts, strict=True)]
        indices = tf.cast(tf.where(flatten(chosen))[:, 0], tf.int32)
        values, size = tf.gather(gradient, indices), gradient.shape[0]
        mean = yield SparseMean(indices, values, size, context.ratio)
        return mean, SparseVector([(indices, values)], size), state

    return Scheme(step, name=name)
