"""A worker's step on parameter servers, and the delay of stragglers. Lesson 3, section 1.

The step runs on remote workers, so all of it, including the delay, is inside the graph.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from dgc_lab.parameter_server.schedule import Schedule, Straggler
from dgc_lab.parameter_server.server import REHEARSAL, ParameterServerModel, sleep
from dgc_lab.workloads.dataset import Task


def worker_step(model: ParameterServerModel, task: Task, seed: int):
    """Return a worker's step on a batch: a ``tf.function`` for ``ClusterCoordinator.schedule``.

    ``model`` is on the servers, ``task`` as in `dgc_lab.parameter_server.train`, ``seed`` the config's.

    Returns:
        A function of the batch's number, an int64 scalar, and of the batch's tensors. It gives float64 (8,): worker,
        the four times of a `GradientEvent` as seconds since 1970, version, update, loss. With `REHEARSAL` as number it
        waits for nobody, and changes nothing.

    Example:
        >>> step = worker_step(model, task, seed=0)  # doctest: +SKIP
        >>> result = coordinator.schedule(step, (tf.constant(7, tf.int64), images, labels))  # doctest: +SKIP
    """

    @tf.function
    def step(number, *batch):
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        own_seed = tf.stack([seed, tf.cast(number, tf.int32)])
        began = now()
        with tf.control_dependencies([began]):
            turn = model.wait_for_turn(worker, number)
        with tf.control_dependencies([turn]):
            version, weights = model.read()
        read = now(*weights)
        with tf.control_dependencies([read]):
            weights = [tf.identity(weight) for weight in weights]
        loss, gradients = task.gradients(weights, own_seed, *batch)
        seconds = delay(model.schedule, model.workers, worker, own_seed, now(*gradients) - read)
        computed = now(sleep(tf.where(tf.equal(number, REHEARSAL), tf.zeros_like(seconds), seconds)))
        with tf.control_dependencies([computed]):
            update, version = model.submit(worker, number, version, gradients)
        done = now(update)
        return tf.stack([tf.cast(x, tf.float64) for x in (worker, began, read, computed, done, version, update, loss)])

    return step


def now(*after) -> tf.Tensor:
    """Return the seconds since 1970, float64, at the moment when these tensors are available."""
    with tf.control_dependencies(after):
        return tf.timestamp()


def delay(schedule: Schedule, workers: int, worker, seed, computing) -> tf.Tensor:
    """Return the seconds, float64, that a straggler waits after it has computed for ``computing`` seconds."""
    slow = {straggler.worker: straggler for straggler in schedule.stragglers}
    each = [slow.get(number, Straggler(number)) for number in range(workers)]
    table = tf.constant([(one.slowdown, one.delay, one.tail or np.inf) for one in each], tf.float64)
    slowdown, seconds, tail = tf.unstack(tf.gather(table, worker))
    # Pareto distribution with mean 1; with an infinite exponent it is always 1.
    uniform = 1 - tf.random.stateless_uniform([], seed, dtype=tf.float64)
    random = (1 - 1 / tail) * uniform ** (-1 / tail)
    return (slowdown - 1) * computing + random * seconds
