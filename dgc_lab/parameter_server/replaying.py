"""Replay of a training run from its records, in this process and without servers. Lesson 3, sections 3, 4 and 8.

A schedule affects learning only through the weights that each gradient is computed from, and the update that includes
it. Measured and simulated records contain both. A replay shows the effect of staleness for many workers and seeds
without waiting.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict, deque

import numpy as np
import tensorflow as tf

from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.events import Finished, Score, Training
from dgc_lab.parameter_server.metrics import check_runs, stalenesses
from dgc_lab.parameter_server.schedule import DROPPED, GradientEvent
from dgc_lab.parameter_server.server import unflattened
from dgc_lab.workloads.dataset import Task


def replay(task: Task, config: AsyncConfig, records: list[GradientEvent]) -> Training:
    """Train in the order of the records: the same weights for each gradient, the same gradients in each update.

    Args:
        task: as in `dgc_lab.parameter_server.training_loop.train`.
        config: batches, learning rate, momentum and seed. Its ``schedule`` is ignored: the records fix the order.
        records: a complete training from its first update, with one record for each of ``config.gradients`` batches.

    Returns:
        The records with the losses of this training (NaN for dropped gradients), a `Score` every ``score_every``
        gradients and one at the end, and `Finished`. A score's seconds are those of its update in the records. Given
        the records and the config of a run on servers, the final weights are those of that run, except for
        rounding.

    Raises:
        ValueError: the number of records is not ``config.gradients``, or an update is missing.

    Example:
        >>> from dgc_lab.parameter_server import Schedule, StepCosts, simulate
        >>> from dgc_lab.workloads import RingGAN
        >>> two = simulate(Schedule("asynchronous"), workers=2, gradients=6, costs=StepCosts(1.0))
        >>> replay(RingGAN(hidden=4), AsyncConfig(gradients=6), two).end.version
        6
    """
    check_runs({"records": records})
    updates = defaultdict(list)
    for record in records:
        updates[record.update].append(record)
    dropped = updates.pop(DROPPED, [])
    if len(records) != config.gradients or sorted(updates) != list(range(len(updates))):
        raise ValueError(
            f"records must be of a complete training of {config.gradients} gradients, got {len(records)} in "
            f"{len(updates)} updates up to number {max(updates, default=-1)}"
        )
    training = Training([dataclasses.replace(record, loss=float("nan")) for record in dropped])
    weights = Weights(task, config, longest=max(stalenesses(records), default=0))
    done, waiting, times_dropped = 0, [], deque(sorted(record.done for record in dropped))
    for number in range(len(updates)):
        waiting += updates[number]
        seconds = max(record.done for record in updates[number])
        before, done = done, done + len(updates[number])
        while times_dropped and times_dropped[0] <= seconds:
            times_dropped.popleft()
            done += 1
        ended = number == len(updates) - 1
        if ended or done // config.score_every > before // config.score_every:
            for record, loss in zip(waiting, weights.train(waiting), strict=True):
                training.take(dataclasses.replace(record, loss=float(loss)))
            waiting = []
            if not ended:
                training.take(Score(done, seconds, task.score(weights.newest())))
    end = weights.newest()
    training.take(Score(len(records), max(record.done for record in records), task.score(end)))
    training.take(Finished(end, len(updates), len(records)))
    return training


class Weights:
    """The weights of a training run after its last updates, as many as its stalest gradient needs."""

    def __init__(self, task: Task, config: AsyncConfig, longest: int):
        initial = task.initial_weights()
        flat = np.concatenate([np.ravel(weight) for weight in initial]).astype(np.float32)
        # Version v is in row v modulo the number of rows, a power of two, so that few shapes are traced.
        self.rows = 2 ** math.ceil(math.log2(longest + 1))
        self.history = tf.Variable(np.tile(flat, (self.rows, 1)))
        self.velocity, self.total = tf.Variable(np.zeros_like(flat)), tf.Variable(np.zeros_like(flat))
        self.shapes, self.config, self.version = [weight.shape for weight in initial], config, 0
        self.positions = config.batch_order(len(task.examples[0])).astype(np.int32)
        self.steps = steps(task)

    def newest(self) -> list[np.ndarray]:
        return [part.numpy() for part in unflattened(self.history[self.version % self.rows], self.shapes)]

    def train(self, records: list[GradientEvent]) -> np.ndarray:
        """Apply the updates of these records, ordered by update, and return the gradients' losses."""
        if not records:
            return np.zeros(0)
        update = np.array([record.update for record in records])
        last = np.append(update[1:] != update[:-1], True)
        count = np.bincount(update - update[0])[update - update[0]]
        rate = self.config.learning_rate * count
        if self.config.staleness_aware:
            rate = rate / np.maximum(1, [record.staleness for record in records])
        self.version = int(update[-1]) + 1
        per_gradient = {
            "batch": (batches := np.array([record.batch for record in records], np.int32)),
            "positions": self.positions[batches],
            "read": (np.array([record.version for record in records]) % self.rows).astype(np.int32),
            "old": (update % self.rows).astype(np.int32),
            "new": ((update + 1) % self.rows).astype(np.int32),
            "last": last,
            "count": count.astype(np.float32),
            "rate": rate.astype(np.float32),
        }
        tensors = {name: tf.constant(array) for name, array in per_gradient.items()}
        state = self.history, self.velocity, self.total
        return self.steps(
            *state, tensors, tf.constant(self.config.momentum, tf.float32), tf.constant(self.config.seed)
        ).numpy()


@functools.lru_cache(maxsize=8)
def steps(task):
    """Return the training loop as a ``tf.function``, the same at every call, so that it is traced once."""
    shapes = [weight.shape for weight in task.initial_weights()]
    examples = [tf.constant(array) for array in task.examples]

    @tf.function(reduce_retracing=True)
    def train(history, velocity, total, each, momentum, seed):
        """Train on a sequence of gradients with the rule of `dgc_lab.parameter_server.server`."""
        number = tf.shape(each["batch"])[0]
        losses = tf.TensorArray(tf.float32, number)
        for at in tf.range(number):
            weights = unflattened(tf.gather(history, each["read"][at]), shapes)
            batch = [tf.gather(array, each["positions"][at]) for array in examples]
            loss, gradients = task.gradients(weights, tf.stack([seed, each["batch"][at]]), *batch)
            total.assign_add(tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0))
            if each["last"][at]:
                velocity.assign(momentum * velocity + total / each["count"][at])
                new = tf.gather(history, each["old"][at]) - each["rate"][at] * velocity
                history.scatter_update(tf.IndexedSlices(new, each["new"][at]))
                total.assign(tf.zeros_like(total))
            losses = losses.write(at, tf.cast(loss, tf.float32))
        return losses.stack()

    return train
