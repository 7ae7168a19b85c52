"""Studies: comparisons of training methods, each at its own learning rate, with several seeds. Lessons 4 to 9.

No learning rate suits all methods: signs need a far smaller one than uncompressed gradients. So each method is
first tried at several rates, the two best of them with two more seeds, and the runs that are compared use the better
one and other seeds.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from dgc_lab.common import (
    check_choice,
    check_flag,
    check_instance,
    check_list,
    check_number,
    check_some,
    check_whole,
    free_memory,
)
from dgc_lab.training.distributed_trainer import DistributedConfig
from dgc_lab.training.events import RowEnded
from dgc_lab.training.sweeps import train_each

# A study sets the learning rate and the seed of each run, except for a method with a rate of its own.
COMMON_SETTINGS = {field.name for field in dataclasses.fields(DistributedConfig)} - {"learning_rate", "seed"}
SETTINGS = COMMON_SETTINGS | {"learning_rate", "ratio"}

if TYPE_CHECKING:
    from dgc_lab.training.distributed_trainer import DistributedTrainer
    from dgc_lab.workloads.dataset import Dataset

SEARCH_SEEDS = (100, 101, 102)  # of the search for a learning rate: the first at all rates, all at the two best


def check_rate(rate):
    """Return the learning rate if a study can use it; raise ValueError otherwise."""
    return check_number("rates", rate, "above 0", finite=True)


def check_seed(seed):
    """Return the seed if a study can use it; raise ValueError otherwise, including for seeds of the search."""
    if check_whole("seeds", seed, 0, 2**31 - 1) in SEARCH_SEEDS:
        raise ValueError(f"seeds must differ from those of the search, {SEARCH_SEEDS}, got {seed}")
    return int(seed)


@dataclasses.dataclass(frozen=True)
class Study:
    """Methods to compare, and the settings that their runs share.

    Attributes:
        methods: the settings of each method, by its name: fields of
            `dgc_lab.training.DistributedConfig`, and ``ratio``, which is 1 by default. A method with a
            ``learning_rate`` of its own needs no search.
        common: settings of all methods.
        rates: learning rates to try.
        seeds: seeds of the compared runs.
        on_ranks: whether to train on Horovod ranks instead of simulated workers.

    Raises:
        ValueError: a setting is not allowed; methods, rates or seeds are empty; or a seed is also used by the search.

    Example:
        >>> study = Study({"dense": {}, "DGC": {"ratio": 0.01}}, {"steps": 100}, rates=(0.1, 0.05), seeds=(0, 1))
        >>> settings, ratio = study.run("DGC", rate=0.1, seed=0)
        >>> settings.learning_rate, ratio
        (0.1, 0.01)
    """

    methods: Mapping[str, Mapping]
    common: Mapping
    rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    on_ranks: bool = False

    def __post_init__(self):
        for setting in check_instance("common", self.common, Mapping):
            check_choice("settings of 'common'", setting, COMMON_SETTINGS)
        for method, own in check_instance("methods", check_some("methods", self.methods), Mapping).items():
            for setting in check_instance(f"methods[{method!r}]", own, Mapping):
                check_choice(f"settings of {method!r}", setting, SETTINGS)
        for name, check in {"rates": check_rate, "seeds": check_seed}.items():
            values = tuple(check(value) for value in check_some(name, check_list(name, getattr(self, name))))
            if len(set(values)) < len(values):
                raise ValueError(f"{name} must differ from each other, got {values}")
            object.__setattr__(self, name, values)
        check_flag("on_ranks", self.on_ranks)
        for method in self.methods:
            settings, ratio = self.run(method, self.rates[0], self.seeds[0])
            settings.check_ratios([ratio])

    def run(self, method: str, rate: float, seed: int) -> tuple[DistributedConfig, float]:
        """Return the settings and the ratio of one run."""
        own = {"evaluations": 1, **self.common, **self.methods[method]}
        ratio = own.pop("ratio", 1.0)
        return DistributedConfig(**{"learning_rate": rate, **own}, seed=seed), ratio

    def rates_to_try(self, method: str) -> tuple[float, ...]:
        """Return the learning rates of a method's search: none if it has its own."""
        return () if "learning_rate" in self.methods[method] else self.rates

    def row_names(self) -> list[str]:
        """Return a description of each row, in the order of `study_events`."""
        return [name for method in self.methods for name in self.row_names_of(method)]

    def row_steps(self) -> list[int]:
        """Return the number of updates of each row, in the order of `study_events`."""
        steps = {method: self.run(method, self.rates[0], self.seeds[0])[0].steps for method in self.methods}
        return [steps[method] for method in self.methods for _ in self.row_names_of(method)]

    def row_names_of(self, method: str) -> list[str]:
        """Return a description of each row of a method, as if no run diverged."""
        rates = self.rates_to_try(method)
        finals = [f"finalist {n}, seed {seed}" for n in (1, 2) * (len(rates) > 1) for seed in SEARCH_SEEDS[1:]]
        each = (*(f"rate {rate:g}" for rate in rates), *finals, *(f"seed {seed}" for seed in self.seeds))
        return [f"{method}, {name}" for name in each]


