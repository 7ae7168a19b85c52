"""Local SGD: workers train alone between exchanges, and then exchange their weight changes."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.compression.parts import GradientVectors
from dgc_lab.compression.scheme import Scheme


class LocalDeltas:
    """Difference between the weights of each worker in this process and the common weights.

    Attributes:
        variables: a ``tf.Variable`` for each worker and weight, float32, worker by worker.
    """

    def __init__(self, scheme: Scheme, shapes: list, workers: int):
        self.scheme, self.shapes = scheme, shapes
        self.by_worker = [
            [tf.Variable(tf.zeros(shape), trainable=False, name="delta") for shape in shapes] for _ in range(workers)
        ]

    @property
    def variables(self) -> list[tf.Variable]:
        return [variable for own in self.by_worker for variable in own]

    def weights(self, common: list, worker: int) -> list[tf.Tensor]:
        """Return the weights at which a worker computes its gradients."""
        deltas = self.by_worker[worker]
        return [tf.cast(weight, tf.float32) + delta for weight, delta in zip(common, deltas, strict=True)]

    def step(self, workers: list[GradientVectors], step: tf.Tensor, learning_rate, exchange, wait):
        """Update each worker with its gradients; exchange the weight changes if an exchange is due.

        Args:
            workers: the gradients of each worker in this process.
            step: number of updates so far.
            learning_rate: learning rate of this step, float32 scalar.
            exchange: function of weight changes, in the form of ``workers``, that returns a structure of tensors.
            wait: function without arguments that returns a structure of the same form, for a step without an exchange.

        Returns:
            ``(outcome, changes)``: the result of ``exchange`` or ``wait``, and pairs of a delta and its new value.
        """
        if learning_rate is None:
            raise ValueError(
                f"{self.scheme.label} needs train(): between exchanges, workers move by their own learning rate"
            )
        numbers = [*workers[0].compressed, *workers[0].uncompressed]
        old = [[own[i] for i in numbers] for own in self.by_worker]
        moved = [
            [delta - learning_rate * gradient for delta, gradient in zip(deltas, own.each(self.shapes), strict=True)]
            for deltas, own in zip(old, workers, strict=True)
        ]
        due = (step < self.scheme.since) | ((step + 1) % self.scheme.every == 0)

        def exchanged():
            steps = [[-move / learning_rate for move in moves] for moves in moved]
            outcome = exchange([own.with_each(each) for own, each in zip(workers, steps, strict=True)])
            return outcome, tf.nest.map_structure(tf.zeros_like, moved)

        # At a learning rate of 0 no exchange could move anything.
        outcome, deltas = tf.cond(due & (learning_rate > 0), exchanged, lambda: (wait(), moved))
        return outcome, list(zip(tf.nest.flatten(old), tf.nest.flatten(deltas), strict=True))
