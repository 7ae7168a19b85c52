"""Studies of lesson 3: ways of training on simulated schedules, each at its own learning rate, with several seeds.

Each way first trains at all rates with the search seeds. The runs to compare use the best of these rates and other
seeds. ``python tools/make_table.py modes`` trains all studies; the rows are stored in ``results/modes.jsonl``.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from dgc_lab.common import check_choice, check_file, check_whole, read_text, rows_of_results
from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.events import Training
from dgc_lab.parameter_server.metrics import seconds_to, stalenesses
from dgc_lab.parameter_server.replaying import replay
from dgc_lab.parameter_server.schedule import Schedule, Straggler
from dgc_lab.parameter_server.simulation import StepCosts, simulate
from dgc_lab.parameter_server.tasks import Classifier
from dgc_lab.workloads.data import load
from dgc_lab.workloads.dataset import Task
from dgc_lab.workloads.gan import RingGAN
from dgc_lab.workloads.models import mnist1d_cnn

SEARCH_SEEDS = (100, 101, 102)  # of the search for a learning rate
SEEDS = (0, 1, 2, 3, 4)  # of the runs to compare
TARGET = 0.8  # test accuracy


@dataclass(frozen=True)
class ModeStudy:
    """Definition of a study: the ways to train that it compares, and how it trains and scores.

    A way to train is a number of workers and settings, to which each run adds its learning rate and seed. ``outcome``
    gives a training run's scores, of which the search minimizes ``objective``; None is the worst value.
    """

    ways: dict[str, tuple[int, AsyncConfig]]
    rates: tuple[float, ...]
    costs: StepCosts
    task: Callable[[int], Task]  # by seed
    outcome: Callable[[Training], dict[str, float | None]]
    objective: str

    def settings(self, way: str) -> str:
        """Return the settings of a way as text, by which its stored rows are found."""
        workers, config = self.ways[way]
        return f"{workers} workers, {config}, {self.costs}"

    def train(self, way: str, rate: float, seed: int) -> Training:
        """Simulate the order of events, and train in that order."""
        workers, config = self.ways[way]
        order = simulate(config.schedule, workers, config.gradients, self.costs, seed)
        return replay(self.task(seed), replace(config, learning_rate=rate, seed=seed), order)


def study_rows(name: str, rows: list[dict]) -> Iterator[dict]:
    """Yield all rows of a study, the search first for each way; train those that are not among ``rows``."""
    study = MODE_STUDIES[name]
    for way in study.ways:
        known = {(row["learning_rate"], row["seed"]): row for row in rows_of(name, way, rows)}
        tried = []
        for rate, seed in itertools.product(study.rates, SEARCH_SEEDS):
            tried.append(known.get((rate, seed)) or train_row(name, way, rate, seed))
            yield tried[-1]
        best = best_rate(study, tried)
        for seed in SEEDS:
            yield known.get((best, seed)) or train_row(name, way, best, seed)


def rows_of(name: str, way: str, rows: list[dict]) -> list[dict]:
    """Return the rows of one way to train that have its present settings."""
    own = {"study": name, "way": way, "settings": MODE_STUDIES[name].settings(way)}
    return [row for row in rows if row.items() >= own.items()]


def train_row(name: str, way: str, rate: float, seed: int) -> dict:
    """Train once and return the row."""
    study = MODE_STUDIES[name]
    training = study.train(way, rate, seed)
    return {
        "study": name,
        "way": way,
        "learning_rate": rate,
        "seed": seed,
        "updates": training.end.version,
        "mean staleness": round(float(np.mean(stalenesses(training.records))), 4),
        "seconds": round(training.scores[-1].seconds, 3),
        **study.outcome(training),
        "settings": study.settings(way),
    }


def best_rate(study: ModeStudy, tried: list[dict]) -> float:
    """Return the rate whose mean objective over the search seeds is smallest."""
    values = {rate: [row[study.objective] for row in tried if row["learning_rate"] == rate] for rate in study.rates}
    return min(values, key=lambda rate: sum(math.inf if value is None else value for value in values[rate]))


def rows_in(file: str | os.PathLike) -> list[dict]:
    """Return the rows of a file, none if it does not exist."""
    path = check_file("file", file)
    return [json.loads(line) for line in read_text(path).splitlines()] if path.exists() else []


def stored_modes(name: str) -> pd.DataFrame:
    """Return the stored runs to compare of a study of training modes: a row for each way to train and each seed.

    Args:
        name: ``"time to accuracy"``, ``"staleness"`` or ``"GAN"``.

    Returns:
        Columns: ``way``, its best ``learning_rate``, ``seed``, ``updates``, ``mean staleness``, simulated ``seconds``,
        and the study's scores.

    Raises:
        ValueError: there is no such study.

    Example:
        >>> sorted(set(stored_modes("GAN")["seed"]))
        [0, 1, 2, 3, 4]
    """
    return _stored(name, SEEDS)


def stored_mode_search(name: str, score: str) -> pd.DataFrame:
    """Return a score of the stored search: a row for each way to train, a column for each learning rate.

    The values are means over the three seeds of the search, NaN if a run has no value, such as one that never reached
    the target or diverged.

    Args:
        name: as in `stored_modes`.
        score: one of the study's scores, which are the last columns of `stored_modes`.

    Raises:
        ValueError: there is no such study or score.

    Example:
        >>> round(float(stored_mode_search("GAN", "energy distance").loc["synchronous, 2 workers", 0.1]), 3)
        0.014
    """
    tried, study = _stored(name, SEARCH_SEEDS), MODE_STUDIES[name]
    check_choice("score", score, list(tried.columns)[list(tried.columns).index("seconds") + 1 :])
    means = tried.groupby(["way", "learning_rate"], sort=False)[score].agg(lambda each: each.mean(skipna=False))
    return means.unstack().loc[list(study.ways)]


def _stored(name: str, seeds: tuple[int, ...]) -> pd.DataFrame:
    rows = rows_of_results("modes.jsonl")
    own = [
        row for way in MODE_STUDIES[check_choice("name", name, MODE_STUDIES)].ways for row in rows_of(name, way, rows)
    ]
    return pd.DataFrame([row for row in own if row["seed"] in seeds]).drop(columns=["study", "settings"])


def train_in_study(name: str, way: str, seed: int = 0) -> Training:
    """Train as a study does, at the best stored learning rate, and return the events.

    Args:
        name: as in `stored_modes`.
        way: one of the ways to train.
        seed: of the initial weights, the batches and the computing times; from 0 to 2**20.

    Raises:
        ValueError: there is no such study or way, or the seed is not a whole number in this range.

    Example:
        >>> len(train_in_study("GAN", "asynchronous, 2 workers").records)  # doctest: +SKIP
        2000
    """
    study = MODE_STUDIES[check_choice("name", name, MODE_STUDIES)]
    check_choice("way", way, study.ways)
    check_whole("seed", seed, 0, 2**20)
    compared = stored_modes(name)
    return study.train(way, float(compared.loc[compared["way"] == way, "learning_rate"].iloc[0]), seed)


@functools.lru_cache(maxsize=8)  # the seeds of one study, so that each network is traced once for all rates
def signals(seed: int) -> Task:
    """Return the task to classify MNIST-1D's signals."""
    return Classifier(functools.partial(mnist1d_cnn, seed), load("mnist1d"))


