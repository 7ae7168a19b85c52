"""What a training on parameter servers begins with, and can go on with: weights, velocities, which batches are done."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dgc_lab.parameter_server.schedule import DROPPED, NOT_YET
from dgc_lab.parameter_server.training_loop import AsyncConfig


def order(examples: int, settings: AsyncConfig) -> np.ndarray:
    """Places of each batch's examples in the training set: int64 (gradients, batch), the same in every mode."""
    return np.random.default_rng(settings.seed).integers(0, examples, (settings.gradients, settings.batch))


def restore(checkpoint, task, settings: AsyncConfig, workers: int) -> dict:
    """The state to begin with: the checkpoint's where there is one, else the task's first weights."""
    weights = task.initial_weights()
    if checkpoint is None or not Path(checkpoint).exists():
        fresh = np.full(settings.gradients, NOT_YET)
        return {"weights": weights, "velocities": [np.zeros_like(w) for w in weights], "updates": fresh, "version": 0}
    with np.load(checkpoint, allow_pickle=False) as file:
        found, wanted = file["settings"].item(), fingerprint(settings, workers, weights)
        if found != wanted:
            raise ValueError(f"checkpoint {checkpoint} is of a training with {found}, not {wanted}")
        number = len(weights)
        kept = {name: [file[f"{name}{n}"] for n in range(number)] for name in ("weights", "velocities")}
        return kept | {"updates": file["updates"], "version": int(file["version"])}


def save(checkpoint, shared, settings: AsyncConfig, ended: bool = False) -> dict:
    """What the servers hold now; written to the checkpoint, if there is one, whole or not at all."""
    state = shared.snapshot()
    # A batch whose gradient waits in an unfinished sum is to be done again, unless all is over.
    unfinished = state["updates"] >= state["version"]
    state["updates"] = np.where(unfinished, DROPPED if ended else NOT_YET, state["updates"])
    if checkpoint is not None:
        named = {f"{name}{n}": array for name in ("weights", "velocities") for n, array in enumerate(state[name])}
        partly = Path(f"{checkpoint}.part.npz")
        np.savez(
            partly,
            settings=fingerprint(settings, shared.workers, state["weights"]),
            updates=state["updates"],
            version=state["version"],
            **named,
        )
        partly.replace(checkpoint)
    return state


def fingerprint(settings: AsyncConfig, workers: int, weights) -> str:
    """What two trainings must have in common for one to go on with the other's checkpoint."""
    needed = settings.schedule.gradients_an_update(workers)
    parameters = sum(weight.size for weight in weights)
    return (
        f"mode={settings.schedule.mode}, gradients an update={needed}, gradients={settings.gradients}, "
        f"batch={settings.batch}, seed={settings.seed}, parameters={parameters}"
    )
