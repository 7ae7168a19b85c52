"""Synchronous and asynchronous training on TensorFlow's clusters. Lesson 3.

The checkpoint of section 7 contains weights, velocities, the number of updates, and which batches they include.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dgc_lab.cluster import stop_requested
from dgc_lab.cluster.base import Cluster
from dgc_lab.common import LabError, check_file, check_path, load_arrays, save_arrays
from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.events import Finished, Score, Training, WorkerDied
from dgc_lab.parameter_server.schedule import DROPPED, NOT_YET, GradientEvent
from dgc_lab.workloads.dataset import Task


def train(task: Task, config: AsyncConfig, checkpoint: str | Path | None = None) -> Iterator:
    """Train on the parameter servers of this process's cluster; runs in the coordinator.

    Args:
        task: `dgc_lab.parameter_server.tasks.Classifier`, or another object with the same methods.
        config: the settings.
        checkpoint: file (``.npz``) that is written at each score. If it exists, the training resumes from it.

    Yields:
        A `GradientEvent` for each batch, when the update that includes it has been made; a `Score` before the first
        gradient, every ``score_every`` and after the last; a `WorkerDied` if a worker dies; and `Finished`.

    Raises:
        ValueError: the config does not fit the number of workers, or the checkpoint is from another training run.
        LabError: a worker died without which the schedule cannot continue (raised within 5 seconds), or the model has
            non-trainable variables.

    Example:
        With started `ParameterServers` and a task, until a score is good enough:

        >>> for event in servers.stream(train, task, AsyncConfig(gradients=400)):  # doctest: +SKIP
        ...     if isinstance(event, Score) and event.values["accuracy"] > 0.9:
        ...         break
    """
    from dgc_lab.cluster import tensorflow_roles as roles
    from dgc_lab.parameter_server.coordinator import Dispatcher
    from dgc_lab.parameter_server.server import ParameterServerModel
    from dgc_lab.parameter_server.worker import worker_step

    if checkpoint is not None:
        check_file("checkpoint", checkpoint)
    workers = roles.number_of("worker")
    config.check(workers)
    state = restore(checkpoint, task, config, workers)
    coordinator = roles.coordinator()
    model = ParameterServerModel(coordinator.strategy, roles.number_of("ps"), workers, config, **state)
    left = np.flatnonzero(state["updates"] == NOT_YET)
    done = len(state["updates"]) - len(left)
    yield Score(done, 0.0, task.score(state["weights"]))
    step, positions = worker_step(model, task, config.seed), config.batch_order(len(task.examples[0]))
    dispatcher = Dispatcher(coordinator, model, step, task.examples, positions, left)
    model.snapshot()  # once before the workers start, because of the crash described in `Dispatcher`
    began = None

    def since_start(record):
        nonlocal began, done
        began, done = began or record.began, done + 1
        return replace(record, **{n: getattr(record, n) - began for n in ("began", "read", "computed", "done")})

    try:
        dispatcher.start(0 if stop_requested() else 2 * workers)  # per worker, one batch in progress and one waiting
        for event in dispatcher.events():
            if isinstance(event, int):
                model.forget(event)
                yield WorkerDied(event, time.time() - began if began else 0.0)
                continue
            yield since_start(event)
            if done % config.score_every == 0 and done < config.gradients:
                state = save(checkpoint, model, config)
                yield Score(done, time.time() - began, task.score(state["weights"]))
    finally:
        dispatcher.stop()
    yield from map(since_start, dispatcher.remaining_events())
    seconds = time.time() - began if began else 0.0
    state = save(checkpoint, model, config, ended=not dispatcher.left)
    yield Score(done, seconds, task.score(state["weights"]))
    yield Finished(state["weights"], int(state["version"]), done)


def restore(checkpoint, task, config: AsyncConfig, workers: int) -> dict:
    """Return the state to start from: the checkpoint if it exists, otherwise the task's initial weights."""
    weights = task.initial_weights()
    if checkpoint is None or not Path(checkpoint).exists():
        fresh = np.full(config.gradients, NOT_YET)
        return {"weights": weights, "velocities": [np.zeros_like(w) for w in weights], "updates": fresh, "version": 0}
    file, wanted = load_arrays(checkpoint), fingerprint(config, workers, weights)
    if (found := str(file.get("settings"))) != wanted:
        raise ValueError(f"checkpoint {checkpoint} is from a training run with {found}, not {wanted}: use another file")
    names = {name: [f"{name}{n}" for n in range(len(weights))] for name in ("weights", "velocities")}
    if {"updates", "version", *names["weights"], *names["velocities"]} - file.keys():
        raise LabError(f"checkpoint {checkpoint} is incomplete: remove it to train from the start")
    arrays = {name: [file[each] for each in every] for name, every in names.items()}
    return arrays | {"updates": file["updates"], "version": int(file["version"])}


