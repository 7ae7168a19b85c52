"""Discrete-event simulation of the schedules, for more workers than one machine can run. Lesson 3, section 9.

The protocol is that of real training, but no gradients are computed, so records have no loss. In synchronous training
each simulated worker contributes one gradient to an update. A real worker that is late can leave its batch to another.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import simpy

from dgc_lab.common import (
    check_choice,
    check_instance,
    check_list,
    check_number,
    check_some,
    check_text,
    check_whole,
)
from dgc_lab.parameter_server.metrics import check_runs, summary_row, table_of
from dgc_lab.parameter_server.schedule import DROPPED, GradientEvent, Schedule, Straggler, draw_delay

MAX_WORKERS = 1024
MAX_GRADIENTS = 1_000_000


@dataclass(frozen=True)
class StepCosts:
    """Durations of the parts of a step in seconds: for each, one number or a sequence of measured ones to draw from.

    Raises:
        ValueError: an attribute is empty or contains a negative or infinite number, or ``computing`` contains 0.

    Example:
        >>> StepCosts(computing=0.01, dispatch=[0.001, 0.002])
        StepCosts(computing=(0.01,), reading=(0.0,), applying=(0.0,), dispatch=(0.001, 0.002))
    """

    computing: float | tuple[float, ...]  # to compute a gradient, without stragglers; above 0
    reading: float | tuple[float, ...] = (0.0,)  # to read the weights, holding the servers' lock
    applying: float | tuple[float, ...] = (0.0,)  # to submit a gradient, holding the servers' lock
    dispatch: float | tuple[float, ...] = (0.0,)  # from the end of a gradient until the worker has the next batch

    def __post_init__(self):
        for name, given in list(vars(self).items()):
            if isinstance(given, str | bytes) or not isinstance(given, numbers.Real | Iterable):
                raise ValueError(f"{name} must be a number or a list of numbers, got {given!r}")
            values = [given] if isinstance(given, numbers.Real) else check_some(name, check_list(name, given))
            allowed = f"{'above' if name == 'computing' else 'at least'} 0 seconds and finite"
            object.__setattr__(self, name, tuple(float(check_number(name, value, allowed)) for value in values))

    @classmethod
    def measured(cls, *runs: list[GradientEvent], slowed: Iterable[int] = ()) -> StepCosts:
        """Derive the costs from the records of one or more real runs, except those of workers that were ``slowed``.

        Times under the lock come only from reads and submissions during which no other worker finished one.
        Asynchronous runs have the most of these uncontended reads and submissions. The others may include waiting,
        which the simulation adds by itself.

        Raises:
            ValueError: there is no run, or one has no records, no worker with two gradients, or no such reads or
                submissions.

        Example:
            >>> run = [GradientEvent(0, n, 5 * n, 5 * n + 1, 5 * n + 3, 5 * n + 4, n, n, 2.3) for n in range(3)]
            >>> StepCosts.measured(run)  # doctest: +ELLIPSIS
            StepCosts(computing=(2.0, 2.0, 2.0), reading=(1.0, 1.0, 1.0), applying=(1.0, 1.0, 1.0), dispatch=(1.0, 1.0))
        """
        slowed = set(slowed)
        costs = [_costs(records, slowed) for records in check_some("runs", runs)]
        return cls(**{name: np.concatenate([run[name] for run in costs]) for name in costs[0]})


def _costs(records: list[GradientEvent], slowed: set[int]) -> dict[str, pd.Series]:
    """Return the costs of a run's workers that were not slowed, by the fields of `StepCosts`."""
    frame = table_of(records).sort_values("began", kind="stable")
    ends = np.sort(np.concatenate([frame["read"], frame["done"]]))
    frame = frame[~frame["worker"].isin(slowed)]
    reading = _uncontended(frame["began"], frame["read"], ends)
    applying = _uncontended(frame["computed"], frame["done"], ends)
    if not len(reading) or not len(applying):
        raise ValueError(
            "records must have reads and submissions during which no other worker finished one, got "
            f"{len(reading)} and {len(applying)} of {len(frame)}; measure an asynchronous run of few workers"
        )
    gaps = (frame["began"] - frame.groupby("worker")["done"].shift()).dropna().clip(lower=0)
    if not len(gaps):
        raise ValueError(f"records must have two gradients of one worker, got {len(frame)}, one per worker")
    return {"computing": frame["computed"] - frame["read"], "reading": reading, "applying": applying, "dispatch": gaps}


