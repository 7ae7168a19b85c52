"""Synchronous training without servers: workers of ``MultiWorkerMirroredStrategy`` average gradients by allreduce.

Lesson 3, section 6. Each update uses the same batches as in synchronous training on parameter servers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import tensorflow as tf

from dgc_lab.cluster import stop_requested
from dgc_lab.cluster import tensorflow_roles as roles
from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.events import Finished, Score
from dgc_lab.parameter_server.schedule import GradientEvent
from dgc_lab.parameter_server.server import sleep
from dgc_lab.parameter_server.worker import delay, now
from dgc_lab.workloads.dataset import Task


def train_mirrored(task: Task, config: AsyncConfig) -> Iterator:
    """Train on the workers of a `dgc_lab.cluster.MultiWorkerMirrored`; runs in each worker's process.

    ``task`` and ``config`` are as in `dgc_lab.parameter_server.train`; the mode must be synchronous.

    Yields:
        A `GradientEvent` for each batch of this worker. Waiting for the others happens in the allreduce, before
        ``done``. The first worker also yields a `Score` at the start and at the end, and `Finished`.

    Raises:
        ValueError: the mode is not synchronous, or the config does not fit the number of workers.

    Example:
        >>> with MultiWorkerMirrored(2) as workers:  # doctest: +SKIP
        ...     events = list(workers.stream(train_mirrored, task, AsyncConfig(gradients=40)))
        >>> events[-1].version  # doctest: +SKIP
        20
    """
    workers, worker = roles.number_of("worker"), roles.own_number()
    config.check(workers)
    if config.schedule.mode != "synchronous":
        raise ValueError(f"schedule must be synchronous, got {config.schedule.mode!r}")
    strategy = roles.mirrored()
    first = task.initial_weights()
    with strategy.scope():
        weights = [tf.Variable(weight) for weight in first]
        velocities = [tf.Variable(tf.zeros(weight.shape)) for weight in weights]
    positions = config.batch_order(len(task.examples[0]))

    def on_replica(number, *batch):
        began = now()
        with tf.control_dependencies([began]):
            batch = [tf.identity(array) for array in batch]
        seed = tf.stack([config.seed, number])
        loss, gradients = task.gradients([weight.read_value() for weight in weights], seed, *batch)
        computed = now(sleep(delay(config.schedule, workers, worker, seed, now(*gradients) - began)))
        with tf.control_dependencies([computed]):
            gradients = [tf.identity(gradient) for gradient in gradients]
        for weight, velocity, mean in zip(weights, velocities, all_reduce_mean(gradients), strict=True):
            velocity.assign(config.momentum * velocity + mean)
            weight.assign_sub(config.learning_rate * workers * velocity)
        done = now(*[weight.read_value() for weight in weights])
        return tf.stack([began, computed, done, tf.cast(loss, tf.float64)])

    step = tf.function(lambda *arguments: strategy.run(on_replica, arguments))

    def batch(number):
        return [tf.constant(array[positions[number]]) for array in task.examples]

    def mean_over_workers(value: float) -> float:
        """Return the mean over the workers, which wait for each other."""
        return float(strategy.run(lambda: all_reduce_mean(tf.constant(value, tf.float64))))

    step.get_concrete_function(tf.constant(0), *batch(worker))  # trace before timing starts
    if worker == 0:
        yield Score(0, 0.0, task.score([weight.numpy() for weight in weights]))
    began = mean_over_workers(time.time())
    began = mean_over_workers(time.time())  # again, now that all have arrived: a common start of the clock
    updates = 0
    for update in range(config.gradients // workers):
        if mean_over_workers(float(stop_requested())):  # all workers stop at the same step
            break
        number = update * workers + worker
        *times, loss = (float(value) for value in step(tf.constant(number), *batch(number)))
        start, computed, done = (moment - began for moment in times)
        yield GradientEvent(worker, number, start, start, computed, done, update, update, loss)
        updates += 1
    if worker == 0:
        final = [weight.numpy() for weight in weights]
        yield Score(updates * workers, time.time() - began, task.score(final))
        yield Finished(final, updates, updates * workers)


def all_reduce_mean(values):
    """Return the mean over all replicas; call this inside ``strategy.run``."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, values)
