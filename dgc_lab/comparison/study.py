"""Studies: comparisons of training methods on simulated workers, each method at its own learning rate, with several seeds.

No learning rate suits all methods: signs need one fifty times smaller than uncompressed gradients. So each method is
first tried at several rates with a separate seed, and the runs that are compared use its best rate and other seeds.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from dgc_lab.common import check_some, free_memory
from dgc_lab.training.events import RowEnded
from dgc_lab.training.sweeps import row_matches, train_each

if TYPE_CHECKING:
    import pandas as pd

    from dgc_lab.training.distributed_trainer import DistributedConfig, DistributedTrainer
    from dgc_lab.workloads.dataset import Dataset

COLUMNS = ["learning rate", "accuracy", "least", "greatest", "seeds", "kB a step", "ms a step"]
SEARCH_SEED = 100  # of the runs that search for a learning rate; no compared run has it


@dataclasses.dataclass(frozen=True)
class Study:
    """Methods to compare, and what their runs have in common.

    Attributes:
        methods: for each method's name the settings in which it differs: fields of
            `dgc_lab.training.DistributedConfig`, and ``ratio``, which is 1 by default.
        common: settings of all methods.
        rates: learning rates to try.
        seeds: seeds of the compared runs.

    Raises:
        ValueError: a setting is not allowed, or there are no methods, rates or seeds.

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

    def __post_init__(self):
        for name in ("methods", "rates", "seeds"):
            check_some(name, getattr(self, name))
        for method in self.methods:
            self.run(method, self.rates[0], self.seeds[0])

    def run(self, method: str, rate: float, seed: int) -> tuple[DistributedConfig, float]:
        """Return the settings and the ratio of one run."""
        from dgc_lab.training.distributed_trainer import DistributedConfig

        own = {"evaluations": 1, **self.common, **self.methods[method]}
        ratio = own.pop("ratio", 1.0)
        return DistributedConfig(**own, learning_rate=rate, seed=seed), ratio

    def row_names(self) -> list[str]:
        """Return a description of each row, in the order of `study_events`."""
        of_each = [*(f"rate {rate:g}" for rate in self.rates), *(f"seed {seed}" for seed in self.seeds)]
        return [f"{method}, {each}" for method in self.methods for each in of_each]


def study_events(study: Study, trainer_of: Callable, data: Dataset, out: str | os.PathLike | None = None) -> Iterator:
    """Run a study and yield events: for each method, the search for its learning rate, then the seeds.

    The events are those of `dgc_lab.training.sweeps.train_each`, with row numbers that continue from method to method.
    ``trainer_of`` and ``out`` are the same as there. A method that diverges at every rate has no compared runs.
    """
    first = itertools.count(step=len(study.rates) + len(study.seeds))
    for method in study.methods:
        number, tried = next(first), []
        search = [study.run(method, rate, SEARCH_SEED) for rate in study.rates]
        for event in train_each(search, trainer_of, data, out):
            tried += [event.row] if isinstance(event, RowEnded) else []
            yield with_offset(event, number)
        if tried:
            compared = [study.run(method, best_rate(tried), seed) for seed in study.seeds]
            for event in train_each(compared, trainer_of, data, out):
                yield with_offset(event, number + len(study.rates))


def with_offset(event, first: int):
    """Return the event with ``first`` added to its row number; events within a row have none and stay the same."""
    return dataclasses.replace(event, number=event.number + first) if hasattr(event, "number") else event


def best_rate(rows: Iterable[dict]) -> float:
    """Return the learning rate of the row with the best accuracy; of equally good ones, the smallest rate."""
    return max(rows, key=lambda row: (row["accuracy"], -row["learning_rate"]))["learning_rate"]


def simulated(data: Dataset) -> Callable[[DistributedConfig], DistributedTrainer]:
    """Return a function from settings to a trainer of simulated workers; it traces once for all seeds."""
    from dgc_lab.distributed.communicators import SimulatedWorkers
    from dgc_lab.training.distributed_trainer import DistributedTrainer

    @functools.lru_cache(maxsize=1)
    def with_seed_0(settings):
        free_memory()  # of the previous trainer
        return DistributedTrainer(settings, SimulatedWorkers(settings.workers), data)

    return lambda settings: with_seed_0(dataclasses.replace(settings, seed=0)).with_seed(settings.seed)


def rows_by_method(study: Study, rows: list[dict]) -> dict[str, list[dict]]:
    """Return the rows of the compared runs of each method: those at its best rate, with the study's seeds.

    ``rows`` may have rows of other studies, too. Methods without rows are left out.
    """
    found = {}
    for method in study.methods:
        settings, ratio = study.run(method, study.rates[0], SEARCH_SEED)
        same = {**settings.facts(), "ratio": ratio}
        free = ("learning_rate", "seed")
        own = [row for row in rows if row_matches(row, {key: same[key] for key in same if key not in free})]
        tried = [row for row in own if row["seed"] == SEARCH_SEED and row["learning_rate"] in study.rates]
        rate = best_rate(tried) if tried else None
        if compared := [row for row in own if row["seed"] in study.seeds and row["learning_rate"] == rate]:
            found[method] = compared
    return found


def study_table(study: Study, rows: list[dict]) -> pd.DataFrame:
    """Return a row for each method, most bytes first: its rate, accuracy over the seeds, kB and ms a step.

    Columns: ``learning rate``; ``accuracy``, the mean of the seeds, with the ``least`` and the ``greatest``; ``seeds``;
    ``kB a step``, a worker's payload averaged over the whole run, warm-up included; and ``ms a step`` of the fastest
    run, which other load on the machine slowed down least.

    Example:
        >>> study = Study({"dense": {}}, {"steps": 100}, rates=(0.1,), seeds=(0, 1))
        >>> study_table(study, []).empty
        True
    """
    import pandas as pd

    table = {}
    for method, own in rows_by_method(study, rows).items():
        accuracies = [row["accuracy"] for row in own]
        table[method] = {
            "learning rate": own[0]["learning_rate"],
            "accuracy": sum(accuracies) / len(own),
            "least": min(accuracies),
            "greatest": max(accuracies),
            "seeds": len(own),
            "kB a step": sum(row["bytes a step"] for row in own) / len(own) / 1000,
            "ms a step": min(1000 * row["seconds"] / row["steps"] for row in own),
        }
    frame = pd.DataFrame.from_dict(table, orient="index", columns=COLUMNS)
    return frame.sort_values("kB a step", ascending=False, kind="stable")
