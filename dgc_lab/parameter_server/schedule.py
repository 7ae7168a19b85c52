"""Who computes when: the schedules of workers that share a model, and the record of every gradient. Lesson 3."""

from __future__ import annotations

from dataclasses import dataclass

from dgc_lab.common import check_choice, check_instance, check_list, check_number, check_whole

#: Who waits for whom; a `Schedule` and an `AsyncConfig` take the name.
MODES = ("synchronous", "asynchronous", "bounded staleness", "backup workers")
#: In place of the number of an update: the gradient went into none.
DROPPED = -1
NOT_YET = -2  # the same, where it has not been handed in


@dataclass(frozen=True)
class Straggler:
    """A worker that is slower than the others.

    Attributes:
        worker: its number, from 0.
        slowdown: its computing time is this many times as long, at least 1.
        delay: seconds added to each gradient, at least 0.
        tail: None for the same delay every time; a number above 1 for a random one with a heavy tail: Pareto's
            distribution with this exponent and with mean ``delay``.

    Raises:
        ValueError: an attribute is not as said above.

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
    """When workers wait for each other.

    Attributes:
        mode: one of `MODES`.

            - synchronous: every update is the mean of as many gradients as there are workers, in the order of batches;
              who is ready waits for the others.
            - asynchronous: every gradient is an update; nobody waits.
            - bounded staleness: every gradient is an update; a worker waits that is more than ``bound`` gradients ahead
              of the slowest (Ho et al. 2013, "stale synchronous parallel").
            - backup workers: an update is the mean of the first ``workers - backup`` gradients; those that come later
              are dropped (Chen et al. 2016).
        bound: for bounded staleness, at least 0.
        backup: for backup workers: how many of the slowest are dropped at each update, at least 1.
        stragglers: slower workers.

    Raises:
        ValueError: an attribute is not as said above.

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
        slow = [check_instance("stragglers", straggler, Straggler).worker for straggler in stragglers]
        if len(set(slow)) < len(slow):
            raise ValueError(f"stragglers must name each worker once, got {slow}")

    def gradients_an_update(self, workers: int) -> int:
        """How many gradients are averaged in one update; a ValueError if none, or if a straggler is no worker."""
        for straggler in self.stragglers:
            if straggler.worker >= workers:
                raise ValueError(f"stragglers must be among workers 0 to {workers - 1}, got {straggler.worker}")
        if self.mode == "synchronous":
            return workers
        if self.mode == "backup workers":
            if self.backup >= workers:
                raise ValueError(f"backup must be below the {workers} workers, got {self.backup}")
            return workers - self.backup
        return 1


@dataclass(frozen=True)
class GradientEvent:
    """One gradient: who computed it, when, and what became of it. Times are in seconds since the training began.

    Attributes:
        worker, batch: numbers of the worker and of the mini-batch.
        began: when the worker had the batch; it then waits for its turn.
        read: when it began to compute, with the weights that it had read.
        computed: when it had the gradient; a straggler's delay is before it.
        done: when the servers had taken the gradient.
        version: number of updates in the weights that it read.
        update: number, from 0, of the update that the gradient went into; `DROPPED` where it came too late.
        loss: mean loss of the batch at the weights that it read; NaN in a simulation.

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
        """Updates applied between the reading of the weights and the update with this gradient.

        A ValueError where it went into none.
        """
        if self.update == DROPPED:
            raise ValueError(f"update must be that of the gradient, got {DROPPED}: a dropped one has no staleness")
        return self.update - self.version


def draw_delay(straggler: Straggler, random) -> float:
    """Seconds that a straggler adds to its next gradient, drawn from a ``numpy.random.Generator`` if it has a tail."""
    if straggler.tail is None:
        return straggler.delay
    # Pareto's mean is tail / (tail - 1) times its least value; numpy's pareto() starts at 0 instead of that value.
    return float(straggler.delay * (straggler.tail - 1) / straggler.tail * (1 + random.pareto(straggler.tail)))