def _uncontended(starts: pd.Series, stops: pd.Series, ends) -> pd.Series:
    """Return the lengths of the spans that contain none of the sorted ``ends`` except their own."""
    return (stops - starts)[np.searchsorted(ends, stops, "left") == np.searchsorted(ends, starts, "right")]


def simulate(schedule: Schedule, workers: int, gradients: int, costs: StepCosts, seed: int = 0) -> list[GradientEvent]:
    """Simulate a training run on a schedule, and return its records.

    Args:
        schedule, costs: when workers wait, which ones are slow, and how long each part of a step takes.
        workers: number of workers, from 1 to 1024.
        gradients: total number of mini-batches, including those whose gradients are dropped; at most a million.
        seed: at least 0; the same seed gives the same records.

    Returns:
        A `GradientEvent` for each mini-batch, in the order in which they were done; loss is NaN. Gradients in a sum
        that is incomplete at the end count as dropped.

    Raises:
        ValueError: an argument is not as described above, or the schedule does not fit the number of workers.

    Example:
        >>> slow = Schedule("asynchronous", stragglers=(Straggler(1, slowdown=2.5),))
        >>> records = simulate(slow, workers=2, gradients=4, costs=StepCosts(1.0, applying=0.1))
        >>> [(record.worker, round(record.done, 1), record.staleness) for record in records]
        [(0, 1.1, 0), (0, 2.2, 0), (1, 2.6, 2), (0, 3.3, 1)]
    """
    check_instance("schedule", schedule, Schedule)
    check_instance("costs", costs, StepCosts)
    workers = check_whole("workers", workers, 1, MAX_WORKERS)
    gradients = check_whole("gradients", gradients, 1, MAX_GRADIENTS)
    seed = check_whole("seed", seed, 0, 2**63 - 1)
    return _Training(schedule, workers, gradients, costs, seed).run()


class _Training:
    """State of the servers, the turns it determines, and the workers as simpy processes."""

    def __init__(self, schedule, workers, gradients, costs, seed):
        self.schedule, self.costs, self.random = schedule, costs, np.random.default_rng(seed)
        self.needed = schedule.gradients_per_update(workers)
        self.stragglers = {straggler.worker: straggler for straggler in schedule.stragglers}
        self.clock = simpy.Environment()
        self.lock = simpy.Resource(self.clock)
        self.batches = iter(range(gradients))
        self.version, self.summed = 0, 0
        self.counts = [0] * workers  # gradients that each worker has submitted
        self.slowest = 0  # minimum of counts
        self.summed_for = [-1] * workers  # last version to which each worker contributed
        self.turns = self.clock.event()
        self.records = []

    def run(self) -> list[GradientEvent]:
        for worker in range(len(self.counts)):
            self.clock.process(self.work(worker))
        self.clock.run()
        return [replace(record, update=DROPPED) if record.update == self.version else record for record in self.records]

    def work(self, worker: int):
        """Run one worker, batch after batch; it reserves the next batch as soon as one is done."""
        straggler = self.stragglers.get(worker, Straggler(worker))
        for batch in self.batches:
            yield self.timeout(self.costs.dispatch)
            began = self.clock.now
            while self.must_wait(worker):  # not forever: when it took this batch, all others had one too
                yield self.turns
            with self.lock.request() as held:
                yield held
                yield self.timeout(self.costs.reading)
                version = self.version
            read = self.clock.now
            yield self.timeout(self.costs.computing, straggler.slowdown, draw_delay(straggler, self.random))
            computed = self.clock.now
            with self.lock.request() as held:
                yield held
                yield self.timeout(self.costs.applying)
                update = self.submit(worker, version)
            times = began, read, computed, self.clock.now
            self.records.append(GradientEvent(worker, batch, *times, version, update, math.nan))

    def timeout(self, seconds: tuple[float, ...], times: float = 1.0, more: float = 0.0):
        """Return a simpy event after one of these durations, drawn at random if there are several."""
        drawn = seconds[self.random.integers(len(seconds))] if len(seconds) > 1 else seconds[0]
        return self.clock.timeout(times * drawn + more)

    def must_wait(self, worker: int) -> bool:
        if self.schedule.mode == "asynchronous":
            return False
        if self.schedule.mode == "bounded staleness":
            return self.counts[worker] - self.slowest > self.schedule.bound
        return self.summed_for[worker] == self.version

    def submit(self, worker: int, version: int) -> int:
        """Submit a gradient to the servers, and return the number of its update."""
        update, slowest = self.version, self.slowest
        self.counts[worker] += 1
        self.slowest = min(self.counts)
        if self.schedule.mode in ("synchronous", "backup workers") and version != update:
            return DROPPED
        self.summed_for[worker] = update
        self.summed += 1
        if self.summed == self.needed:
            self.summed, self.version = 0, update + 1
        turn = self.slowest > slowest if self.schedule.mode == "bounded staleness" else self.summed == 0
        if turn:
            self.turns.succeed()  # waiting workers check again whether they must
            self.turns = self.clock.event()
        return update


