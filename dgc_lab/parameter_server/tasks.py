"""Task to train on parameter servers: initial weights, examples, a loss and its gradients, and a score.

A task is sent to other processes, and builds its model where it is used. `dgc_lab.workloads.gan` has another one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from dgc_lab.common import LabError
from dgc_lab.workloads.dataset import Dataset


class Classifier:
    """Image classification with a Keras model and the mean cross-entropy of a batch.

    Args:
        build: function that returns a new Keras model with logits as output, the same at every call.
        data: the examples.

    Attributes:
        examples: tuple of the arrays from which batches are taken: images and labels.

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
        """Keras model of this process, whose own weights are not used.

        Raises LabError if it has non-trainable variables, which Keras 3 would update only on the worker.
        """
        model = self.build()
        if state := [variable.path for variable in model.non_trainable_variables]:
            raise LabError(
                "the model must have only trainable variables, got "
                f"{', '.join(state)}: Keras 3 keeps such state (batch normalization, dropout) on the worker"
            )
        return model

    def __getstate__(self):
        return {"build": self.build, "data": self.data, "examples": self.examples}

    def initial_weights(self) -> list[np.ndarray]:
        """Return the initial weights as float32 arrays."""
        return [variable.numpy() for variable in self.model.trainable_variables]

    def gradients(self, weights, seed, images, labels):
        """Return a batch's mean loss, a scalar, and its gradients, in the form of ``weights``.

        Called inside a ``tf.function``. ``images`` are float32 (batch, height, width, 1), ``labels`` int32 (batch,).
        ``seed``, int32 (2,), is specific to the batch, for random operations; there are none here.
        """
        import tensorflow as tf

        from dgc_lab.workloads.batches import cross_entropy

        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, _ = self.model.stateless_call(weights, [], images, training=True)
            loss = tf.reduce_mean(cross_entropy(labels, logits))
        return loss, tape.gradient(loss, weights)

    @functools.cached_property
    def logits(self):
        """Function of weights and images, traced once for all scores."""
        import tensorflow as tf

        return tf.function(lambda weights, images: self.model.stateless_call(weights, [], images, training=False)[0])

    def score(self, weights) -> dict[str, float]:
        """Return loss and accuracy on the test examples."""
        import tensorflow as tf

        from dgc_lab.workloads.batches import make_evaluator

        weights = [tf.convert_to_tensor(weight) for weight in weights]  # arrays would be traced as constants
        evaluate = make_evaluator(self.data.x_test, self.data.y_test, batch=250)
        accuracy, loss = evaluate(functools.partial(self.logits, weights))
        return {"loss": loss, "accuracy": accuracy}
