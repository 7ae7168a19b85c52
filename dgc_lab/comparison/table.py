"""Lesson 8's comparison of schemes: its runs, the learning rate of each scheme, and the table.

No learning rate suits all schemes: signs need one fifty times smaller than uncompressed gradients. A search therefore
tries each scheme at several rates, with a separate seed. The scheme then runs at its best rate with the seeds of the
comparison.
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
WORKERS = {"digits": 4, "mnist": 2}  # simulated for digits, Horovod ranks for MNIST
STEPS = {"digits": 300, "mnist": 200}
BATCH = {"digits": 16, "mnist": 32}  # per worker
RATES = {"digits": (0.2, 0.1, 0.05, 0.02, 0.005, 0.001), "mnist": (0.1, 0.05, 0.02, 0.005)}
SEEDS = (0, 1, 2)
SEARCH_SEED = 100


def run_settings(dataset: str, scheme, learning_rate: float, seed: int):
    """Return a run's settings, a `dgc_lab.training.distributed_trainer.DistributedConfig`."""
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
    """Yield a function that makes a trainer from settings: simulated workers for digits, two ranks for MNIST."""
    from dgc_lab.distributed.communicators import SimulatedWorkers
    from dgc_lab.training.distributed_trainer import DistributedTrainer, TrainerOnRanks

    if dataset == "digits":
        yield lambda settings: DistributedTrainer(settings, SimulatedWorkers(settings.workers), data)
        return
    from dgc_lab.cluster import HorovodRanks

    with HorovodRanks(WORKERS[dataset]) as ranks:
        yield lambda settings: TrainerOnRanks(settings, ranks, data, path)


def table_events(dataset: str, trainer_of, data, out: str | os.PathLike | None = None, schemes=None) -> Iterator:
    """Compute a data set's table and yield events: for each scheme, the search for its rate, then the seeds.

    The events are those of `dgc_lab.training.sweeps.train_each`, with row numbers that continue from scheme to scheme.
    ``trainer_of`` and ``out`` are the same as there. If ``schemes`` is None, all schemes of the table run.
    """
    rates = RATES[dataset]
    first = itertools.count(step=len(rates) + len(SEEDS))
    for scheme in schemes or SCHEMES[dataset]:
        number, tried = next(first), []
        search = [(run_settings(dataset, scheme, rate, SEARCH_SEED), 1.0) for rate in rates]
        for event in train_each(search, trainer_of, data, out):
            tried += [event.row] if isinstance(event, RowEnded) else []
            yield with_offset(event, number)
        for rate in best_rates(tried).values():  # empty if all runs diverged
            compared = [(run_settings(dataset, scheme, rate, seed), 1.0) for seed in SEEDS]
            for event in train_each(compared, trainer_of, data, out):
                yield with_offset(event, number + len(rates))


def with_offset(event, first: int):
    """Return the event with ``first`` added to its row number; events within a row have none and stay the same."""
    return dataclasses.replace(event, number=event.number + first) if hasattr(event, "number") else event


def row_names(dataset: str) -> list[str]:
    """Return a description of each row of the table, in the order of computation."""
    of_each = [*(f"rate {rate:g}" for rate in RATES[dataset]), *(f"seed {seed}" for seed in SEEDS)]
    return [f"{scheme}, {each}" for scheme in SCHEMES[dataset] for each in of_each]


def best_rates(rows: list[dict]) -> dict[str, float]:
    """Return the learning rate with the best accuracy in each scheme's search; of equal ones, the smaller rate."""
    best = {}
    for row in rows:
        if row["seed"] == SEARCH_SEED:
            key = row["accuracy"], -row["learning_rate"]
            best[row["scheme"]] = max(best.get(row["scheme"], (-1, 0)), key)
    return {scheme: -rate for scheme, (_, rate) in best.items()}


def scheme_rows(dataset: str = "digits") -> list[dict]:
    """Return the lab's stored rows from ``results/schemes.jsonl``, including those of the searches.

    ``dataset`` is ``"digits"`` or ``"mnist"``; any other name raises ValueError.

    Example:
        >>> {row["workers"] for row in scheme_rows("digits")}
        {4}
    """
    return read_rows(results_file("schemes.jsonl"), {"dataset": check_choice("dataset", dataset, SCHEMES)})


def scheme_table(rows: list[dict]) -> pd.DataFrame:
    """Return a row for each scheme, most bytes first: mean, lowest and highest accuracy, kB and ms per step.

    ``rows`` are like those of `scheme_rows`. Rows of a learning-rate search are omitted, so a search alone gives an
    empty table. The kB are a worker's payload. The ms are those of the fastest run, which other load on the machine
    slowed down least. Raises ValueError if there are no rows, or rows of two data sets.

    Example:
        >>> scheme_table(scheme_rows("digits"))["scheme"][0]
        'dense'
    """
    import pandas as pd

    if len(datasets := {row["dataset"] for row in check_some("rows", rows)}) > 1:
        raise ValueError(f"rows must be from one data set, got {', '.join(sorted(datasets))}")
    columns = ["scheme", "learning_rate", "accuracy", "bytes a step", "seconds", "steps"]
    runs = pd.DataFrame([row for row in rows if row["seed"] != SEARCH_SEED], columns=columns)
    runs["kB a step"] = runs["bytes a step"] / 1000
    runs["ms a step"] = 1000 * runs["seconds"] / runs["steps"]
    groups = runs.groupby("scheme", sort=False)
    frame = pd.DataFrame(
        {
            "learning rate": groups["learning_rate"].first(),
            "accuracy": groups["accuracy"].mean(),
            "least": groups["accuracy"].min(),
            "greatest": groups["accuracy"].max(),
            "seeds": groups.size(),
            "kB a step": groups["kB a step"].mean(),
            "ms a step": groups["ms a step"].min(),
        }
    )
    return frame.sort_values("kB a step", ascending=False).reset_index()


def rate_of(scheme: str, dataset: str) -> float:
    """Return an initial learning rate: the scheme's in the lab's table, or that of the first of its kind, or 0.05.

    Fashion-MNIST and CIFAR-10 use MNIST's rates, because their networks are built alike.

    Example:
        >>> rate_of("sign", "digits") < rate_of("dense", "digits")
        True
    """
    rates = best_rates(scheme_rows("digits" if dataset == "digits" else "mnist"))
    alike = [rate for name, rate in rates.items() if name.partition(":")[0] == scheme.partition(":")[0]]
    return rates.get(scheme, alike[0] if alike else 0.05)