def sweep_workers(
    schedules: dict[str, Schedule],
    costs: StepCosts,
    workers: Sequence[int] = tuple(2**power for power in range(1, 11)),
    gradients_each: int = 20,
) -> pd.DataFrame:
    """Simulate ``schedules``, by name, for several numbers of ``workers``; return a table with rows of `scale_row`.

    ``costs`` are the same for all numbers of workers. Each worker has ``gradients_each`` mini-batches on average.
    Raises ValueError if there is nothing to simulate, or under the conditions of `simulate`.

    Example:
        >>> sweep_workers({"synchronous": Schedule()}, StepCosts(0.5), workers=[4])["gradients/s"].item()
        8.0
    """
    workers = check_list("workers", workers)
    points = [(name, schedule, count) for name, schedule in schedules.items() for count in workers]
    if not points:
        raise ValueError("schedules and workers must not be empty, got nothing to simulate")
    check_whole("gradients_each", gradients_each, 1, MAX_GRADIENTS // MAX_WORKERS)
    for _, schedule, count in points:
        check_instance("schedules", schedule, Schedule)
        schedule.gradients_per_update(check_whole("workers", count, 1, MAX_WORKERS))
    return pd.DataFrame(
        scale_row(name, simulate(schedule, count, gradients_each * count, costs), count, "simulated")
        for name, schedule, count in points
    )


def scale_row(name: str, records: list[GradientEvent], workers: int, source: str) -> dict:
    """Return a run as a row: its schedule's name, its number of workers, metrics of its ``records``, and its source.

    The source is ``"measured"`` or ``"simulated"``. Raises ValueError if it is neither, or if there are no records.

    Example:
        >>> run = [GradientEvent(0, n, n, n, n + 0.5, n + 1, version=n, update=n, loss=2.3) for n in range(4)]
        >>> row = scale_row("asynchronous", run, workers=1, source="measured")
        >>> row["gradients/s"], row["mean staleness"], row["idle share"]
        (1.0, 0.0, 0.5)
    """
    check_text("name", name)
    check_whole("workers", workers, 1)
    check_choice("source", source, ("measured", "simulated"))
    check_runs({name: records})
    found = summary_row(records, batch_size=1)
    columns = ("gradients/s", "updates/s", "mean staleness", "idle share")
    return {"schedule": name, "workers": workers, **{key: found[key] for key in columns}, "source": source}