@functools.lru_cache(maxsize=8)
def ring(seed: int) -> Task:
    """Return the task of the GAN."""
    return RingGAN(seed=seed)


def accuracy_outcome(training: Training) -> dict:
    """Return the seconds and gradients until the target, and the error at the end."""
    seconds = seconds_to(training.scores, "accuracy", TARGET)
    end = training.scores[-1].values["accuracy"]
    return {"seconds to target": None if math.isinf(seconds) else round(seconds, 3), "error": round(1 - end, 4)}


def gan_outcome(training: Training) -> dict:
    """Return the mean of the last five scores, since a GAN's quality swings from one to the next."""
    last = pd.DataFrame([score.values for score in training.scores[-5:]]).mean()
    return {name: round(value, 4) if math.isfinite(value) else None for name, value in last.items()}


def slow(times: float) -> tuple[Straggler, ...]:
    """Return worker 1 as a straggler that computes for this many times as long as the others."""
    return (Straggler(1, slowdown=times),)


def ways(settings: dict[str, tuple[int, dict]], **common) -> dict[str, tuple[int, AsyncConfig]]:
    """Return ways to train: for each, the number of workers and the settings in which it differs from ``common``."""
    return {name: (workers, AsyncConfig(**{**common, **own})) for name, (workers, own) in settings.items()}


