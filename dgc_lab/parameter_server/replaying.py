"""Replay of a training from its records, in this process and without servers. Lesson 3, sections 3, 4 and 8.

A schedule affects learning only through the weights that each gradient is computed from, and the update that includes
it. Measured and simulated records contain both. A replay shows the effect of staleness for many workers and seeds
without waiting.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict, deque

import tensorflow as tf

from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.events import Finished, Score, Training
from dgc_lab.parameter_server.metrics import check_runs, stalenesses
from dgc_lab.parameter_server.schedule import DROPPED, GradientEvent
from dgc_lab.workloads.dataset import Task


def replay(task: Task, config: AsyncConfig, records: list[GradientEvent]) -> Training:
    """Train in the order of the records: the same weights for each gradient, the same gradients in each update.

    Args:
        task: as in `dgc_lab.parameter_server.training_loop.train`.
        config: batches, learning rate, momentum and seed. Its ``schedule`` is ignored: the records fix the order.
        records: a complete training from its first update, with one record for each of ``config.gradients`` batches.

    Returns:
        The records with the losses of this training (NaN for dropped gradients), one `Score` at the end, and
        `Finished`. Given the records and the config of a training on servers, the final weights are those of that
        training, except for rounding.

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
    training, gradients = Training([dataclasses.replace(record, loss=float("nan")) for record in dropped]), traced(task)
    positions = config.batch_order(len(task.examples[0]))
    weights = [tf.constant(weight) for weight in task.initial_weights()]
    velocities = [tf.zeros_like(weight) for weight in weights]
    # The newest weights come first, so that a gradient's staleness is the index of the weights it read.
    past = deque([weights], maxlen=1 + max(stalenesses(records), default=0))
    for number in range(len(updates)):
        members, each = updates[number], []
        for record in members:
            batch = [tf.constant(array[positions[record.batch]]) for array in task.examples]
            loss, own = gradients(past[record.staleness], tf.constant([config.seed, record.batch]), *batch)
            each.append(own)
            training.take(dataclasses.replace(record, loss=float(loss)))
        sums = functools.reduce(_add, each)
        late = max(1, members[-1].staleness) if config.staleness_aware else 1
        rate = config.learning_rate * len(members) / late
        numbers = (tf.constant(number, tf.float32) for number in (len(members), config.momentum, rate))
        weights, velocities = _move(past[0], velocities, sums, *numbers)
        past.appendleft(weights)
    end = [weight.numpy() for weight in past[0]]
    training.take(Score(len(records), max(record.done for record in records), task.score(end)))
    training.take(Finished(end, len(updates), len(records)))
    return training


@functools.lru_cache(maxsize=8)
def traced(task):
    """Return the task's gradients as a ``tf.function``, the same at every call, so that it is traced once."""
    return tf.function(task.gradients)


@tf.function
def _add(one, other):
    return [a + b for a, b in zip(one, other, strict=True)]


@tf.function
def _move(weights, velocities, sums, count, momentum, rate):
    """Return weights and velocities after an update, with the rule of `dgc_lab.parameter_server.server`."""
    velocities = [momentum * velocity + total / count for velocity, total in zip(velocities, sums, strict=True)]
    return [weight - rate * velocity for weight, velocity in zip(weights, velocities, strict=True)], velocities
