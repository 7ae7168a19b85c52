"""Learning rates for more workers, which share the same number of examples and so make fewer updates. Lesson 7."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import pandas as pd
import tensorflow as tf

from dgc_lab.common import check_list, check_some, check_whole, free_memory
from dgc_lab.compression.config import DGCConfig
from dgc_lab.distributed.communicators import SimulatedWorkers
from dgc_lab.training.events import TrainingDiverged
from dgc_lab.training.model_trainer import ModelTrainer, batches_of
from dgc_lab.workloads.batches import cross_entropy, make_evaluator
from dgc_lab.workloads.data import load
from dgc_lab.workloads.dataset import Dataset
from dgc_lab.workloads.models import digits_cnn

# Momentum SGD. Sending each tensor uncompressed avoids the search for thresholds that every element passes.
UNCOMPRESSED = DGCConfig(ratio=1.0, momentum=0.9, dense_below=2**31)


class RateOfStep(keras.optimizers.schedules.LearningRateSchedule):
    """Learning-rate schedule with a rate for each step; the rates can change without a new trace."""

    def __init__(self, steps: int):
        self.rates = tf.Variable(tf.zeros([steps]), trainable=False)

    def set(self, rate) -> None:
        """Set the rates from a number, or from a function of the step, such as another schedule."""
        steps = range(self.rates.shape[0])
        self.rates.assign([float(rate(step) if callable(rate) else rate) for step in steps])

    def __call__(self, step):
        return self.rates[step]


def updates(workers: int, examples: int, batch: int = 16) -> int:
    """Return how many updates ``workers`` make with ``examples`` in total and ``batch`` examples per worker.

    Raises ValueError if an argument is not a whole number of at least 1.

    Example:
        >>> updates(1, 1600), updates(8, 1600)
        (100, 12)
    """
    for name, value in {"workers": workers, "examples": examples, "batch": batch}.items():
        check_whole(name, value, 1)
    return examples // (batch * workers)


def accuracy_by_rate(
    runs: dict, examples: int, batch: int = 16, seeds: Sequence[int] = (0, 1, 2), data: Dataset | None = None
) -> pd.DataFrame:
    """Train `dgc_lab.workloads.digits_cnn` on simulated workers with momentum and uncompressed gradients.

    Args:
        runs: pairs of number of workers and learning rate, by label; the rate is a number or a function of the step.
        examples: number of examples that all workers of a run see together.
        batch: examples per worker in an update.
        seeds: seeds for initial weights and order of the examples.
        data: the digits, if they are loaded already.

    Returns:
        Test accuracies with a row for each label and a column for each seed; NaN if the training diverged.

    Raises:
        ValueError: an argument is not allowed, or there are too few examples for one update of all workers.

    Example:
        >>> accuracy_by_rate({"one": (1, 0.1), "two": (2, 0.2)}, examples=64, seeds=[0]).shape
        (2, 1)
    """
    check_whole("batch", batch, 1, 10**6)
    check_some("runs", runs)
    for seed in check_some("seeds", check_list("seeds", seeds)):
        check_whole("seeds", seed, 0)
    check_whole("examples", examples, batch * max(workers for workers, _ in runs.values()), 10**9)
    data, found = data or load("digits"), {}
    for workers in dict.fromkeys(workers for workers, _ in runs.values()):  # one trace per number of workers
        steps = updates(workers, examples, batch)
        batches, rate = batches_of(data.x_train, data.y_train, batch), RateOfStep(steps)
        trainer = ModelTrainer(digits_cnn(), cross_entropy, batches, UNCOMPRESSED, rate, SimulatedWorkers(workers))
        evaluate = make_evaluator(data.x_test, data.y_test)
        for label, (_, rates) in ((label, run) for label, run in runs.items() if run[0] == workers):
            rate.set(rates)
            for number in seeds:
                trainer.reseed(number, digits_cnn(number))
                found[label, number] = last_accuracy(trainer.run(steps, evaluate=evaluate, evaluations=1))
        del trainer, evaluate
        free_memory()  # of their traces
    return pd.DataFrame([[found[label, seed] for seed in seeds] for label in runs], list(runs), list(seeds))


def last_accuracy(events) -> float:
    """Return the accuracy of the last event, an evaluation; NaN if the training diverged."""
    try:
        *_, last = events
    except TrainingDiverged:
        return np.nan
    return last.accuracy
