"""Training on the same examples with 1 to 32 workers: accuracy, and the age of the elements they send. Lesson 6.

All runs use the same batches of 128 examples; each of N workers computes 128 / N of them. Without compression, the
training is the same for every N, except for rounding. With compression, each worker selects from its own gradient.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dgc_lab.common import check_choice, check_file, check_list, check_number, check_whole, results_file
from dgc_lab.training.sweeps import read_rows, train_each

if TYPE_CHECKING:
    import pandas as pd

    from dgc_lab.training.distributed_trainer import DistributedConfig
    from dgc_lab.workloads.dataset import Dataset

EXAMPLES_A_STEP = 128
WORKERS = (1, 2, 4, 8, 16, 32)
RATIOS = (0.01, 0.001)
CLIPPINGS = ("none", "by workers", "the same")
STEPS = 200
LEARNING_RATE = 0.2  # with momentum 0.9, high enough that clipping matters
CLIP_NORM = 1.0  # norm of the gradient over all workers
DENSE_WORKERS = (1, 32)  # all numbers give the same training; two are enough to show that


@dataclass(frozen=True)
class Run:
    """One training run of the table.

    Attributes:
        workers: N, a divisor of 128.
        ratio: share of the elements that a worker sends, above 0; 1 is training without compression, with momentum.
        clipping: limit for local gradients: ``"by workers"``, `CLIP_NORM` times sqrt(N), as in
            `dgc_lab.compression.clip_locally`; ``"the same"``, `CLIP_NORM` for every N; or ``"none"``.
        seed: seed of the initial weights and the order of the examples.

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> Run(workers=4, ratio=0.01).settings(steps=200, learning_rate=0.2).batch
        32
    """

    workers: int
    ratio: float
    clipping: str = "none"
    seed: int = 0

    def __post_init__(self):
        check_choice("clipping", self.clipping, CLIPPINGS)
        allowed = [n for n in range(1, EXAMPLES_A_STEP + 1) if EXAMPLES_A_STEP % n == 0]
        if check_whole("workers", self.workers, 1) not in allowed:
            raise ValueError(f"workers must be one of {', '.join(map(str, allowed))}, got {self.workers!r}")
        check_number("ratio", self.ratio, "above 0 and at most 1")
        check_whole("seed", self.seed, 0)

    def settings(self, steps: int, learning_rate: float):
        """Return the run as a `dgc_lab.training.distributed_trainer.DistributedConfig`."""
        from dgc_lab.training.distributed_trainer import DistributedConfig

        return DistributedConfig(
            steps=steps,
            batch=EXAMPLES_A_STEP // self.workers,
            learning_rate=learning_rate,
            rule="exact",
            seed=self.seed,
            evaluations=1,
            workers=self.workers,
            factor_masking=self.ratio < 1,  # no effect at ratio 1, but needed to find the stored rows
            clip_norm=clip_norm(self.clipping, self.workers),
        )


def table_runs(
    workers: Sequence[int] = WORKERS, ratios: Sequence[float] = RATIOS, seeds: Sequence[int] = (0,)
) -> list[Run]:
    """Return the runs of the table: each of the ``workers``, ``ratios`` and ``seeds``, with and without clipping.

    A few numbers of workers have dense runs, too. Runs that differ only in the ratio are adjacent: they share a trace.

    Raises:
        ValueError: an argument is not a list, or contains a value that `Run` rejects.

    Example:
        >>> [(run.workers, run.ratio) for run in table_runs((1, 4), (0.01,)) if run.clipping == "none"]
        [(1, 1.0), (1, 0.01), (4, 0.01)]
    """
    workers, seeds = check_list("workers", workers), check_list("seeds", seeds)
    ratios = check_list("ratios", ratios)
    for seed in seeds:
        check_whole("seeds", seed, 0)
    return [
        Run(number, ratio, clipping, seed)
        for number, seed, clipping in itertools.product(workers, seeds, ("none", "by workers"))
        for ratio in ((1.0, *ratios) if number in DENSE_WORKERS else ratios)
    ]


def train_runs(runs: Sequence[Run], steps: int = STEPS, out: str | os.PathLike | None = None) -> Iterator:
    """Train runs on simulated workers and yield events, like `dgc_lab.training.sweep`.

    The call itself checks the arguments. To stop, stop iterating; finished rows stay in the file.

    Args:
        runs: distinct `Run` objects.
        steps: updates per run.
        out: file for finished rows; runs with a row in it are not trained again.

    Yields:
        A sweep's events, with the number of the run. Rows also contain the ages of sent elements.

    Raises:
        ValueError: there are no runs, two runs are equal, or steps is not a whole number above 0.

    Example:
        >>> from dgc_lab.training import RowEnded
        >>> events = train_runs([Run(2, 0.01)], steps=3)
        >>> [event.row["workers"] for event in events if isinstance(event, RowEnded)]
        [2]
    """
    from dgc_lab.workloads.data import load

    if out is not None:
        check_file("out", out)
    data = load("digits")
    trainer_of = functools.lru_cache(maxsize=1)(lambda settings: watched_trainer(settings, data))
    every = [(run.settings(steps, LEARNING_RATE), run.ratio) for run in runs]
    return train_each(every, trainer_of, data, out, lambda trainer: age_fields(trainer.compressor))


def watched_trainer(settings: DistributedConfig, data: Dataset | None = None):
    """Return a `dgc_lab.training.DistributedTrainer` of simulated workers that records the ages of residuals.

    ``settings`` and ``data`` are those of the trainer. Raises ValueError if `with_ages` does not support the settings.

    Example:
        >>> from dgc_lab.scaling import sent_ages
        >>> trainer = watched_trainer(Run(workers=2, ratio=0.01).settings(steps=3, learning_rate=0.2))
        >>> events = list(trainer.run(ratio=0.01))
        >>> int(sent_ages(trainer.compressor).sum())  # by both workers in 3 steps
        2250
    """
    from dgc_lab.compression.compressor import Compressor
    from dgc_lab.distributed.communicators import SimulatedWorkers
    from dgc_lab.scaling.residual_staleness import with_ages
    from dgc_lab.training.distributed_trainer import DistributedTrainer

    trainer = DistributedTrainer(settings, SimulatedWorkers(settings.workers), data)
    own = trainer.compressor
    scheme = with_ages(own.config, settings.steps)
    trainer.compressor = Compressor(scheme, own.trained, own.communicator, own.names, own.config)
    return trainer


def age_fields(compressor) -> dict:
    """Return a row's fields for the ages of sent elements, and of those still waiting after the last step."""
    from dgc_lab.scaling.residual_staleness import by_doubling, mean_age, median_age, sent_ages, waiting_ages

    sent, waiting = sent_ages(compressor), waiting_ages(compressor)
    return {
        "mean age": round(mean_age(sent), 3),
        "median age": median_age(sent),
        "sent by age": [list(each) for each in by_doubling(sent)],
        "mean age waiting": round(mean_age(waiting), 3) if waiting.any() else None,  # no element waits if all are sent
        "waiting by age": [list(each) for each in by_doubling(waiting)],
    }


