"""Residual staleness: how many steps an element has waited in its residual when it is sent. Lesson 6.

An element's age is the number of earlier steps whose gradients its residual still contains. It is 0 if the element is
sent in the step in which its oldest gradient was computed. `with_ages` wraps Deep Gradient Compression and counts ages.

References:
    arXiv:1712.01887, section 3.3 (staleness of the residual; momentum factor masking reduces it).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from dgc_lab.common import check_instance, check_number, check_some, check_whole, free_memory
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.dgc_scheme import scheme_of
from dgc_lab.compression.scheme import Scheme

if TYPE_CHECKING:
    from dgc_lab.training.distributed_trainer import DistributedConfig, DistributedTrainer
    from dgc_lab.workloads.dataset import Dataset

LONGEST = 10**6  # highest age with a count of its own
EXAMPLES_PER_STEP = 128  # of all workers together, in `residual_ages` and in the study of workers


def with_ages(config: DGCConfig, longest: int = 1000) -> Scheme:
    """Return a config's scheme, extended by the age of each element in the residual.

    The state has three parts: the scheme's own state, the age of each element, int32 (n,), and the number of elements
    sent so far at each age, int64 (longest + 1,). Higher ages count as ``longest``.

    Args:
        config: config that accumulates residuals and sends float32 values.
        longest: highest age with a count of its own, from 0 to 1 000 000.

    Raises:
        ValueError: config is not one, stores no residuals, rounds values or decays weights; or longest is out of range.

    Example:
        >>> from dgc_lab.distributed.communicators import OneWorker
        >>> config = DGCConfig(ratio=0.5, momentum=0.0, dense_below=0)
        >>> worker = Compressor(with_ages(config, longest=3), [tf.Variable([[0.0, 0.0]])], OneWorker(), options=config)
        >>> for gradient in ([1.0, 3.0], [1.0, 1.0], [1.0, 2.5]):
        ...     _ = worker([[tf.constant([gradient])]])
        >>> sent_ages(worker).tolist(), waiting_ages(worker).tolist()
        ([1, 2, 0, 0], [0, 1, 0, 0])
    """
    if not check_instance("config", config, DGCConfig).accumulate:
        raise ValueError("config must accumulate residuals: dropped elements have no age")
    if config.values != "float32":
        raise ValueError(f"config must send float32 values, which leave no rounding error, got {config.values!r}")
    if config.weight_decay:
        raise ValueError(f"config must have weight_decay 0, because ages do not count it, got {config.weight_decay}")
    classes, scheme = check_whole("longest", longest, 0, LONGEST) + 1, scheme_of(config)

    def init(gradient):
        return scheme.init(gradient), tf.zeros_like(gradient, tf.int32), tf.zeros([classes], tf.int64)

    def step(gradient, state, context):
        inner, ages, counts = state
        sending = scheme.step(gradient, inner, context)
        question = next(sending)
        answer = yield question
        try:
            sending.send(answer)
        except StopIteration as end:
            update, own, inner = end.value
        sent = tf.boolean_mask(tf.gather(ages, question.indices), question.values != 0)  # at ratio 1 zeros are sent too
        sent = tf.minimum(sent, classes - 1)
        counts += tf.math.bincount(sent, minlength=classes, maxlength=classes, dtype=tf.int64)
        # The residual follows the velocity, if there is one.
        residual = tf.nest.flatten(inner)[int(scheme.momentum > 0)]
        return update, own, (inner, tf.where(residual == 0, 0, ages + 1), counts)

    return dataclasses.replace(scheme, step=step, init=init, name=f"{scheme.name}, with ages")


def residual_ages(
    workers: Sequence[int] = (1, 4, 16),
    ratios: Sequence[float] = (0.01, 0.001),
    steps: int = 300,
    data: Dataset | None = None,
) -> list[dict]:
    """Train with DGC on simulated workers and return the ages of the elements sent, and of those still waiting.

    Every run trains on MNIST-1D with 128 examples per step in total.

    Args:
        workers: numbers of workers, divisors of 128.
        ratios: shares of the elements that a worker sends, below 1.
        steps: updates per run.
        data: MNIST-1D, if it is loaded already.

    Returns:
        A dict for each run: ``workers``, ``ratio``, ``mean age``, ``median age``, ``mean age waiting``, and ``sent by
        age``, a list of (first age, last age, number of elements).

    Raises:
        ValueError: an argument is not in its range.

    Example:
        >>> [row["workers"] for row in residual_ages(workers=(2,), ratios=(0.01,), steps=3)]
        [2]
    """
    from dgc_lab.training.distributed_trainer import DistributedConfig

    check_whole("steps", steps, 1, LONGEST)
    for number in check_some("workers", workers):
        if EXAMPLES_PER_STEP % check_whole("workers", number, 1, EXAMPLES_PER_STEP):
            raise ValueError(f"workers must be divisors of {EXAMPLES_PER_STEP}, got {number}")
    for ratio in check_some("ratios", ratios):
        check_number("ratios", ratio, "above 0 and below 1")
    found = []
    for number in workers:
        batch, task = EXAMPLES_PER_STEP // number, {"dataset": "mnist1d", "clip_norm": 1.0, "schedule": "cosine"}
        settings = DistributedConfig(workers=number, batch=batch, steps=steps, learning_rate=0.1, evaluations=1, **task)
        trainer = trainer_with_ages(settings, data)
        for ratio in ratios:
            list(trainer.run(ratio))
            sent, waiting = sent_ages(trainer.compressor), waiting_ages(trainer.compressor)
            ages = {"mean age": mean_age(sent), "median age": median_age(sent), "mean age waiting": mean_age(waiting)}
            found.append({"workers": number, "ratio": ratio, **ages, "sent by age": by_doubling(sent)})
        del trainer
        free_memory()
    return found


def trainer_with_ages(settings: DistributedConfig, data: Dataset | None = None) -> DistributedTrainer:
    """Return a trainer of simulated workers whose scheme counts the ages of residuals."""
    from dgc_lab.distributed.communicators import SimulatedWorkers
    from dgc_lab.training.distributed_trainer import DistributedTrainer

    trainer = DistributedTrainer(settings, SimulatedWorkers(settings.workers), data)
    own = trainer.compressor
    scheme = with_ages(own.config, settings.steps)
    trainer.compressor = Compressor(scheme, own.trained, own.communicator, own.names, own.config)
    return trainer


def sent_ages(compressor: Compressor) -> np.ndarray:
    """Return the numbers of elements sent at age 0, 1, ... by the workers in this process: int64 (longest + 1,).

    The scheme of ``compressor`` must come from `with_ages`. If it compresses no tensor, the result is ``[0]``.

    Example:
        >>> from dgc_lab.distributed.communicators import OneWorker
        >>> scheme = with_ages(DGCConfig(), longest=2)
        >>> sent_ages(Compressor(scheme, [tf.Variable(tf.zeros([40, 50]))], OneWorker())).tolist()
        [0, 0, 0]
    """
    counts = [tf.nest.flatten(state)[-1].numpy() for state in compressor.states if state]
    return sum(counts) if counts else np.zeros(1, np.int64)  # no tensor is compressed


def waiting_ages(compressor: Compressor) -> np.ndarray:
    """Return the numbers of elements in this process's residuals by the age at which the next step would send them.

    The result is int64 (longest + 1,), for age 0, 1, ..., or ``[0]`` if no tensor is compressed. The scheme of
    ``compressor`` must come from `with_ages`.

    Example:
        >>> from dgc_lab.distributed.communicators import OneWorker
        >>> scheme = with_ages(DGCConfig(), longest=2)
        >>> waiting_ages(Compressor(scheme, [tf.Variable(tf.zeros([40, 50]))], OneWorker())).tolist()
        [0, 0, 0]
    """
    every = [tf.nest.flatten(state)[-2].numpy() for state in compressor.states if state]
    every = np.concatenate([np.zeros(0, np.int32), *every])
    classes = len(sent_ages(compressor))
    return np.bincount(np.minimum(every[every > 0], classes - 1), minlength=classes)


def by_doubling(counts) -> list[tuple[int, int, int]]:
    """Sum counts of age 0, 1, ... in classes that double (0, 1, 2 to 3, ...): (first age, last age, number) of each.

    Example:
        >>> by_doubling([5, 4, 3, 2, 1])
        [(0, 0, 5), (1, 1, 4), (2, 3, 5), (4, 7, 1)]
    """
    counts, classes, first, last = np.asarray(counts), [], 0, 0
    while first < len(counts):
        classes.append((first, last, int(counts[first : last + 1].sum())))
        first, last = last + 1, 2 * last + 1
    return classes


def median_age(counts) -> int:
    """Return the smallest age that at least half of the elements do not exceed.

    Raises ValueError if ``counts`` has no elements.
    """
    total = np.cumsum(counts)
    if not len(total) or not total[-1]:
        raise ValueError("counts must hold at least one element, got none")
    return int(np.searchsorted(total, total[-1] / 2))


def mean_age(counts) -> float:
    """Return the mean of the counted ages, or NaN if there are no elements.

    Example:
        >>> mean_age([2, 1, 1])
        0.75
    """
    counts = np.asarray(counts)
    return float((counts @ np.arange(len(counts))) / counts.sum()) if counts.sum() else float("nan")
