"""The learning rate when workers are added: the same examples in all, so fewer updates the more they are. Lesson 7."""

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

# Whole gradients with momentum. That each tensor goes whole spares the search for thresholds that let all pass.
WHOLE = DGCConfig(ratio=1.0, momentum=0.9, dense_below=2**31)


class RateOfStep(keras.optimizers.schedules.LearningRateSchedule):
    """The rate of each step by a list that can be changed, without tracing the training anew."""

    def __init__(self, steps: int):
        self.rates = tf.Variable(tf.zeros([steps]), trainable=False)

    def set(self, rate) -> None:
        """Take the rates of a number or of a function of the step, such as another schedule."""
        steps = range(self.rates.shape[0])
        self.rates.assign([float(rate(step) if callable(rate) else rate) for step in steps])

    def __call__(self, step):
        return self.rates[step]


def updates(workers: int, examples: int, batch: int = 16) -> int:
    """How many updates N workers make of so many examples, ``batch`` of them each.

    A ValueError for fewer than one of any.

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
    """Train `dgc_lab.workloads.digits_cnn` on whole gradients with momentum, by simulated workers.

    Args:
        runs: by label, the number of workers, and the learning rate: a number or a function of the step.
        examples: that all workers of a run see together.
        batch: examples of one worker in an update.
        seeds: for first weights and order of the examples.
        data: the digits, when they are loaded already.

    Returns:
        Test accuracies: a row for each label, a column for each seed; NaN where the training diverged.

    Raises:
        ValueError: batch is below 1, or examples are too few for an update of all workers.

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
    for workers in dict.fromkeys(workers for workers, _ in runs.values()):  # one trace for each number of workers
        steps = updates(workers, examples, batch)
        batches, rate = batches_of(data.x_train, data.y_train, batch), RateOfStep(steps)
        trainer = ModelTrainer(digits_cnn(), cross_entropy, batches, WHOLE, rate, SimulatedWorkers(workers))
        evaluate = make_evaluator(data.x_test, data.y_test)
        for label, (_, rates) in ((label, run) for label, run in runs.items() if run[0] == workers):
            rate.set(rates)
            for number in seeds:
                trainer.reseed(number, digits_cnn(number))
                found[label, number] = last_accuracy(trainer.run(steps, evaluate=evaluate, evaluations=1))
        del trainer, evaluate
        free_memory()  # their traces
    return pd.DataFrame([[found[label, seed] for seed in seeds] for label in runs], list(runs), list(seeds))


def last_accuracy(events) -> float:
    """Accuracy by the evaluation that ends a training's events; NaN where it diverged."""
    try:
        *_, last = events
    except TrainingDiverged:
        return np.nan
    return last.accuracy
