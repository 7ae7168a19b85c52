"""What is trained on parameter servers: first weights, examples, a loss and its gradients, a score.

A task travels to other processes, and makes models where it is used. `dgc_lab.workloads.gan` has another one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from dgc_lab.common import LabError
from dgc_lab.workloads.dataset import Dataset


class Classifier:
    """Images into classes, by a Keras model and the mean cross-entropy of a batch.

    Args:
        build: returns a new Keras model that gives logits, the same at every call.
        data: the examples.

    Attributes:
        examples: tuple of the arrays that a batch is cut from: images and labels.

    Example:
        >>> from dgc_lab.workloads.data import load
        >>> from dgc_lab.workloads.models import digits_cnn
        >>> len(Classifier(digits_cnn, load("digits")).initial_weights())
        8
    """

    def __init__(self, build: Callable, data: Dataset):
        self.build, self.data = build, data
        self.examples = (data.x_train, data.y_train)

    @functools.cached_property
    def model(self):
        """The Keras model of this process, whose own weights are not used.

        A LabError where it has variables that gradients do not train: Keras 3 would update them on the worker alone.
        """
        model = self.build()
        if state := [variable.path for variable in model.non_trainable_variables]:
            raise LabError(
                "the model must hold nothing but weights that gradients train, got "
                f"{', '.join(state)}: Keras 3 keeps such state (batch normalization, dropout) on the worker"
            )
        return model

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "model"}

    def initial_weights(self) -> list[np.ndarray]:
        """First weights: float32 arrays."""
        return [variable.numpy() for variable in self.model.trainable_variables]

    def gradients(self, weights, seed, images, labels):
        """Mean loss of a batch, a scalar, and its gradients, like ``weights``; called inside a ``tf.function``.

        ``images`` are float32 (batch, height, width, 1), ``labels`` int32 (batch,). ``seed``, int32 (2,), is the
        batch's own, for random operations; there are none here.
        """
        import tensorflow as tf

        from dgc_lab.workloads.batches import cross_entropy

        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, _ = self.model.stateless_call(weights, [], images, training=True)
            loss = tf.reduce_mean(cross_entropy(labels, logits))
        return loss, tape.gradient(loss, weights)

    def score(self, weights) -> dict[str, float]:
        """Loss and accuracy on the test examples."""
        from dgc_lab.workloads.batches import make_evaluator

        evaluate = make_evaluator(self.data.x_test, self.data.y_test, batch=len(self.data.y_test))
        accuracy, loss = evaluate(lambda images: self.model.stateless_call(weights, [], images, training=False)[0])
        return {"loss": loss, "accuracy": accuracy}
