"""The residuals of a few gradient elements in a short training run with accumulation. Lesson 5 draws them.

References:
    arXiv:1712.01887, Algorithm 1 (accumulation and selection).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.distributed.communicators import OneWorker
from dgc_lab.workloads.batches import cross_entropy, pick_batch
from dgc_lab.workloads.data import load
from dgc_lab.workloads.models import digits_cnn

BATCH, LEARNING_RATE = 64, 0.1


def residual_history(steps: int = 24) -> pd.DataFrame:
    """Train on the digits, and return the accumulated gradients of three elements of the largest layer by step.

    One worker sends 1 % of its gradient by Deep Gradient Compression, without momentum. The three elements are the one
    that was sent most often, one that was sent twice, and one that was sent once, as late as possible.

    Args:
        steps: number of training steps, 8 to 200.

    Returns:
        A row for each step: ``step``, from 1; ``threshold``, the smallest magnitude that was sent; for each element,
        such as ``element 17``, its residual with the new gradient, before sending; ``sent``, the names of the elements
        that were sent. The residual of these is 0 afterwards, and unchanged for the others.

    Raises:
        ValueError: steps is out of range.

    Example:
        >>> history = residual_history(steps=8)
        >>> len(history), list(history)[:2], list(history)[-1]
        (8, ['step', 'threshold'], 'sent')
    """
    check_whole("steps", steps, 8, 200)
    digits, model = load("digits"), digits_cnn()
    weights = [variable.value for variable in model.trainable_variables]
    largest = max(range(len(weights)), key=lambda number: tf.size(weights[number]))
    compressor = Compressor(DGCConfig(ratio=0.01, momentum=0.0, rule="exact"), weights, OneWorker())

    @tf.function(autograph=False)
    def train(step):
        images, labels = pick_batch(digits.x_train, digits.y_train, step, BATCH, seed=0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(cross_entropy(labels, model(images)))
        updates, _ = compressor([tape.gradient(loss, weights)])
        for weight, update in zip(weights, updates, strict=True):
            weight.assign_sub(LEARNING_RATE * update)
        # An element is either sent or stays in the residual, so the sum is the accumulated gradient, to the last bit.
        return updates[largest] + compressor.residuals()[largest], updates[largest] != 0

    every = [train(tf.constant(step)) for step in range(steps)]
    accumulated, sent = (np.stack([np.ravel(part) for part in parts]) for parts in zip(*every, strict=True))
    names = {f"element {place}": place for place in telling_elements(sent)}
    return pd.DataFrame(
        {
            "step": range(1, steps + 1),
            "threshold": [np.abs(values[chosen]).min() for values, chosen in zip(accumulated, sent, strict=True)],
            **{name: accumulated[:, place] for name, place in names.items()},
            "sent": [", ".join(name for name, place in names.items() if row[place]) for row in sent],
        }
    )


def telling_elements(sent: np.ndarray) -> list[int]:
    """Return the positions of an element sent most often, one sent twice, and one sent once, as late as possible."""
    times, first = sent.sum(axis=0), sent.argmax(axis=0)
    return [int(times.argmax()), int((times == 2).argmax()), int(np.where(times == 1, first, -1).argmax())]
