"""What a training on parameter servers begins with, and goes on with after a stop: lesson 3, section 7.

The state is weights, velocities, the number of updates made, and which batches are in them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.schedule import DROPPED, NOT_YET


def restore(checkpoint, task, config: AsyncConfig, workers: int) -> dict:
    """The state to begin with: the checkpoint's where there is one, else the task's first weights."""
    weights = task.initial_weights()
    if checkpoint is None or not Path(checkpoint).exists():
        fresh = np.full(config.gradients, NOT_YET)
        return {"weights": weights, "velocities": [np.zeros_like(w) for w in weights], "updates": fresh, "version": 0}
    with np.load(checkpoint, allow_pickle=False) as file:
        found, wanted = file["settings"].item(), fingerprint(config, workers, weights)
        if found != wanted:
            raise ValueError(f"checkpoint {checkpoint} is of a training with {found}, not {wanted}")
        number = len(weights)
        kept = {name: [file[f"{name}{n}"] for n in range(number)] for name in ("weights", "velocities")}
        return kept | {"updates": file["updates"], "version": int(file["version"])}


def save(checkpoint, model, config: AsyncConfig, ended: bool = False) -> dict:
    """What the servers hold now; written to the checkpoint, if there is one, whole or not at all."""
    state = model.snapshot()
    # A batch whose gradient waits in an unfinished sum is to be done again, unless all is over.
    unfinished = state["updates"] >= state["version"]
    state["updates"] = np.where(unfinished, DROPPED if ended else NOT_YET, state["updates"])
    if checkpoint is not None:
        arrays = {f"{name}{n}": array for name in ("weights", "velocities") for n, array in enumerate(state[name])}
        arrays |= {"updates": state["updates"], "version": state["version"]}
        partly = Path(f"{checkpoint}.part.npz")
        np.savez(partly, settings=fingerprint(config, model.workers, state["weights"]), **arrays)
        partly.replace(checkpoint)
    return state


def fingerprint(config: AsyncConfig, workers: int, weights) -> str:
    """What two trainings must have in common for one to go on with the other's checkpoint."""
    needed = config.schedule.gradients_an_update(workers)
    parameters = sum(weight.size for weight in weights)
    return (
        f"mode={config.schedule.mode}, gradients an update={needed}, gradients={config.gradients}, "
        f"batch={config.batch}, seed={config.seed}, parameters={parameters}"
    )
