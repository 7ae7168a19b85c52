"""The schedules of `dgc_lab.parameter_server.schedule` as a discrete-event simulation, for as many workers as no single machine holds.

The protocol is that of the real training: a worker takes a batch, waits for its turn, reads version and weights under
the servers' lock, computes, and hands its gradient in under the same lock. In synchronous training each worker gives
one gradient to an update here; a real one that is late to take its batch can leave it to another. What is simulated is
time; no gradient is computed, so that the records have staleness but no loss.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dgc_lab.common import check_choice, check_whole
from dgc_lab.parameter_server.metrics import check_runs, figures
from dgc_lab.parameter_server.schedule import DROPPED, GradientEvent, Schedule, Straggler, draw_delay
from dgc_lab.parameter_server.step_costs import StepCosts

if TYPE_CHECKING:
    import pandas as pd

MOST_WORKERS = 1024
MOST_GRADIENTS = 1_000_000


def simulate(schedule: Schedule, workers: int, gradients: int, costs: StepCosts, seed: int = 0) -> list[GradientEvent]:
    """Let workers compute that many gradients on a schedule, in simulated time.

    Args:
        schedule: who waits for whom, and who is slow.
        workers: how many, 1 to 1024.
        gradients: mini-batches to compute in all, those included whose gradients are dropped.
        costs: how long things take.
        seed: at least 0; the same one gives the same records.

    Returns:
        A `GradientEvent` for each mini-batch in the order in which they were done; loss is NaN. A gradient in a sum that
        the end left unfinished counts as dropped.

    Raises:
        ValueError: an argument is not as said above, or the schedule does not fit the number of workers.

    Example:
        >>> slow = Schedule("asynchronous", stragglers=(Straggler(1, slowdown=2.5),))
        >>> records = simulate(slow, workers=2, gradients=4, costs=StepCosts(1.0, applying=0.1))
        >>> [(record.worker, round(record.done, 1), record.staleness) for record in records]
        [(0, 1.1, 0), (0, 2.2, 0), (1, 2.6, 2), (0, 3.3, 1)]
    """
    check_whole("workers", workers, 1, MOST_WORKERS)
    schedule.gradients_an_update(workers)
    check_whole("gradients", gradients, 1, MOST_GRADIENTS)
    check_whole("seed", seed, 0, 2**63 - 1)
    return _Training(schedule, workers, gradients, costs, seed).run()


class _Training:
    """The servers' state, the turns that follow from it, and the workers as simpy's processes."""

    def __init__(self, schedule, workers, gradients, costs, seed):
        import simpy

        self.schedule, self.costs, self.random = schedule, costs, np.random.default_rng(seed)
        self.needed = schedule.gradients_an_update(workers)
        self.stragglers = {straggler.worker: straggler for straggler in schedule.stragglers}
        self.clock = simpy.Environment()
        self.lock = simpy.Resource(self.clock)
        self.coordinator = simpy.Resource(self.clock, 1 if costs.serial_dispatch else workers)
        self.batches, self.unfinished = iter(range(gradients)), gradients
        self.version, self.summed = 0, 0
        self.counts = [0] * workers  # gradients that each has handed in
        self.slowest = 0  # the least of them
        self.summed_for = [-1] * workers  # the last version that each has contributed to
        self.turns, self.waiting, self.released = self.clock.event(), 0, False
        self.records = []

    def run(self) -> list[GradientEvent]:
        for worker in range(len(self.counts)):
            self.clock.process(self.work(worker))
        self.clock.run()
        return [replace(record, update=DROPPED) if record.update == self.version else record for record in self.records]

    def work(self, worker: int):
        """One worker, a batch after the other; the next one is its own from when the last was done."""
        for batch in self.batches:
            with self.coordinator.request() as held:
                yield held
                yield self.takes(self.costs.dispatch)
            began = self.clock.now
            while self.must_wait(worker):
                self.waiting += 1
                self.release_if_stuck()
                yield self.turns
            with self.lock.request() as held:
                yield held
                yield self.takes(self.costs.reading)
                version = self.version
            read = self.clock.now
            straggler = self.stragglers.get(worker, Straggler(worker))
            yield self.takes(self.costs.computing, straggler.slowdown, draw_delay(straggler, self.random))
            computed = self.clock.now
            with self.lock.request() as held:
                yield held
                yield self.takes(self.costs.applying)
                update = self.hand_in(worker, version)
            done = self.clock.now
            self.records.append(GradientEvent(worker, batch, began, read, computed, done, version, update, math.nan))
            self.unfinished -= 1
            self.release_if_stuck()

    def takes(self, seconds: tuple[float, ...], times: float = 1.0, more: float = 0.0):
        """A simpy event after one of these times, drawn at random where there are several."""
        drawn = seconds[self.random.integers(len(seconds))] if len(seconds) > 1 else seconds[0]
        return self.clock.timeout(times * drawn + more)

    def must_wait(self, worker: int) -> bool:
        if self.released or self.schedule.mode == "asynchronous":
            return False
        if self.schedule.mode == "bounded staleness":
            return self.counts[worker] - self.slowest > self.schedule.bound
        return self.summed_for[worker] == self.version

    def hand_in(self, worker: int, version: int) -> int:
        """The servers take a gradient; returns the number of its update."""
        update, slowest = self.version, self.slowest
        self.counts[worker] += 1
        self.slowest = min(self.counts)
        if self.schedule.mode in ("synchronous", "backup workers") and version != update:
            return DROPPED
        self.summed_for[worker] = update
        self.summed += 1
        if self.summed == self.needed:
            self.summed, self.version = 0, update + 1
        if self.slowest > slowest if self.schedule.mode == "bounded staleness" else self.summed == 0:
            self.next_turns()
        return update

    def next_turns(self) -> None:
        """Who waits looks again whether it must."""
        passed, self.turns, self.waiting = self.turns, self.clock.event(), 0
        passed.succeed()

    def release_if_stuck(self) -> None:
        """Nobody is left who could end the waiting when those who wait hold all batches that are left: they go on."""
        if self.waiting == self.unfinished:
            self.released = True
            self.next_turns()


def sweep_workers(
    schedules: dict[str, Schedule],
    costs: StepCosts,
    workers=tuple(2**power for power in range(1, 11)),
    gradients_each: int = 20,
    seed: int = 0,
    progress: bool = False,
) -> pd.DataFrame:
    """Simulate schedules for several numbers of workers.

    Args:
        schedules: by the name that its rows get.
        costs: how long things take; with several workers as with one.
        workers: the numbers of workers.
        gradients_each: mini-batches for each worker, on average.
        seed: as for `simulate`.
        progress: whether to show a bar.

    Returns:
        A table of `scale_row`, ``source`` being ``"simulated"``.

    Raises:
        ValueError: nothing to simulate, or as `simulate`.

    Example:
        >>> sweep_workers({"synchronous": Schedule()}, StepCosts(0.5), workers=[4])["gradients/s"].item()
        8.0
    """
    import pandas as pd
    from tqdm.auto import tqdm

    points = [(name, schedule, count) for name, schedule in schedules.items() for count in workers]
    if not points:
        raise ValueError("schedules and workers must not be empty, got nothing to simulate")
    check_whole("gradients_each", gradients_each, 1, MOST_GRADIENTS // MOST_WORKERS)
    for _, schedule, count in points:
        schedule.gradients_an_update(check_whole("workers", count, 1, MOST_WORKERS))
    rows = []
    for name, schedule, count in tqdm(points, disable=not progress, unit="run"):
        records = simulate(schedule, count, gradients_each * count, costs, seed)
        rows.append(scale_row(name, records, count, "simulated"))
    return pd.DataFrame(rows)


def scale_row(name: str, records: list[GradientEvent], workers: int, source: str) -> dict:
    """A run as a point among those of other numbers of workers: its name and source, and figures of `summary`.

    Args:
        name: of the schedule.
        records: the run's.
        workers: how many took part.
        source: ``"measured"`` or ``"simulated"``.
    """
    check_choice("source", source, ("measured", "simulated"))
    check_runs({name: records})
    found = figures(records, batch_size=1)
    kept = ("gradients/s", "updates/s", "mean staleness", "idle share")
    return {"schedule": name, "workers": workers, **{key: found[key] for key in kept}, "source": source}
