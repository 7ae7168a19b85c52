"""Synchronous and asynchronous training on TensorFlow's clusters.

    with ParameterServers(2) as servers:
        training = train_on(servers, task, Settings(Schedule("asynchronous")))
        training.records

`train` is the loop that runs in the coordinator, a generator of what happens in it. What a gradient goes through is in
`dgc_lab.parameter_server.worker` and `dgc_lab.parameter_server.server`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dgc_lab.common import check_whole
from dgc_lab.parameter_server.schedule import DROPPED, NOT_YET, GradientEvent, Schedule


@dataclass(frozen=True)
class AsyncConfig:
    """Everything that fixes a training.

    Attributes:
        schedule: the mode, and who is slow.
        gradients: how many batches are worked off in all, whichever worker takes them; at least one for each worker,
            and a multiple of their number in synchronous training.
        batch: examples of one gradient.
        learning_rate: for one worker's gradient, above 0; see `dgc_lab.parameter_server.server.ParameterServerModel`.
        momentum: in [0, 1).
        staleness_aware: divide the rate by the staleness, where that is above 1.
        seed: of the order of examples.
        score_every: gradients between two scores (and two checkpoints).

    Raises:
        ValueError: a value is outside what is allowed.
    """

    schedule: Schedule = field(default_factory=Schedule)
    gradients: int = 400
    batch: int = 64
    learning_rate: float = 0.05
    momentum: float = 0.0
    staleness_aware: bool = False
    seed: int = 0
    score_every: int = 100

    def __post_init__(self):
        check_whole("gradients", self.gradients, 1, 1_000_000)
        check_whole("batch", self.batch, 1, 2**20)
        check_whole("seed", self.seed, 0, 2**31 - 1)
        check_whole("score_every", self.score_every, 1, 1_000_000)
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate must be above 0 and finite, got {self.learning_rate!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {self.momentum!r}")

    def check(self, workers: int) -> None:
        """Raise a ValueError if these settings do not fit that many workers."""
        if self.gradients < workers:
            raise ValueError(f"gradients must be at least one for each of {workers} workers, got {self.gradients}")
        if self.gradients % (workers if self.schedule.mode == "synchronous" else 1):
            raise ValueError(f"gradients must be a multiple of the {workers} workers, got {self.gradients}")
        self.schedule.gradients_an_update(workers)


@dataclass(frozen=True)
class Score:
    """How good the weights were at a moment.

    Attributes:
        gradients: how many batches had been worked off.
        seconds: since the training began.
        values: by name, such as loss and accuracy.
    """

    gradients: int
    seconds: float
    values: dict[str, float]


@dataclass(frozen=True)
class WorkerDied:
    """A worker's process ended, and the training goes on without it, or with its successor.

    Attributes:
        worker: its number.
        seconds: since the training began.
    """

    worker: int
    seconds: float


@dataclass(frozen=True)
class Finished:
    """The end of the training, or of the part of it until a stop.

    Attributes:
        weights: as they are now.
        version: number of updates made.
        gradients: how many batches were worked off, those of the training that this one went on with included.
    """

    weights: list[np.ndarray]
    version: int
    gradients: int


def train(task, settings: AsyncConfig, checkpoint: str | Path | None = None) -> Iterator:
    """Train on the parameter servers of this process's cluster; runs in the coordinator.

    Args:
        task: `dgc_lab.parameter_server.tasks.Classifier`, or another object with the same methods.
        settings: how.
        checkpoint: file (``.npz``) that is written at each score, and gone on with where it is there.

    Yields:
        A `GradientEvent` for each batch, when the update is made that it is in; a `Score` before the first, every
        ``score_every`` and after the last; a `WorkerDied` if one dies; and `Finished`.

    Raises:
        ValueError: the settings do not fit the number of workers, or the checkpoint is of another training.
        LabError: a worker died that the schedule cannot do without (told within five seconds), or the model cannot be
            put on servers.
    """
    from dgc_lab.cluster import tensorflow_roles as roles
    from dgc_lab.parameter_server.checkpoint import order, restore, save
    from dgc_lab.parameter_server.coordinator import Dispatcher, LivenessMonitor, UpdateBuffer
    from dgc_lab.parameter_server.server import ParameterServerModel
    from dgc_lab.parameter_server.worker import worker_step

    workers = roles.number_of("worker")
    settings.check(workers)
    state = restore(checkpoint, task, settings, workers)
    coordinator = roles.coordinator()
    shared = ParameterServerModel(
        coordinator.strategy, roles.number_of("ps"), settings.schedule, workers, **state,
        learning_rate=settings.learning_rate, momentum=settings.momentum, staleness_aware=settings.staleness_aware,
    )  # fmt: skip
    left = np.flatnonzero(state["updates"] == NOT_YET)
    done = len(state["updates"]) - len(left)
    yield Score(done, 0.0, task.score(state["weights"]))
    step = worker_step(shared, task, settings.seed)
    hands = Dispatcher(coordinator, shared, step, task.examples, order(len(task.examples[0]), settings), left)
    watch, made = LivenessMonitor(settings.schedule, workers), UpdateBuffer(shared.needed)
    began = None

    def since_start(record):
        nonlocal began, done
        began, done = began or record.began, done + 1
        times = {name: getattr(record, name) - began for name in ("began", "read", "computed", "done")}
        return dataclasses.replace(record, **times)

    try:
        hands.start(2 * workers)  # one batch that a worker works on, and one that waits for it
        for event in hands.events(watch):
            if isinstance(event, int):
                shared.forget(event)
                yield WorkerDied(event, time.time() - began if began else 0.0)
                continue
            for record in made.add(event):
                yield since_start(record)
                if done % settings.score_every == 0 and done < settings.gradients:
                    state = save(checkpoint, shared, settings)
                    yield Score(done, time.time() - began, task.score(state["weights"]))
    finally:
        hands.stop()
    for last in hands.rest():
        for record in made.add(last):
            yield since_start(record)
    ended = not hands.left
    if ended:  # no further gradient comes to make the last update
        for record in made.unfinished():
            yield since_start(dataclasses.replace(record, update=DROPPED))
    seconds = time.time() - began if began else 0.0
    state = save(checkpoint, shared, settings, ended)
    yield Score(done, seconds, task.score(state["weights"]))
    yield Finished(state["weights"], int(state["version"]), done)


@dataclass
class Training:
    """What happened in a training.

    Attributes:
        records: a `GradientEvent` for each batch, as it ended.
        scores: each `Score`, in order.
        deaths: each `WorkerDied`.
        end: `Finished`; None where the training was cut off.
    """

    records: list[GradientEvent] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    deaths: list[WorkerDied] = field(default_factory=list)
    end: Finished | None = None

    def take(self, event) -> None:
        """Add an event of `train`."""
        if isinstance(event, Finished):
            self.end = event
        else:
            {GradientEvent: self.records, Score: self.scores, WorkerDied: self.deaths}[type(event)].append(event)


def train_on(
    cluster, task, settings: AsyncConfig, checkpoint: str | Path | None = None, progress: bool = True
) -> Training:
    """Train on a cluster from the notebook, with a progress bar, and collect what happens.

    Args:
        cluster: started `dgc_lab.cluster.ParameterServers` or, for synchronous training, `MultiWorkerMirrored`.
        task, settings, checkpoint: as in `train`; mirrored workers take no checkpoint.
        progress: whether to show a bar.

    Raises:
        ValueError: the settings do not fit the cluster, or there is a checkpoint and no servers.
        FunctionFailed: the training raised; see `train`.
        ProcessDied: a process died that the cluster cannot do without.
    """
    from tqdm.auto import tqdm

    from dgc_lab.cluster import ParameterServers

    settings.check(cluster.workers)
    if isinstance(cluster, ParameterServers):
        events = cluster.stream(train, task, settings, checkpoint)
    elif checkpoint is not None:
        raise ValueError(f"checkpoint must be None with mirrored workers, got {str(checkpoint)!r}")
    else:
        from dgc_lab.parameter_server.allreduce import train_mirrored

        events = cluster.stream(train_mirrored, task, settings)
    training = Training()
    name = settings.schedule.mode
    with tqdm(total=settings.gradients, desc=name, unit="gradient", leave=False, disable=not progress) as bar:
        for event in events:
            training.take(event)
            bar.update(isinstance(event, GradientEvent))
    return training
