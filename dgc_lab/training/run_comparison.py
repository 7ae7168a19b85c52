"""Runs of `dgc_lab.training.ModelTrainer`: watched by a bar while they train, then side by side in a table.

Lesson 7.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from dgc_lab.common import check_text, check_whole, free_memory
from dgc_lab.training.events import DistributedStep, Evaluation


def run_with_progress(run: Iterable, steps: int, label: str = "") -> list:
    """A run's events as a list, with a progress bar, behind ``label``, while it trains.

    ``run`` is what `dgc_lab.training.model_trainer.ModelTrainer.run` gives, ``steps`` how many updates it will make.

    Raises:
        ValueError: ``steps`` is not a whole number of at least 0, or ``label`` is not text.

    Example:
        >>> from dgc_lab.training import DistributedConfig, DistributedTrainer
        >>> trainer = DistributedTrainer(DistributedConfig(steps=4, evaluations=2, workers=1))
        >>> [type(event).__name__ for event in run_with_progress(trainer.run(ratio=0.01), steps=4)]
        ['DistributedStep', 'DistributedStep', 'Evaluation', 'DistributedStep', 'DistributedStep', 'Evaluation']
    """
    from tqdm.auto import tqdm

    check_whole("steps", steps, 0)
    check_text("label", label)
    events = []
    with tqdm(total=steps, desc=label, unit="step", leave=False) as bar:
        for event in run:
            events.append(event)
            bar.update(isinstance(event, DistributedStep))
    free_memory()  # the trainer and its traces
    return events


def steps_of(events: Iterable) -> list[DistributedStep]:
    """The updates among a run's ``events``.

    Example:
        >>> steps_of([Evaluation(step=10, accuracy=0.9, loss=0.3)])
        []
    """
    return [event for event in events if isinstance(event, DistributedStep)]


def evaluations_of(events) -> list[Evaluation]:
    """The evaluations among a run's events."""
    return [event for event in events if isinstance(event, Evaluation)]


def comparison(runs: dict) -> pd.DataFrame:
    """One row per run: what it is worth at the end, and how many bytes a worker sent in a step.

    Args:
        runs: by label, a finished run's events, with an evaluation at the end.

    Returns:
        Columns ``accuracy``, ``test loss`` (after the last step), ``kB a step`` (mean over all steps, warm-up
        included), ``kB a step at the end`` (of the last one), and ``times fewer at the end`` than the whole gradient.

    Raises:
        ValueError: there are no runs, or one was not evaluated.

    Example:
        >>> step = DistributedStep(1, 2.3, np.array([0.01]), 0.01, 0.1, bytes_sent=400, dense_bytes=40_000)
        >>> comparison({"DGC": [step, Evaluation(1, 0.4, 2.1)]})["times fewer at the end"].to_dict()
        {'DGC': 100.0}
    """
    check_runs(runs)
    rows = {}
    for label, events in runs.items():
        steps, last = steps_of(events), evaluations_of(events)[-1]
        rows[label] = {
            "accuracy": last.accuracy,
            "test loss": last.loss,
            "kB a step": np.mean([step.bytes_sent for step in steps]) / 1000,
            "kB a step at the end": steps[-1].bytes_sent / 1000,
            "times fewer at the end": steps[-1].dense_bytes / steps[-1].bytes_sent,
        }
    return pd.DataFrame(rows).T


def spread(figures: dict) -> pd.DataFrame:
    """Mean, least and most of each label's figures, one of each seed: what a difference between labels is held against.

    Example:
        >>> spread({"dense": [0.97, 0.98, 0.96]}).round(3).values.tolist()
        [[0.97, 0.96, 0.98]]
    """
    told = {label: {"mean": np.mean(own), "least": min(own), "most": max(own)} for label, own in figures.items()}
    return pd.DataFrame(told).T


def check_runs(runs: dict) -> None:
    """A ValueError unless there are runs, each with updates and an evaluation."""
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    for label, events in runs.items():
        if not steps_of(events) or not evaluations_of(events):
            raise ValueError(f"runs must have been evaluated: pass evaluate= to run() of {label!r}")
