"""A model on parameter servers, shared by workers that read its weights and submit gradients for its updates.

Modes differ in the number of gradients per update (``needed``), and in the condition for waiting (`_must_wait`).
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.schedule import DROPPED, NOT_YET

POLL_SECONDS = 0.001
REHEARSAL = -1  # batch number of a step whose gradient is ignored


def sleep(seconds) -> tf.Tensor:
    """Sleep inside a graph, even on a remote worker; return an int32 scalar that is available after this time."""
    nothing = {"output_types": [tf.int32], "output_shapes": [[]]}
    one = tf.raw_ops.TensorDataset(components=[tf.constant(0)], output_shapes=[[]])
    slept = tf.raw_ops.SleepDataset(
        input_dataset=one, sleep_microseconds=tf.cast(1e6 * tf.cast(seconds, tf.float64), tf.int64), **nothing
    )
    # Without the limit it would sleep a second time before it finds that no element follows.
    once = tf.raw_ops.TakeDataset(input_dataset=slept, count=tf.constant(1, tf.int64), **nothing)
    return tf.raw_ops.DatasetToSingleElement(dataset=once, **nothing)[0]


class ParameterServerModel:
    """Weights and schedule state on the parameter servers. Methods are called inside a ``tf.function``.

    An update of k gradients uses k times the learning rate, so that the same batches move the weights equally far in
    every mode (Goyal et al. 2017, "linear scaling rule"): v = momentum v + mean gradient, w = w - k rate v. With
    ``staleness_aware``, the rate is divided by the staleness if that is above 1 (Zhang et al. 2016).

    ``updates``, of shape (batches,), has the number of each batch's update, `DROPPED` or `NOT_YET`. ``version`` is the
    number of updates so far.
    """

    def __init__(self, strategy, servers, workers, config: AsyncConfig, weights, velocities, updates, version):
        self.config, self.schedule, self.workers = config, config.schedule, workers
        self.needed = self.schedule.gradients_per_update(workers)
        self._shapes = [np.shape(weight) for weight in weights]
        # One long vector, split into a part for each server: few, large messages.
        flat = [np.concatenate([np.ravel(array) for array in arrays]) for arrays in (weights, velocities)]
        weight_parts, velocity_parts = (np.array_split(vector.astype(np.float32), servers) for vector in flat)
        self.velocities, self.sums = [], []
        with strategy.scope():  # places one on each server in turn
            self.weights = [tf.Variable(part) for part in weight_parts]
            for weight, velocity in zip(self.weights, velocity_parts, strict=True):
                with strategy.extended.colocate_vars_with(weight):
                    self.velocities.append(tf.Variable(velocity))
                    self.sums.append(tf.Variable(tf.zeros_like(velocity)))
        # One server has the schedule's state and the lock. If a worker dies inside the lock, the lock is released.
        with tf.device(self.weights[0].device):
            none = tf.zeros([workers], tf.int64)
            self.version = tf.Variable(version, dtype=tf.int64)
            self.updates = tf.Variable(updates, dtype=tf.int64)
            self.versions = tf.Variable(tf.zeros_like(updates), dtype=tf.int64)  # of each batch's weights
            self.count = tf.Variable(0, dtype=tf.int64)  # gradients in the sums
            self.waiting = tf.Variable(none)  # 1 if a worker has a batch and waits for its turn
            self.submitted = tf.Variable(none)  # gradients of each worker so far
            self.contributed = tf.Variable(none - 1)  # last version to which each worker contributed
            self.stopped = tf.Variable(False)
            self.lock = tf.CriticalSection(name="parameter_server_model")

    def wait_for_turn(self, worker, batch) -> tf.Tensor:
        """Wait until the schedule lets the worker read the weights for this batch."""
        if self.schedule.mode == "asynchronous":
            return tf.constant(0)
        self.waiting.scatter_update(tf.IndexedSlices(tf.constant(1, tf.int64), worker))
        polls = [lambda _: self._blocked(worker, batch), lambda times: times + sleep(POLL_SECONDS), [tf.constant(0)]]
        with tf.control_dependencies(tf.while_loop(*polls)):
            self.waiting.scatter_update(tf.IndexedSlices(tf.constant(0, tf.int64), worker))
            return tf.constant(0)

    def _blocked(self, worker, batch):
        with tf.device(self.version.device):  # where all its inputs are
            wait = self._must_wait(worker, batch)
            # If waiting workers have all remaining batches, no other worker can end the wait.
            left = tf.reduce_sum(tf.cast(tf.equal(self.updates, NOT_YET), tf.int64))
            return wait & (tf.reduce_sum(self.waiting) < left) & ~self.stopped

    def _must_wait(self, worker, batch):
        if self.schedule.mode == "synchronous":
            return batch // self.needed > self.version
        if self.schedule.mode == "backup workers":
            return tf.equal(self.contributed[worker], self.version)
        if self.schedule.mode == "bounded staleness":
            return self.submitted[worker] - tf.reduce_min(self.submitted) > self.schedule.bound
        return tf.constant(False)

    def read(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the version and the weights of this version; no update can happen in between."""
        version, *parts = self.lock.execute(
            lambda: [tf.identity(variable.read_value()) for variable in (self.version, *self.weights)]
        )
        return version, unflattened(tf.concat(parts, 0), self._shapes)

    def submit(self, worker, batch, version, gradients) -> tuple[tf.Tensor, tf.Tensor]:
        """Submit a batch's gradient; return the number of its update and the version of its weights, int64 scalars.

        The number is `NOT_YET` if the gradient is refused: the training was stopped while the worker waited for its
        turn, or it is a `REHEARSAL`. A batch is not accepted twice; a repeated one gets the result of its first
        gradient, because a worker can die between the update and its report.
        """
        sizes = [part.shape[0] for part in self.weights]
        parts = tf.split(tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0), sizes)
        with tf.device(self.version.device):
            return self.lock.execute(lambda: self._accept(worker, batch, version, parts))

    def _accept(self, worker, batch, version, parts):
        rehearsal, batch = tf.equal(batch, REHEARSAL), tf.maximum(batch, 0)
        current, before = self.version.read_value(), self.updates[batch]
        known = rehearsal | tf.not_equal(before, NOT_YET)
        late = tf.not_equal(version, current) if self.schedule.mode == "backup workers" else tf.constant(False)
        if self.schedule.mode == "synchronous":
            refused = tf.not_equal(version, batch // self.needed)
        else:
            refused = self.stopped & self._must_wait(worker, batch)

        def add():
            added = []
            for total, part in zip(self.sums, parts, strict=True):
                with tf.device(total.device):
                    added.append(total.assign_add(part, read_value=False))
            with tf.control_dependencies(added):
                full = self.count.assign_add(1) >= self.needed
            return tf.cond(full, lambda: self._update(current - version), lambda: current)

        counts = ~(known | refused)
        with tf.control_dependencies([tf.cond(counts & ~late, add, lambda: current)]):
            last = tf.where(counts, version, self.contributed[worker])
            self.contributed.scatter_update(tf.IndexedSlices(last, worker))
            self.submitted.scatter_add(tf.IndexedSlices(tf.cast(counts, tf.int64), worker))
            own = tf.where(counts, version, self.versions[batch])
            self.versions.scatter_update(tf.IndexedSlices(own, batch))
            update = tf.where(counts, tf.where(late, tf.cast(DROPPED, tf.int64), current), before)
            self.updates.scatter_update(tf.IndexedSlices(update, batch))
            return tf.identity(update), tf.identity(own)

    def _update(self, staleness):
        rate = tf.constant(self.config.learning_rate * self.needed, tf.float32)
        if self.config.staleness_aware:
            rate = rate / tf.cast(tf.maximum(staleness, 1), tf.float32)
        for weight, velocity, total in zip(self.weights, self.velocities, self.sums, strict=True):
            with tf.device(weight.device):  # compute on the servers, not on the worker
                new = self.config.momentum * velocity + total / self.needed
                velocity.assign(new)
                weight.assign_sub(rate * new)
                total.assign(tf.zeros_like(total))
        self.count.assign(0)
        return self.version.assign_add(1)

    def forget(self, worker: int) -> None:
        """Continue without a worker that died."""
        self.waiting.scatter_update(tf.IndexedSlices(tf.constant(0, tf.int64), worker))

    @tf.function
    def _snapshot(self):
        everything = [self.version, self.updates, *self.weights, *self.velocities]
        return self.lock.execute(lambda: [tf.identity(variable.read_value()) for variable in everything])

    def snapshot(self) -> dict:
        """Return version, updates, weights and velocities of one moment as arrays; call this outside a graph."""
        version, updates, *parts = self._snapshot()
        halves = [tf.concat(half, 0) for half in (parts[: len(self.weights)], parts[len(self.weights) :])]
        weights, velocities = ([tensor.numpy() for tensor in unflattened(half, self._shapes)] for half in halves)
        return {"weights": weights, "velocities": velocities, "version": int(version), "updates": updates.numpy()}


def unflattened(vector, shapes) -> list[tf.Tensor]:
    """Return a flat vector as tensors of these shapes."""
    parts = tf.split(vector, [math.prod(shape) for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
