"""Several training steps in one TensorFlow call, because between two calls TensorFlow waits for Python."""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf

SECONDS = 0.05  # target duration of a call, which delays Stop, progress and live points
MAX_STEPS = 100  # in a call
GROWTH = 4  # largest growth factor of the number of steps from call to call


class StepsAtOnce:
    """Runner of one to `MAX_STEPS` training steps per call; the results equal those of single steps bit for bit.

    Each call has about as many steps as fit into `SECONDS`.

    Args:
        step: function of the step's number (int32, 0 for the first), its ratio (float64) and the number of steps that
            this worker requests for the next call (float32, 0 to stop). It returns the step's results, float64
            ``(numbers,)``, and the smallest request of all workers, both after every operation that can fail. It is
            traced once.
        numbers: how many results a step has.

    Attributes:
        size: largest number of steps in the next call, the same on all workers; 0 once a worker requests a stop.

    Example:
        >>> calls = StepsAtOnce(lambda step, ratio, requested: (tf.cast([2 * step], tf.float64), requested), 1)
        >>> results, seconds, error = calls(0, [1.0, 1.0, 1.0])
        >>> results.tolist(), error
        ([[0.0], [2.0], [4.0]], None)
    """

    def __init__(self, step: Callable, numbers: int):
        self.step = step
        # A variable, not the call's return value: the results of earlier steps survive if a step fails.
        self._results = tf.Variable(tf.zeros([MAX_STEPS, numbers], tf.float64), trainable=False)
        self._done = tf.Variable(0, trainable=False)
        signature = [tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.float64), tf.TensorSpec([], tf.float32)]
        self._call = tf.function(self._steps, input_signature=signature, autograph=False)
        self.begin()

    def begin(self) -> None:
        """Start again with one step per call; all workers must do so at the same time."""
        self.size = self._requested = 1

    def __call__(self, first: int, ratios, stop: bool = False):
        """Run a step for each ratio, the first with the number ``first``.

        If any worker passes ``stop=True``, all workers run a single step.

        Returns:
            ``(results, seconds, error)``: the results of the steps, float64 (steps, numbers); the seconds that each
            step took; and None, or the tf.errors.InvalidArgumentError of the step that failed after them.
        """
        start, error, requested = time.perf_counter(), None, 0 if stop else self._requested
        try:
            size = self._call(tf.constant(first), tf.constant(ratios, tf.float64), tf.constant(requested, tf.float32))
            self.size = int(size)
        except tf.errors.InvalidArgumentError as problem:
            if "gradient of " not in problem.message:  # a mistake such as an invalid label, not a divergence
                raise
            error = problem
        results = self._results[: int(self._done)].numpy()
        seconds = (time.perf_counter() - start) / (len(results) + (error is not None))
        self._requested = min(MAX_STEPS, GROWTH * len(ratios), max(1, int(SECONDS / seconds)))
        return results, seconds, error

    def _steps(self, first, ratios, requested):
        self._done.assign(0)

        def step(done, _):
            results, size = self.step(first + done, ratios[done], requested)
            with tf.control_dependencies([self._results[done].assign(results)]):
                self._done.assign(done + 1)
            return done + 1, size

        no_stop = tf.ones([])
        _, size = tf.while_loop(
            lambda done, size: (done < tf.size(ratios)) & (size > 0),
            step,
            (tf.constant(0), no_stop),
            parallel_iterations=1,
        )
        return size
