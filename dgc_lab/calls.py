"""One function that runs on all ranks, seen from the notebook: its results, its stream, and what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from dgc_lab.engines import Engines
from dgc_lab.errors import LabError
from dgc_lab.rank import STOP_SIGNAL, Outcome, Problem

TRACEBACK_LINES = 8
SECONDS_BETWEEN_LOOKS = 0.02
SECONDS_BETWEEN_STOPS = 0.5
SECONDS_FOR_LAST_ITEMS = 30


class RankDied(LabError):
    """The process of a rank is gone.

    Attributes:
        ranks: which ones, at least one.
    """

    def __init__(self, ranks: list[int]):
        which = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        super().__init__(f"{which} died; the others were put down. restart() brings all ranks back")
        self.ranks = ranks


class RankFailed(LabError):
    """A function raised on a rank, or the ranks did not do what they were asked to.

    Attributes:
        problems: by rank, the `dgc_lab.rank.Problem` with the exception's class, message and traceback.
    """

    def __init__(self, message: str, problems: dict[int, Problem] | None = None):
        super().__init__(message)
        self.problems = problems or {}


class Call:
    """A function on its way through all ranks.

    Args:
        engines: where it runs.
        how: `dgc_lab.rank.call` or `dgc_lab.rank.stream`.
        payloads: one per rank, cloudpickle of ``(function, args, kwargs)``.
        grace: seconds that ranks get to follow a stop, or to come back when one of them has raised.

    Attributes:
        outcomes: by rank, the `dgc_lab.rank.Outcome` of those that have ended.
    """

    def __init__(self, engines: Engines, how: Callable, payloads: list[bytes], grace: float):
        self.engines, self.grace, self.outcomes = engines, grace, {}
        self._stop_since = None
        views = [engines.client[number] for number in engines.ids]
        self._results = [view.apply_async(how, payload) for view, payload in zip(views, payloads, strict=True)]
        self._news = [engines.client.metadata[result.msg_ids[0]] for result in self._results]
        self._taken = 0

    def finished(self) -> bool:
        """Whether every rank has ended."""
        for rank, result in enumerate(self._results):
            if rank not in self.outcomes and result.ready():
                try:
                    self.outcomes[rank] = cloudpickle.loads(result.get(0))
                except Exception as error:  # of ipyparallel: the engine died, or cannot import dgc_lab
                    kind = getattr(error, "ename", type(error).__name__)
                    if kind == "EngineError":
                        self.engines.lost.add(rank)
                    self.outcomes[rank] = Outcome(problem=Problem(kind, str(error), str(error)))
        return len(self.outcomes) == len(self._results)

    def problems(self) -> dict[int, Problem]:
        """What was raised, by rank."""
        return {rank: outcome.problem for rank, outcome in sorted(self.outcomes.items()) if outcome.problem}

    def follow(self, deadline: float | None = None) -> Iterator[Any]:
        """Yield rank 0's items until every rank has ended, with an eye on death, failure and stop.

        Args:
            deadline: on the clock of ``time.monotonic``; after it the ranks are put down.

        Raises:
            RankDied: the process of a rank ended.
            RankFailed: a stop was asked for and not followed in time.
            LabError: the deadline passed, items were lost, the controller died, or another thread stopped the ranks.
        """
        failed_since, finished_since, last_signal = None, None, time.monotonic()
        while True:
            yield from self._items()
            finished = self.finished()  # before the look for the dead: a result can tell of a death first
            look_for_dead(self.engines)
            now = time.monotonic()
            if finished:
                if self._taken == self.outcomes[0].batches:
                    return
                # A stream's items travel apart from the results, and can come after them.
                finished_since = finished_since or now
                if now > finished_since + SECONDS_FOR_LAST_ITEMS:
                    raise LabError(f"{self.outcomes[0].batches - self._taken} batches of rank 0's items were lost")
                time.sleep(SECONDS_BETWEEN_LOOKS)
                continue
            if deadline and now > deadline:
                self.engines.put_down("the ranks were not ready in time and were put down")
                raise LabError(f"{self.engines.broken}. restart() tries again")
            failed_since = failed_since or (now if self.problems() else None)
            if failed_since and now > failed_since + self.grace:
                self.engines.put_down("a rank failed, the others did not come back and were put down")
                return
            if self._stop_since and now > self._stop_since + self.grace:
                self.engines.put_down(f"the ranks did not stop within {self.grace:g} s and were put down")
                raise RankFailed(f"{self.engines.broken}. restart() brings them back")
            if self._stop_since and now > last_signal + SECONDS_BETWEEN_STOPS:
                self.engines.signal(STOP_SIGNAL)  # the first may have come before the function began
                last_signal = now
            # All may have ended by now: another thread, in request_stop, looks too.
            running = (result for rank, result in enumerate(self._results) if rank not in self.outcomes)
            next(running, self._results[0]).wait(SECONDS_BETWEEN_LOOKS)

    def request_stop(self) -> None:
        """Ask the ranks to stop; `follow` asks again and puts them down after the time of grace."""
        if not self.finished():
            self._stop_since = self._stop_since or time.monotonic()
            self.engines.signal(STOP_SIGNAL)

    def stop(self) -> None:
        """Ask for a stop and wait for it; what the ranks still yield or raise is not wanted any more."""
        try:
            self.request_stop()
            for _ in self.follow():
                pass
        except KeyboardInterrupt:
            self.engines.put_down("the ranks were interrupted twice and put down")
            raise

    def results(self) -> list[Any]:
        """What the function returned, in rank order, when every rank has ended.

        Raises:
            RankFailed: it raised on a rank.
        """
        if problems := self.problems():
            after = f"\n{self.engines.broken}. restart() brings all ranks back" if self.engines.broken else ""
            raise RankFailed(explain(problems, len(self._results)) + after, problems)
        return [self.outcomes[rank].value for rank in range(len(self._results))]

    def end(self) -> None:
        """Print what the function printed, and let ipyparallel forget it; it would keep the results for ever."""
        if self.finished() and not self.engines.broken and self.engines.client:
            for rank, (result, news) in enumerate(zip(self._results, self._news, strict=True)):
                result.wait_for_output(1)
                for line in (news["stdout"] or "").splitlines():
                    print(f"[rank {rank}] {line}")
            self.engines.client.purge_local_results([number for result in self._results for number in result.msg_ids])

    def _items(self):
        # ipyparallel's own thread adds batches, this one takes them in turn.
        while (batch := self._news[0]["data"].pop(f"batch {self._taken}", None)) is not None:
            self._taken += 1
            yield from cloudpickle.loads(batch)


def look_for_dead(engines: Engines) -> None:
    """Put all ranks down when one of them, or the controller, is gone.

    Raises:
        RankDied: a rank is gone.
        LabError: the controller is gone, or all was stopped.
    """
    if engines.client is None:
        raise LabError("the ranks were stopped. start() starts them")
    if dead := engines.dead():
        error = RankDied(dead)
        engines.put_down(str(error).split(";")[0])
        raise error
    if engines.orphaned():
        engines.put_down("ipyparallel's controller died, the ranks were put down")
        raise LabError(f"{engines.broken}. restart() brings them back")


def explain(problems: dict[int, Problem], size: int) -> str:
    """Say which rank raised what, with the last lines of the first one's traceback.

    Args:
        problems: by rank, at least one.
        size: number of ranks.

    Example:
        >>> same = Problem("ValueError", "steps must be at least 1, got 0", "...")
        >>> explain({0: same, 1: same}, 2)
        'every rank raised ValueError: steps must be at least 1, got 0'
    """
    first, *others = problems.values()
    if len(problems) == size and all((p.kind, p.message) == (first.kind, first.message) for p in others):
        return f"{'every rank' if size > 1 else 'rank 0'} raised {first.kind}: {first.message}"
    lines = [f"rank {rank} raised {problem.kind}: {problem.message}" for rank, problem in problems.items()]
    trace = first.trace.strip().splitlines()[-TRACEBACK_LINES:]
    return "\n".join([*lines, f"Last lines of the traceback on rank {min(problems)}:", *trace])