def save(checkpoint, model, config: AsyncConfig, ended: bool = False) -> dict:
    """Return the servers' current state, and write it atomically to the checkpoint, if there is one."""
    state = model.snapshot()
    # A batch whose gradient is in an incomplete sum must be repeated, unless the training has ended.
    unfinished = state["updates"] >= state["version"]
    state["updates"] = np.where(unfinished, DROPPED if ended else NOT_YET, state["updates"])
    if checkpoint is not None:
        arrays = {f"{name}{n}": array for name in ("weights", "velocities") for n, array in enumerate(state[name])}
        arrays |= {"updates": state["updates"], "version": state["version"]}
        save_arrays(checkpoint, settings=fingerprint(config, model.workers, state["weights"]), **arrays)
    return state


def fingerprint(config: AsyncConfig, workers: int, weights) -> str:
    """Return the settings that must be equal for a run to resume from the checkpoint of another one."""
    return (
        f"mode={config.schedule.mode}, gradients an update={config.schedule.gradients_per_update(workers)}, "
        f"gradients={config.gradients}, batch={config.batch}, seed={config.seed}, "
        f"parameters={sum(weight.size for weight in weights)}"
    )


def train_on(cluster: Cluster, task: Task, config: AsyncConfig, checkpoint: str | Path | None = None) -> Training:
    """Train on a cluster from the notebook, with a progress bar, and return the collected events.

    Args:
        cluster: started `dgc_lab.cluster.ParameterServers` or, for synchronous training, `MultiWorkerMirrored`.
        task, config, checkpoint: as in `train`; mirrored workers accept no checkpoint.

    Raises:
        ValueError: the config does not fit the cluster, or a checkpoint is given without parameter servers.
        FunctionFailed: the training raised an error; see `train`.
        ProcessDied: a process died without which the cluster cannot continue.

    Example:
        >>> task = Classifier(digits_cnn, load("digits"))  # doctest: +SKIP
        >>> with ParameterServers(workers=2, ps=1) as servers:  # doctest: +SKIP
        ...     training = train_on(servers, task, AsyncConfig(Schedule("asynchronous"), gradients=40))
        >>> len(training.records), training.end.version  # doctest: +SKIP
        (40, 40)
    """
    from tqdm.auto import tqdm

    from dgc_lab.cluster import MultiWorkerMirrored, ParameterServers

    # An absolute path, because the coordinator has a different working directory.
    file = None if checkpoint is None else str(check_path("checkpoint", checkpoint).expanduser().absolute())
    if not isinstance(cluster, ParameterServers | MultiWorkerMirrored):
        raise ValueError(f"cluster must be ParameterServers or MultiWorkerMirrored, got {cluster!r}")
    config.check(cluster.workers)
    if isinstance(cluster, ParameterServers):
        events = cluster.stream(train, task, config, file)
    elif checkpoint is not None:
        raise ValueError(f"checkpoint must be None with mirrored workers, got {str(checkpoint)!r}")
    elif config.schedule.mode != "synchronous":
        raise ValueError(f"mode must be synchronous with mirrored workers, got {config.schedule.mode!r}")
    else:
        from dgc_lab.parameter_server.allreduce import train_mirrored

        events = cluster.stream(train_mirrored, task, config)
    training = Training()
    bar = tqdm(total=config.gradients, desc=config.schedule.mode, unit="gradient", leave=False)
    with contextlib.closing(events), bar:  # an interrupt may arrive here instead of in the stream
        for event in events:
            training.take(event)
            bar.update(isinstance(event, GradientEvent))
    return training
