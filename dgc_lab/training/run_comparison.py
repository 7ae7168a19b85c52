"""Lesson 7: a progress bar for runs of `dgc_lab.training.ModelTrainer`, and a table that compares them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from dgc_lab.common import check_instance, check_some, check_text, check_whole, free_memory
from dgc_lab.training.events import DistributedStep, Evaluation
from dgc_lab.training.progress import SweepProgress


def run_with_progress(run: Iterable, steps: int, label: str = "") -> list:
    """Train with a progress bar that shows ``label``, and return all events.

    ``run`` is the generator that `dgc_lab.training.ModelTrainer.run` returns, ``steps`` its number of updates.

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
    events, progress = [], SweepProgress([label], [steps])
    with tqdm(total=progress.total, desc=label, unit="step", leave=False) as bar:
        for event in run:
            events.append(event)
            progress.take(event)
            bar.update(progress.done - bar.n)
    free_memory()  # of the trainer and its traces
    return events


def steps_of(events: Iterable) -> list[DistributedStep]:
    """Return the updates among a run's ``events``.

    Example:
        >>> steps_of([Evaluation(step=10, accuracy=0.9, loss=0.3)])
        []
    """
    return [event for event in events if isinstance(event, DistributedStep)]


def evaluations_of(events) -> list[Evaluation]:
    """Return the evaluations among a run's events."""
    return [event for event in events if isinstance(event, Evaluation)]


def comparison(runs: dict) -> pd.DataFrame:
    """Compare the final accuracy and loss of runs, and the bytes that a worker sent per step.

    Args:
        runs: the events of each finished run, by label, with an evaluation at the end.

    Returns:
        Columns ``accuracy`` and ``test loss`` (after the last step), ``kB per step`` (mean over all steps, including
        warm-up), ``kB per step at the end`` (last step), and ``times fewer at the end`` (than the dense gradient).

    Raises:
        ValueError: `runs` is not a dict, there are no runs, or a run has no updates or no evaluation.

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
            "kB per step": np.mean([step.bytes_sent for step in steps]) / 1000,
            "kB per step at the end": steps[-1].bytes_sent / 1000,
            "times fewer at the end": steps[-1].dense_bytes / steps[-1].bytes_sent,
        }
    return pd.DataFrame(rows).T


def spread(figures: dict) -> pd.DataFrame:
    """Return mean, minimum and maximum of each label's figures, one per seed, to judge differences between labels.

    Raises ValueError if ``figures`` is not a dict, or if it or one of its members is empty.

    Example:
        >>> spread({"dense": [0.97, 0.98, 0.96]}).round(3).values.tolist()
        [[0.97, 0.96, 0.98]]
    """
    table = {}
    for label, own in check_some("figures", check_instance("figures", figures, dict)).items():
        check_some(f"figures[{label!r}]", own)
        table[label] = {"mean": np.mean(own), "min": min(own), "max": max(own)}
    return pd.DataFrame(table).T


def check_runs(runs: dict) -> None:
    """Raise ValueError unless ``runs`` is a dict with runs, each with updates and an evaluation."""
    for label, events in check_some("runs", check_instance("runs", runs, dict)).items():
        if not steps_of(events) or not evaluations_of(events):
            raise ValueError(f"runs must have updates and an evaluation: pass evaluate= to run() of {label!r}")
