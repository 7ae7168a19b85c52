"""Schemes side by side: which runs lesson 8's table has, the learning rate of each scheme, and the table itself.

No learning rate suits all: signs need one fifty times smaller than whole gradients. So each scheme is first tried at
several rates, with a seed of its own, and then runs at its best one with the seeds that are compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dgc_lab.common import check_choice, check_some, results_file
from dgc_lab.training.events import RowEnded
from dgc_lab.training.sweeps import read_rows, train_each

if TYPE_CHECKING:
    import pandas as pd

SCHEMES = {
    "digits": (
        *("dense", "float16", "bfloat16", "int8", "natural", "qsgd:levels=7", "qsgd:levels=1", "terngrad"),
        *("sign", "signum", "ef_sign", "one_bit", "dense:every=8", "dense:every=8,since=100"),
        *("masking:ratio=0.01", "top_k:ratio=0.01", "random_k:ratio=0.01", "random_k:ratio=0.02"),
        *("threshold:limit=0.01", "dgc:ratio=0.001", "dgc:ratio=0.01", "dgc:ratio=0.02"),
        *("dgc:ratio=0.04", "powersgd:rank=1", "powersgd:rank=2", "powersgd:rank=4"),
    ),
    "mnist": (
        *("dense", "qsgd:levels=7", "terngrad", "ef_sign", "top_k:ratio=0.001", "random_k:ratio=0.001"),
        *("dgc:ratio=0.001", "powersgd:rank=1", "powersgd:rank=2", "powersgd:rank=4"),
    ),
}
WORKERS = {"digits": 4, "mnist": 2}  # simulated ones; Horovod ranks
STEPS = {"digits": 300, "mnist": 200}
BATCH = {"digits": 16, "mnist": 32}  # of each worker
RATES = {"digits": (0.2, 0.1, 0.05, 0.02, 0.005, 0.001), "mnist": (0.1, 0.05, 0.02, 0.005)}
SEEDS = (0, 1, 2)
SEARCH_SEED = 100


def settings_of(dataset: str, scheme, learning_rate: float, seed: int):
    """The run of a table, as `dgc_lab.training.distributed_trainer.DistributedConfig`."""
    from dgc_lab.training.distributed_trainer import DistributedConfig

    check_choice("dataset", dataset, SCHEMES)
    return DistributedConfig(
        dataset=dataset,
        workers=WORKERS[dataset],
        steps=STEPS[dataset],
        batch=BATCH[dataset],
        learning_rate=learning_rate,
        scheme=scheme,
        seed=seed,
        evaluations=1,
    )


@contextlib.contextmanager
def trainers(dataset: str, data, path=None):
    """A function of the settings to who trains with them: simulated workers on digits, two ranks on MNIST."""
    from dgc_lab.distributed.communicators import SimulatedWorkers
    from dgc_lab.training.distributed_trainer import DistributedTrainer, TrainerOnRanks

    if dataset == "digits":
        yield lambda settings: DistributedTrainer(settings, SimulatedWorkers(settings.workers), data)
        return
    from dgc_lab.cluster import HorovodRanks

    with HorovodRanks(WORKERS[dataset]) as ranks:
        yield lambda settings: TrainerOnRanks(settings, ranks, data, path)


def table_events(dataset: str, trainer_of, data, out: str | os.PathLike | None = None, schemes=None) -> Iterator:
    """Make a data set's table: for each scheme the search for its rate, then the seeds.

    Yields what `dgc_lab.training.sweeps.train_each` does, numbered through, of schemes after one another; ``schemes``
    are those of the table if None, and ``trainer_of`` and ``out`` are as there.
    """
    rates = RATES[dataset]
    first = itertools.count(step=len(rates) + len(SEEDS))
    for scheme in schemes or SCHEMES[dataset]:
        number, tried = next(first), []
        search = [(settings_of(dataset, scheme, rate, SEARCH_SEED), 1.0) for rate in rates]
        for event in train_each(search, trainer_of, data, out):
            tried += [event.row] if isinstance(event, RowEnded) else []
            yield numbered(event, number)
        for rate in best_rates(tried).values():  # none where all diverged
            compared = [(settings_of(dataset, scheme, rate, seed), 1.0) for seed in SEEDS]
            for event in train_each(compared, trainer_of, data, out):
                yield numbered(event, number + len(rates))


def numbered(event, first: int):
    """The event of a row, counted from ``first`` on; those within a row as they are."""
    return dataclasses.replace(event, number=event.number + first) if hasattr(event, "number") else event


def row_names(dataset: str) -> list[str]:
    """What each row of the table is, in the order in which they are made."""
    of_each = [*(f"rate {rate:g}" for rate in RATES[dataset]), *(f"seed {seed}" for seed in SEEDS)]
    return [f"{scheme}, {each}" for scheme in SCHEMES[dataset] for each in of_each]


def best_rates(rows: list[dict]) -> dict[str, float]:
    """The learning rate of each scheme that did best in the search for it; of two as good, the smaller one."""
    best = {}
    for row in rows:
        if row["seed"] == SEARCH_SEED:
            key = row["accuracy"], -row["learning_rate"]
            best[row["scheme"]] = max(best.get(row["scheme"], (-1, 0)), key)
    return {scheme: -rate for scheme, (_, rate) in best.items()}


def scheme_rows(dataset: str = "digits") -> list[dict]:
    """The rows as they were made for this lab, from ``results/schemes.jsonl``, those of the searches among them.

    ``dataset`` is ``"digits"`` or ``"mnist"``; a ValueError for another one.

    Example:
        >>> {row["workers"] for row in scheme_rows("digits")}
        {4}
    """
    return read_rows(results_file("schemes.jsonl"), {"dataset": check_choice("dataset", dataset, SCHEMES)})


def scheme_table(rows: list[dict]) -> pd.DataFrame:
    """A line for each scheme, most bytes first: mean, least and greatest accuracy of its seeds, kB and ms a step.

    ``rows`` are such as `scheme_rows` gives; those of a search for a learning rate are left out. kB are those that a
    worker hands to the collectives; ms those of the quickest run, which least else on the machine has slowed down.
    Empty where a search is all there is; a ValueError for no rows, and for rows of two data sets.

    Example:
        >>> scheme_table(scheme_rows("digits"))["scheme"][0]
        'dense'
    """
    import pandas as pd

    if len(sets := {row["dataset"] for row in check_some("rows", rows)}) > 1:
        raise ValueError(f"rows must be of one data set, got {', '.join(sorted(sets))}")
    told = ["scheme", "learning_rate", "accuracy", "bytes a step", "seconds", "steps"]
    made = pd.DataFrame([row for row in rows if row["seed"] != SEARCH_SEED], columns=told)
    made["kB a step"] = made["bytes a step"] / 1000
    made["ms a step"] = 1000 * made["seconds"] / made["steps"]
    by = made.groupby("scheme", sort=False)
    frame = pd.DataFrame(
        {
            "learning rate": by["learning_rate"].first(),
            "accuracy": by["accuracy"].mean(),
            "least": by["accuracy"].min(),
            "greatest": by["accuracy"].max(),
            "seeds": by.size(),
            "kB a step": by["kB a step"].mean(),
            "ms a step": by["ms a step"].min(),
        }
    )
    return frame.sort_values("kB a step", ascending=False).reset_index()


def rate_of(scheme: str, dataset: str) -> float:
    """A learning rate to begin with: of the same scheme in the lab's table, else of its kind's first, else 0.05.

    Fashion-MNIST and CIFAR-10 begin with MNIST's: their networks have its build.

    Example:
        >>> rate_of("sign", "digits") < rate_of("dense", "digits")
        True
    """
    rates = best_rates(scheme_rows("digits" if dataset == "digits" else "mnist"))
    alike = [rate for name, rate in rates.items() if name.partition(":")[0] == scheme.partition(":")[0]]
    return rates.get(scheme, alike[0] if alike else 0.05)
