"""Record the runs shown on the site's first page: ``python tools/record_runs.py``, half an hour.

Four simulated workers train on MNIST-1D at each of the twelve published ratios, with masking and with complete DGC,
from three seeds. Both methods compress every tensor, including small ones and vectors, so that they differ in nothing
else but the learning rate: for each method and ratio, it is the one of `RATES` with the higher accuracy on
`SEARCH_SEED`. The results are stored in results/recorded_runs.json.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from dgc_lab.compression.config import MASKING
from dgc_lab.distributed import SimulatedWorkers
from dgc_lab.training import SINGLE_NODE, DistributedConfig, DistributedStep, DistributedTrainer
from dgc_lab.workloads import load

FILE = Path(__file__).resolve().parent.parent / "results" / "recorded_runs.json"
SEEDS, SEARCH_SEED = (0, 1, 2), 3
RATES = (0.1, 0.2)
EVERY = 50  # steps per point of the loss curve, which is their mean
TASK = {"dataset": "mnist1d", "workers": 4, "batch": 32, "steps": 1500, "schedule": "cosine"}
COMMON = DistributedConfig(**TASK, rule="exact", evaluations=15, dense_vectors=False, dense_below=0)
METHODS = {"masking": dataclasses.replace(COMMON, **MASKING), "complete DGC": COMMON}


def record(trainer, ratio: float) -> dict:
    """Record one run: loss and accuracy by step, and the mean number of bytes that a worker sends per step."""
    events = list(trainer.run(ratio))
    steps = [event for event in events if isinstance(event, DistributedStep)]
    losses = np.reshape([step.loss for step in steps], (-1, EVERY)).mean(axis=1)
    return {
        "ratio": ratio,
        "bytes": round(np.mean([step.bytes_sent for step in steps])),
        "loss": [[EVERY * place, round(float(loss), 4)] for place, loss in enumerate(losses, 1)],
        "accuracy": [[event.step, round(event.accuracy, 4)] for event in events if event not in steps],
    }


def main() -> None:
    """Search the learning rates, train all runs, and write the file."""
    data, runs = load("mnist1d"), []
    with tqdm(total=len(METHODS) * len(SINGLE_NODE) * (len(RATES) + len(SEEDS))) as bar:

        def recorded_run(trainer, ratio: float) -> dict:
            run = record(trainer, ratio)
            bar.update()
            return run

        for method, common in METHODS.items():
            trainers = {
                (seed, rate): DistributedTrainer(
                    dataclasses.replace(common, seed=seed, learning_rate=rate), SimulatedWorkers(common.workers), data
                )
                for seed in (*SEEDS, SEARCH_SEED)
                for rate in RATES
            }
            for ratio in SINGLE_NODE:
                found = {rate: recorded_run(trainers[SEARCH_SEED, rate], ratio)["accuracy"][-1][1] for rate in RATES}
                best = {"method": method, "learning_rate": max(found, key=found.get)}
                for seed in SEEDS:
                    runs.append({**best, "seed": seed, **recorded_run(trainers[seed, best["learning_rate"]], ratio)})
    dense = next(run["bytes"] for run in runs if run["ratio"] == 1)
    settings = {method: dataclasses.asdict(config) for method, config in METHODS.items()}
    other = settings["complete DGC"] | {"seed": None, "learning_rate": None}  # each run has its own
    shared = {name: value for name, value in settings["masking"].items() if value == other[name]}
    head = {
        "command": "python tools/record_runs.py",
        "tensorflow": tf.__version__,
        "seeds": SEEDS,
        "learning_rates": RATES,
        "search_seed": SEARCH_SEED,
        "settings": shared,
        "dense_bytes": dense,
    }
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    FILE.write_text(json.dumps(head, indent=1)[:-2] + f',\n "runs": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