def clipping_of(row: dict) -> str:
    """Return the ``clipping`` of a row's run, one of `CLIPPINGS`. Raises ValueError if ``row`` has another norm.

    Example:
        >>> clipping_of({"clip_norm": None, "workers": 4})
        'none'
    """
    if missing := {"clip_norm", "workers"} - row.keys():
        raise ValueError(f"row must have {', '.join(sorted(missing))}, got {row!r}")
    for clipping in CLIPPINGS:
        if row["clip_norm"] == clip_norm(clipping, row["workers"]):
            return clipping
    raise ValueError(f"clip_norm must be None, {CLIP_NORM:g} or {CLIP_NORM:g} / sqrt(workers), got {row['clip_norm']}")


def clip_norm(clipping: str, workers: int) -> float | None:
    """Return the setting ``clip_norm``. Local limits are sqrt(N) times this, so "the same" divides by sqrt(N)."""
    return {"none": None, "by workers": CLIP_NORM, "the same": CLIP_NORM / workers**0.5}[clipping]


def table(rows: list[dict]) -> pd.DataFrame:
    """Return a table with the fewest workers and the largest ratio first: accuracy, loss, kB per step, ages in steps.

    The kB are per worker. The seed is omitted if all ``rows`` have the same one. Without rows, the table is empty.

    Example:
        >>> table(worker_rows()[:2])["workers"].tolist()
        [1, 1]
    """
    import pandas as pd

    if not rows:
        return pd.DataFrame()
    columns = ["workers", "ratio", "clipping", "seed", "accuracy", "loss", "kB a step"]
    columns += ["mean age", "median age", "mean age waiting"]
    lines = [{**row, "clipping": clipping_of(row), "kB a step": row["bytes a step"] / 1000} for row in rows]
    frame = pd.DataFrame(lines, columns=columns)  # rows of a plain sweep have no ages
    order = ["workers", "clipping", "ratio", "seed"]
    frame = frame.sort_values(order, ascending=[True, False, False, True], kind="stable", ignore_index=True)
    return frame if frame["seed"].nunique() > 1 else frame.drop(columns="seed")


def worker_rows() -> list[dict]:
    """Return the lab's stored rows of the table from ``results/workers.jsonl``.

    Example:
        >>> worker_rows()[0]["workers"]
        1
    """
    return read_rows(results_file("workers.jsonl"), {})
