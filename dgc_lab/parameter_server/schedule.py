"""Schedules of workers that share a model, and the record of each gradient. Lesson 3."""

from __future__ import annotations

from dataclasses import dataclass

from dgc_lab.common import check_choice, check_instance, check_list, check_number, check_whole

#: Names of the modes of a `Schedule`, which determine when workers wait.
MODES = ("synchronous", "asynchronous", "bounded staleness", "backup workers")
#: Update number of a dropped gradient, which is part of no update.
DROPPED = -1
NOT_YET = -2  # update number of a gradient that has not been submitted


@dataclass(frozen=True)
class Straggler:
    """Worker that is slower than the others.

    Attributes:
        worker: number of the worker, from 0.
        slowdown: factor by which its computing time is longer, at least 1.
        delay: seconds added to each gradient, at least 0.
        tail: None for a constant delay; a number above 1 for a random delay with a heavy tail, from a Pareto
            distribution with this exponent and mean ``delay``.

    Raises:
        ValueError: an attribute is not as described above.

    Example:
        >>> Straggler(1, slowdown=5)
        Straggler(worker=1, slowdown=5, delay=0.0, tail=None)
    """

    worker: int
    slowdown: float = 1.0
    delay: float = 0.0
    tail: float | None = None

    def __post_init__(self):
        check_whole("worker", self.worker, 0, 1023)
        check_number("slowdown", self.slowdown, "at least 1 and finite")
        check_number("delay", self.delay, "at least 0 seconds and finite")
        if self.tail is not None:
            check_number("tail", self.tail, "above 1 and finite, or None")


@dataclass(frozen=True)
class Schedule:
    """Rules for when workers wait for each other.

    Attributes:
        mode: one of `MODES`.

            - synchronous: each update is the mean of as many gradients as there are workers, in batch order; finished
              workers wait for the others.
            - asynchronous: each gradient is an update; no worker waits.
            - bounded staleness: each gradient is an update; a worker waits if it is more than ``bound`` gradients ahead
              of the slowest one (Ho et al. 2013, "stale synchronous parallel").
            - backup workers: an update is the mean of the first ``workers - backup`` gradients; later ones are dropped
              (Chen et al. 2016).
        bound: for bounded staleness, at least 0.
        backup: for backup workers: number of the slowest ones dropped at each update, at least 1.
        stragglers: slower workers.

    Raises:
        ValueError: an attribute is not as described above, or two stragglers have the same number.

    Example:
        >>> Schedule("asynchronous", stragglers=(Straggler(1, slowdown=5),)).mode
        'asynchronous'
    """

    mode: str = "synchronous"
    bound: int = 2
    backup: int = 1
    stragglers: tuple[Straggler, ...] = ()

    def __post_init__(self):
        check_choice("mode", self.mode, MODES)
        check_whole("bound", self.bound, 0, 1_000_000)
        check_whole("backup", self.backup, 1, 1023)
        stragglers = check_list("stragglers", self.stragglers)
        object.__setattr__(self, "stragglers", tuple(stragglers))
        slow = [check_instance("stragglers", straggler, Straggler).worker for straggler in stragglers]
        if len(set(slow)) < len(slow):
            raise ValueError(f"stragglers must name each worker at most once, got {slow}")

    def gradients_per_update(self, workers: int) -> int:
        """Return the number of gradients averaged in one update.

        Raises ValueError if it is below 1, or if a straggler's number is not that of a worker.
        """
        for straggler in self.stragglers:
            if straggler.worker >= workers:
                raise ValueError(f"stragglers must be among workers 0 to {workers - 1}, got {straggler.worker}")
        if self.mode == "synchronous":
            return workers
        if self.mode == "backup workers":
            if self.backup >= workers:
                raise ValueError(f"backup must be below {workers}, the number of workers, got {self.backup}")
            return workers - self.backup
        return 1


@dataclass(frozen=True)
class GradientEvent:
    """Record of one gradient: its worker, times and update. Times are in seconds since the start of the training.

    Attributes:
        worker, batch: numbers of the worker and of the mini-batch.
        began: when the worker received the batch; it then waits for its turn.
        read: when it had read the weights and began to compute.
        computed: when the gradient was computed, after a straggler's delay.
        done: when the servers had accepted or dropped the gradient.
        version: number of updates in the weights that the worker read.
        update: number, from 0, of the update that includes the gradient; `DROPPED` if it came too late.
        loss: mean loss of the batch at the weights that the worker read; NaN in a simulation.

    Example:
        >>> GradientEvent(1, 7, 0.5, 0.5, 0.8, 0.9, version=4, update=6, loss=0.3).staleness
        2
    """

    worker: int
    batch: int
    began: float
    read: float
    computed: float
    done: float
    version: int
    update: int
    loss: float

    @property
    def staleness(self) -> int:
        """Number of updates between reading the weights and the update that includes the gradient.

        Raises ValueError if the gradient was dropped.
        """
        if self.update == DROPPED:
            raise ValueError(
                f"update must be the number of an update, got {DROPPED}: a dropped gradient has no staleness"
            )
        return self.update - self.version


def draw_delay(straggler: Straggler, random) -> float:
    """Return the seconds that a straggler adds to its next gradient.

    They are drawn from a ``numpy.random.Generator`` if the straggler has a tail.
    """
    if straggler.tail is None:
        return straggler.delay
    # The mean of a Pareto distribution is tail / (tail - 1) times its minimum; numpy's pareto() starts at 0 instead.
    return float(straggler.delay * (straggler.tail - 1) / straggler.tail * (1 + random.pareto(straggler.tail)))
