"""Several training steps in one call of TensorFlow: between two calls it waits for Python."""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf

SECONDS = 0.05  # that a call is to take: Stop, progress and live points wait no longer
MOST = 100  # steps in a call
GROWTH = 4  # of their number from call to call


class StepsAtOnce:
    """Calls with one to `MOST` steps each, as many as take `SECONDS`; the same steps as one by one, to the bit.

    Args:
        step: a function of the step's number (int32, 0 for the first), its ratio (float64) and a wish (float32): how
            many steps the next call had better have, 0 to stop. It returns what the step tells, float64 ``(numbers,)``,
            and the smallest wish of all workers; both after all that can fail. It is traced once.
        numbers: how many numbers a step tells.

    Attributes:
        size: steps in the next call, at most; the same on all workers. 0 once one of them wants to stop.

    Example:
        >>> calls = StepsAtOnce(lambda step, ratio, wish: (tf.cast(2 * step, tf.float64)[None], wish), numbers=1)
        >>> told, seconds, error = calls(0, [1.0, 1.0, 1.0])
        >>> told.tolist(), error
        ([[0.0], [2.0], [4.0]], None)
    """

    def __init__(self, step: Callable, numbers: int):
        self.step = step
        # Not the call's result: where a step fails, those before it have told already.
        self._told = tf.Variable(tf.zeros([MOST, numbers], tf.float64), trainable=False)
        self._done = tf.Variable(0, trainable=False)
        signature = [tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.float64), tf.TensorSpec([], tf.float32)]
        self._call = tf.function(self._steps, input_signature=signature, autograph=False)
        self.begin()

    def begin(self) -> None:
        """Begin with one step again, as all workers must at the same time."""
        self.size = self._wish = 1

    def __call__(self, first: int, ratios, stop: bool = False):
        """A step for each ratio, the first with the number ``first``; a single one, on all workers, if one says stop.

        Returns:
            ``(told, seconds, error)``: what the steps told, float64 (steps, numbers); seconds that each took; and None,
            or the tf.errors.InvalidArgumentError of the step after them.
        """
        start, error, wish = time.perf_counter(), None, 0 if stop else self._wish
        try:
            size = self._call(tf.constant(first), tf.constant(ratios, tf.float64), tf.constant(wish, tf.float32))
            self.size = int(size)
        except tf.errors.InvalidArgumentError as problem:
            if "gradient of " not in problem.message:  # a mistake, as a label that is no class, and nothing diverged
                raise
            error = problem
        told = self._told[: int(self._done)].numpy()
        seconds = (time.perf_counter() - start) / (len(told) + (error is not None))
        self._wish = min(MOST, GROWTH * len(ratios), max(1, int(SECONDS / seconds)))
        return told, seconds, error

    def _steps(self, first, ratios, wish):
        self._done.assign(0)

        def step(done, _):
            told, size = self.step(first + done, ratios[done], wish)
            with tf.control_dependencies([self._told[done].assign(told)]):
                self._done.assign(done + 1)
            return done + 1, size

        unlike_stop = tf.ones([])
        _, size = tf.while_loop(
            lambda done, size: (done < tf.size(ratios)) & (size > 0),
            step,
            (tf.constant(0), unlike_stop),
            parallel_iterations=1,
        )
        return size
