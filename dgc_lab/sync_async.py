"""Synchronous and asynchronous training on parameter servers: the loop that runs in the coordinator.

    with ParameterServers(2) as servers:
        for event in servers.stream(train, task, Settings(Schedule("asynchronous"))):
            ...

It is a generator of what happens in it. What a gradient goes through is in `dgc_lab.shared_model`.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tensorflow as tf

from dgc_lab import tensorflow_roles as roles
from dgc_lab.checks import check_count
from dgc_lab.errors import LabError
from dgc_lab.rank import stop_requested
from dgc_lab.schedules import Gradient, Schedule, Straggler
from dgc_lab.shared_model import NOT_YET, SharedModel, sleep

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_FOR_LAST_GRADIENTS = 20


@dataclass(frozen=True)
class Settings:
    """Everything that fixes a training.

    Attributes:
        schedule: the mode, and who is slow.
        gradients: how many batches are worked off in all, whichever worker takes them; at least one for each worker,
            and a multiple of their number in synchronous training.
        batch: examples of one gradient.
        learning_rate: for one worker's gradient, above 0; see `dgc_lab.shared_model.SharedModel`.
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
        check_count("gradients", self.gradients, 1, 1_000_000)
        check_count("batch", self.batch, 1, 2**20)
        check_count("seed", self.seed, 0, 2**31 - 1)
        check_count("score_every", self.score_every, 1, 1_000_000)
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


def train(task, settings: Settings, checkpoint: str | Path | None = None) -> Iterator:
    """Train on the parameter servers of this process's cluster; runs in the coordinator.

    Args:
        task: `dgc_lab.tasks.Classifier`, or another object with the same methods.
        settings: how.
        checkpoint: file (``.npz``) that is written at each score, and gone on with where it is there.

    Yields:
        A `Gradient` for each batch, as the servers took it; a `Score` before the first, every ``score_every`` and after
        the last; a `WorkerDied` if one dies; and `Finished`.

    Raises:
        ValueError: the settings do not fit the number of workers, or the checkpoint is of another training.
        LabError: a worker died that the schedule cannot do without, or the model cannot be put on servers.
    """
    workers = roles.number_of("worker")
    settings.check(workers)
    state = restore(checkpoint, task, settings)
    shared = SharedModel(
        roles.coordinator().strategy, roles.number_of("ps"), settings.schedule, workers, **state,
        learning_rate=settings.learning_rate, momentum=settings.momentum, staleness_aware=settings.staleness_aware,
    )  # fmt: skip
    left = np.flatnonzero(state["updates"] == NOT_YET)
    done = len(state["updates"]) - len(left)
    yield Score(done, 0.0, task.score(state["weights"]))
    hands = Hands(shared, task, settings, left)
    watch = Watch(settings.schedule, workers)
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
            yield since_start(event)
            if done % settings.score_every == 0 and done < settings.gradients:
                state = save(checkpoint, shared, settings)
                yield Score(done, time.time() - began, task.score(state["weights"]))
    finally:
        hands.stop()
    for record in hands.rest():
        yield since_start(record)
    seconds = time.time() - began if began else 0.0
    state = save(checkpoint, shared, settings)
    yield Score(done, seconds, task.score(state["weights"]))
    yield Finished(state["weights"], int(state["version"]), done)


class Watch:
    """Looks for workers that died, and says whether the schedule can do without them.

    Args:
        schedule: which mode.
        workers: how many there are.
    """

    def __init__(self, schedule: Schedule, workers: int):
        self.schedule, self.workers, self._dead = schedule, workers, set()

    def look(self) -> list[int]:
        """Numbers of the workers that have died since the last look.

        Raises:
            LabError: too many have.
        """
        dead = set(roles.dead_workers())
        spare = {"asynchronous": self.workers - 1, "backup workers": self.schedule.backup}.get(self.schedule.mode, 0)
        if len(dead) > spare:
            names = " and ".join(f"worker {number}" for number in sorted(dead))
            raise LabError(
                f"{names} died, and {self.schedule.mode} training cannot go on without: the others wait. "
                "restart_worker() brings it back, a checkpoint keeps what was learnt"
            )
        new, self._dead = dead - self._dead, dead
        return sorted(new)


class Hands:
    """Threads of the coordinator that hand out batches, one at a time each, and take what became of them.

    Args:
        shared: the model.
        task: what is trained.
        settings: how.
        batches: numbers of the batches to hand out, in order.
    """

    def __init__(self, shared: SharedModel, task, settings: Settings, batches):
        self._shared, self._examples = shared, task.examples
        self._places = order(len(task.examples[0]), settings)
        self._left, self._next = len(batches), iter(batches)
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._results, self._threads = queue.Queue(), []
        self._step = worker_step(shared, task, settings)

    def start(self, number: int) -> None:
        """Start that many threads."""
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def events(self, watch: Watch) -> Iterator[Gradient | int]:
        """What became of the batches, and numbers of workers that died, as it comes; until all is done, or a stop."""
        last_look = time.monotonic()
        while self._left and not stop_requested():
            try:
                result = self._results.get(timeout=SECONDS_BETWEEN_LOOKS)
            except queue.Empty:
                result = None
            if isinstance(result, Exception):
                raise result
            if result is not None:
                self._left -= 1
                yield result
            if time.monotonic() - last_look > SECONDS_BETWEEN_LOOKS:
                yield from watch.look()
                last_look = time.monotonic()

    def stop(self) -> None:
        """Hand out no more batches, and wait for those that are out."""
        self._stopping.set()
        self._shared.stopped.assign(True)
        end = time.monotonic() + SECONDS_FOR_LAST_GRADIENTS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def rest(self) -> Iterator[Gradient]:
        """What became of the batches that were out when the training was stopped."""
        while not self._results.empty():
            result = self._results.get()
            if isinstance(result, Gradient):
                yield result

    def _work(self):
        try:
            first = True
            while True:
                with self._lock:  # so that batches go out in order
                    number = next(self._next, None)
                    if number is None or self._stopping.is_set():
                        return
                    # As tensors of this process: arrays would be made into tensors on the worker, one by one.
                    batch = [tf.constant(array[self._places[number]]) for array in self._examples]
                    which = tf.constant([number, first], tf.int64)
                    result = roles.coordinator().schedule(self._step, args=(which, *batch))
                first = False
                worker, began, read, computed, done, version, update, loss = result.fetch()
                if update != NOT_YET:
                    self._results.put(
                        Gradient(int(worker), int(number), began, read, computed, done, int(version), int(update), loss)
                    )
        except Exception as error:  # it is raised where the events are read
            self._results.put(error)