SYNCHRONOUS, ASYNCHRONOUS = Schedule("synchronous"), Schedule("asynchronous")
SPREAD = tuple(round(0.5 + step / 10, 1) for step in range(11))  # each gradient takes 0.5 to 1.5 units of time
#: Studies of training modes, by name.
MODE_STUDIES = {
    # Costs like those that section 2 measures on two cores.
    "time to accuracy": ModeStudy(
        ways(
            {
                "synchronous, worker 1 slow": (2, {"schedule": replace(SYNCHRONOUS, stragglers=slow(5))}),
                "asynchronous, worker 1 slow": (2, {"schedule": replace(ASYNCHRONOUS, stragglers=slow(5))}),
                "worker 0 alone": (1, {"schedule": ASYNCHRONOUS}),
                "synchronous, equally fast": (2, {"schedule": SYNCHRONOUS}),
                "asynchronous, equally fast": (2, {"schedule": ASYNCHRONOUS}),
            },
            gradients=1200,
            score_every=60,
        ),
        rates=(0.05, 0.1, 0.2, 0.4, 0.8),
        costs=StepCosts(tuple(round(0.04 * each, 3) for each in SPREAD), 0.005, 0.008, 0.02),
        task=signals,
        outcome=accuracy_outcome,
        objective="seconds to target",
    ),
    "staleness": ModeStudy(
        ways(
            {
                f"{name}{with_momentum}{aware}": (workers, {"momentum": momentum, "staleness_aware": bool(aware)})
                for with_momentum, momentum in (("", 0.0), (", momentum 0.9", 0.9))
                for name, workers in (("1 worker", 1), ("4 workers", 4))
                for aware in ("", ", staleness-aware")[: 1 + (workers > 1 and not momentum)]
            },
            schedule=ASYNCHRONOUS,
            gradients=500,
            score_every=500,
        ),
        rates=(0.00125, 0.0025, 0.005, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8),
        costs=StepCosts(SPREAD),
        task=signals,
        outcome=accuracy_outcome,
        objective="error",
    ),
    "GAN": ModeStudy(
        ways(
            {
                "synchronous, 2 workers": (2, {"schedule": replace(SYNCHRONOUS, stragglers=slow(3))}),
                "asynchronous, 2 workers": (2, {"schedule": replace(ASYNCHRONOUS, stragglers=slow(3))}),
                # As many gradients as in the time that the synchronous run of these workers takes.
                "asynchronous, 2 workers, same time": (
                    2,
                    {"schedule": replace(ASYNCHRONOUS, stragglers=slow(3)), "gradients": 4000},
                ),
                "worker 0 alone, same time": (1, {"schedule": ASYNCHRONOUS, "gradients": 3000}),
                "synchronous, 4 workers": (4, {"schedule": SYNCHRONOUS}),
                "asynchronous, 4 workers": (4, {"schedule": ASYNCHRONOUS}),
                "asynchronous, 4 workers, same time": (4, {"schedule": ASYNCHRONOUS, "gradients": 2650}),
            },
            gradients=2000,
        ),
        rates=(0.0125, 0.025, 0.05, 0.1, 0.2, 0.4),
        costs=StepCosts(SPREAD),
        task=ring,
        outcome=gan_outcome,
        objective="energy distance",
    ),
}
