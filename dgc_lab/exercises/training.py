"""The small network that exercises train: softmax regression on digits, divided among workers."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.contest import CLASSES, PIXELS, digits
from dgc_lab.exercises.variants import Variant

WORKER_IMAGES = 90  # of each worker; a step of four workers takes less than a millisecond


def my_digits(variant: Variant, workers: int, by_class: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the student's own digits, divided among workers.

    Args:
        variant: the student's variant.
        workers: the number of workers.
        by_class: sort the images by class first, so that each worker has only a few classes.

    Returns:
        Images, float64 (workers, 90, 64) in [0, 1], and their classes, int (workers, 90).

    Example:
        >>> images, labels = my_digits(Variant(0), workers=2, by_class=True)
        >>> images.shape, labels.shape, labels[0].max() <= labels[1].min()
        ((2, 90, 64), (2, 90), np.True_)
    """
    (images, labels), _ = digits()
    rng = np.random.default_rng(variant.seed("my_digits"))
    chosen = rng.permutation(len(images))[: workers * WORKER_IMAGES]
    if by_class:
        chosen = chosen[np.argsort(labels[chosen], kind="stable")]
    return images[chosen].reshape(workers, -1, PIXELS).astype(float), labels[chosen].reshape(workers, -1)


def softmax_loss(weights, images, labels) -> float:
    """Return the mean cross-entropy of weights (64, 10) on images (n, 64) with classes (n,)."""
    logits = _shifted_logits(weights, images)
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]))


def softmax_gradient(weights, images, labels) -> np.ndarray:
    """Return the gradient of `softmax_loss` with respect to the weights, (64, 10).

    Example:
        >>> images, labels = my_digits(Variant(0), workers=1)
        >>> softmax_gradient(np.zeros((64, 10)), images[0], labels[0]).shape
        (64, 10)
    """
    errors = np.exp(_shifted_logits(weights, images))
    errors /= errors.sum(1, keepdims=True)
    errors[np.arange(len(labels)), labels] -= 1
    return images.T @ errors / len(labels)


def zero_weights() -> np.ndarray:
    """Return the weights that every training run starts from, zeros (64, 10)."""
    return np.zeros((PIXELS, CLASSES))


def _shifted_logits(weights, images):
    """Return logits whose maximum for each image is 0, so that `exp` cannot overflow."""
    logits = images @ weights
    return logits - logits.max(1, keepdims=True)