def worker_step(shared: SharedModel, task, settings: Settings):
    """What a worker does with a batch: a ``tf.function`` for ``ClusterCoordinator.schedule``.

    Returns:
        A function of an int64 tensor (2,), the batch's number and whether to wait for the start, and of the batch's
        tensors. It gives float64 (8,): worker, the four times of a `dgc_lab.schedules.Gradient` as seconds since 1970,
        version, update, loss.
    """

    @tf.function
    def step(which, *batch):
        number, first = which[0], which[1] > 0
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        seed = tf.stack([settings.seed, tf.cast(number, tf.int32)])
        began = now(tf.cond(first, lambda: shared.wait_for_start(worker), lambda: tf.constant(0)))
        with tf.control_dependencies([began]):
            turn = shared.wait_for_turn(worker, number)
        with tf.control_dependencies([turn]):
            version, weights = shared.read()
        read = now(*weights)
        with tf.control_dependencies([read]):
            weights = [tf.identity(weight) for weight in weights]
        loss, gradients = task.gradients(weights, seed, *batch)
        computed = now(sleep(delay(settings.schedule, shared.workers, worker, seed, now(*gradients) - read)))
        with tf.control_dependencies([computed]):
            update = shared.submit(worker, number, version, gradients)
        done = now(update)
        return tf.stack([tf.cast(x, tf.float64) for x in (worker, began, read, computed, done, version, update, loss)])

    return step


def now(*after) -> tf.Tensor:
    """Seconds since 1970, float64, when those tensors are there."""
    with tf.control_dependencies(after):
        return tf.timestamp()


def delay(schedule: Schedule, workers: int, worker, seed, computing) -> tf.Tensor:
    """Seconds that a worker is to wait because it is a straggler.

    Args:
        schedule: who is slow, and how.
        workers: how many there are.
        worker: int scalar.
        seed: int32 (2,), for the random delay.
        computing: float64 scalar, seconds that it has computed.
    """
    slow = {straggler.worker: straggler for straggler in schedule.stragglers}
    each = [slow.get(number, Straggler(number)) for number in range(workers)]
    slowdown = tf.gather(tf.constant([straggler.slowdown for straggler in each], tf.float64), worker)
    seconds = tf.gather(tf.constant([straggler.delay for straggler in each], tf.float64), worker)
    tail = tf.gather(tf.constant([straggler.tail or np.inf for straggler in each], tf.float64), worker)
    # Pareto's distribution with mean 1; with an infinite exponent it is 1 always.
    uniform = 1 - tf.random.stateless_uniform([], seed, dtype=tf.float64)
    random = (1 - 1 / tail) * uniform ** (-1 / tail)
    return (slowdown - 1) * computing + random * seconds


def order(examples: int, settings: Settings) -> np.ndarray:
    """Places of each batch's examples in the training set: int64 (gradients, batch), the same in every mode."""
    return np.random.default_rng(settings.seed).integers(0, examples, (settings.gradients, settings.batch))


def restore(checkpoint, task, settings: Settings) -> dict:
    """The state to begin with: the checkpoint's where there is one, else the task's first weights."""
    weights = task.initial_weights()
    if checkpoint is None or not Path(checkpoint).exists():
        fresh = np.full(settings.gradients, NOT_YET)
        return {"weights": weights, "velocities": [np.zeros_like(w) for w in weights], "updates": fresh, "version": 0}
    with np.load(checkpoint, allow_pickle=False) as file:
        if file["settings"].item() != fingerprint(settings):
            raise ValueError(
                f"checkpoint {checkpoint} is of a training with {file['settings']}, not {fingerprint(settings)}"
            )
        number = len(weights)
        kept = {name: [file[f"{name}{n}"] for n in range(number)] for name in ("weights", "velocities")}
        return kept | {"updates": file["updates"], "version": int(file["version"])}


def save(checkpoint, shared: SharedModel, settings: Settings) -> dict:
    """What the servers hold now; written to the checkpoint, if there is one, whole or not at all."""
    state = shared.snapshot()
    # A batch whose gradient waits in an unfinished sum is to be done again.
    state["updates"] = np.where(state["updates"] >= state["version"], NOT_YET, state["updates"])
    if checkpoint is not None:
        named = {f"{name}{n}": array for name in ("weights", "velocities") for n, array in enumerate(state[name])}
        partly = Path(f"{checkpoint}.part.npz")
        np.savez(partly, settings=fingerprint(settings), updates=state["updates"], version=state["version"], **named)
        partly.replace(checkpoint)
    return state


def fingerprint(settings: Settings) -> str:
    """What two trainings must have in common for one to go on with the other's checkpoint."""
    return f"gradients={settings.gradients}, batch={settings.batch}, seed={settings.seed}"