def study_events(study: Study, trainer_of: Callable, data: Dataset, out: str | os.PathLike | None = None) -> Iterator:
    """Run a study and yield events: for each method, the search for its learning rate, then the seeds.

    A method that diverges at every rate has no compared runs.

    Args:
        study: the study to run.
        trainer_of: function of the settings that returns a trainer, such as a result of `simulated`.
        data: the data set.
        out: file for finished rows; runs with a row in it are not trained again.

    Yields:
        The events of a sweep (`dgc_lab.training.sweep`), with row numbers that continue from method to method.

    Raises:
        ValueError: ``out`` is given, and a method has a scheme without a name.

    Example:
        >>> from dgc_lab.workloads import load
        >>> study, data = Study({"dense": {}}, {"steps": 2}, rates=(0.1,), seeds=(0,)), load("digits")
        >>> [event.row["seed"] for event in study_events(study, simulated(data), data) if isinstance(event, RowEnded)]
        [100, 0]
    """
    first = 0
    for method in study.methods:
        rows, total = [], len(study.row_names_of(method))
        # Fixed, because diverged runs make fewer finals, and later rows keep their names.
        stages = {search_runs: 0, final_runs: len(study.rates_to_try(method)), compared_runs: total - len(study.seeds)}
        for next_runs, offset in stages.items():
            runs = [study.run(method, rate, seed) for rate, seed in next_runs(study, method, rows)]
            for event in train_each(runs, trainer_of, data, out) if runs else ():
                if isinstance(event, RowEnded):
                    rows.append(event.row)
                yield with_offset(event, first + offset)
        first += total


def search_runs(study: Study, method: str, rows: list[dict]) -> list[tuple[float, int]]:
    """Return learning rate and seed of the first runs of a method: all rates, with one seed."""
    return [(rate, SEARCH_SEEDS[0]) for rate in study.rates_to_try(method)]


def final_runs(study: Study, method: str, rows: list[dict]) -> list[tuple[float, int]]:
    """Return learning rate and seed of the runs that decide between the two best rates; none if there is one rate."""
    if len(study.rates_to_try(method)) < 2:
        return []
    return [(rate, seed) for rate in finalists(rows) for seed in SEARCH_SEEDS[1:]]


def compared_runs(study: Study, method: str, rows: list[dict]) -> list[tuple[float, int]]:
    """Return learning rate and seed of the runs to compare; none if the method diverged at every rate."""
    rate = best_rate(rows) if study.rates_to_try(method) else study.methods[method]["learning_rate"]
    return [] if rate is None else [(rate, seed) for seed in study.seeds]


def with_offset(event, first: int):
    """Return the event with ``first`` added to its row number; return events without a row number unchanged."""
    return dataclasses.replace(event, number=event.number + first) if hasattr(event, "number") else event


def finalists(rows: list[dict]) -> list[float]:
    """Return the two learning rates with the best accuracy for the first search seed, the better one first.

    If two are equally good, the smaller rate comes first.
    """
    tried = [row for row in rows if row["seed"] == SEARCH_SEEDS[0]]
    tried.sort(key=lambda row: (-row["accuracy"], row["learning_rate"]))
    return [row["learning_rate"] for row in tried[:2]]


def best_rate(rows: list[dict]) -> float | None:
    """Return the finalist with the best mean accuracy over the search seeds; a run that diverged counts as 0.

    Returns None if all runs diverged.
    """
    sums = dict.fromkeys(finalists(rows), 0.0)
    for row in rows:
        if row["seed"] in SEARCH_SEEDS and row["learning_rate"] in sums:
            sums[row["learning_rate"]] += row["accuracy"]
    return max(sums, key=sums.get, default=None)


def simulated(data: Dataset) -> Callable[[DistributedConfig], DistributedTrainer]:
    """Return a function from settings to a trainer of simulated workers; it traces once for all seeds."""
    from dgc_lab.distributed.communicators import SimulatedWorkers
    from dgc_lab.training.distributed_trainer import DistributedTrainer

    @functools.lru_cache(maxsize=1)
    def with_seed_0(settings):
        return DistributedTrainer(settings, SimulatedWorkers(settings.workers), data)

    def trainer_of(settings):
        trainer = with_seed_0(dataclasses.replace(settings, seed=0))
        free_memory()  # of the previous trainer
        return trainer.with_seed(settings.seed)

    return trainer_of
