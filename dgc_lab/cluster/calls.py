"""Function calls on the processes of a cluster, seen from the notebook: results, streamed items, errors.

Lessons 3, 5, 7 and 8.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from dgc_lab.cluster.rank import STOP_SIGNAL, CallResult, RemoteError
from dgc_lab.common import LabError

TRACEBACK_LINES = 8
SECONDS_BETWEEN_POLLS = 0.02
SECONDS_BETWEEN_STOPS = 0.5
SECONDS_FOR_LAST_ITEMS = 30
GRACES_FOR_A_SLOW_READER = 9


class ProcessDied(LabError):
    """Error raised if a process of a cluster died; ``names`` lists the dead ones, as in ``["rank 1"]``.

    The other processes are stopped. The message includes the crash reason ``how`` if it is known, as in "rank 1 died
    (Segmentation fault)".
    """

    def __init__(self, names: list[str], how: str = ""):
        by = f" ({how})" if how else ""
        super().__init__(f"{', '.join(names)} died{by}; the others were stopped. restart() brings all back")
        self.names = names


class FunctionFailed(LabError):
    """Error raised if a function raised an exception on a process, or did not stop.

    ``problems`` maps process numbers to exceptions with ``kind`` and ``trace``. ``after`` is a sentence if all
    processes were killed afterwards, otherwise empty; the message includes it.
    """

    def __init__(self, message: str, problems: dict[int, RemoteError] | None = None, after: str = ""):
        super().__init__(message)
        self.problems, self.after = problems or {}, after


class RankDied(ProcessDied):
    """`ProcessDied` for Horovod ranks."""


class RankFailed(FunctionFailed):
    """`FunctionFailed` for Horovod ranks; ``problems`` maps ranks to exceptions."""


class Call:
    """One call of a function on the processes ``names``; subclasses define how it is transported.

    A subclass says whether the function has ended on all processes (``finished``), yields the items received since the
    last poll (``_items``), counts those still in flight at the end (``_missing``), waits for an event (``_wait``), and
    cleans up (``end``). Processes get ``grace`` seconds to stop on request, or to return after another one has raised.
    """

    def __init__(self, processes, names: list[str], grace: float):
        self.processes, self.names, self.grace = processes, names, grace
        self.outcomes: dict[int, CallResult] = {}  # by process number, once a process has ended
        self._stopped = False

    def problems(self) -> dict[int, RemoteError]:
        """Return the exceptions raised so far, by process number."""
        return {number: outcome.problem for number, outcome in sorted(self.outcomes.items()) if outcome.problem}

    def follow(self, deadline: float | None = None) -> Iterator[Any]:
        """Yield items until the function has ended on all processes; kill the processes if the deadline passes."""
        failed_since, stopped_since, finished_since = None, None, None
        last_signal, patience = time.monotonic(), self.grace
        while True:
            finished = self.finished()  # before `raise_if_dead`: a result may be the first sign of a death
            for item in self._items():
                given, finished_since = time.monotonic(), None
                yield item
                if failed_since or stopped_since:
                    # The consumer's time does not count, up to a limit: some processes yield items endlessly.
                    patience += time.monotonic() - given
            patience = min(patience, (1 + GRACES_FOR_A_SLOW_READER) * self.grace)
            self.processes.raise_if_dead()
            now = time.monotonic()
            if finished:
                if not self._missing():
                    return
                # Items may travel separately and arrive after the results: each one restarts the time limit.
                finished_since = finished_since or now
                if now > finished_since + SECONDS_FOR_LAST_ITEMS:
                    raise LabError(f"{self._missing()} batches of {self.names[0]}'s items were lost")
                time.sleep(SECONDS_BETWEEN_POLLS)
                continue
            what = f"the {self.processes.what}"
            if deadline and now > deadline:
                self.processes.terminate(f"{what} were not ready in time and were killed")
                raise LabError(f"{self.processes.broken}. restart() tries again")
            failed_since = failed_since or (now if self.problems() else None)
            if failed_since and now > failed_since + patience:
                self.processes.terminate(f"one of {what} failed; the others did not return and were killed")
                return
            # Count from this poll: the consumer may take longer for items from before the stop.
            stopped_since = stopped_since or (now if self._stopped else None)
            if stopped_since and now > stopped_since + patience:
                self.processes.terminate(f"{what} did not stop within {self.grace:g} s and were killed")
                raise self.processes.failed(f"{self.processes.broken}. restart() brings them back")
            if stopped_since and now > last_signal + SECONDS_BETWEEN_STOPS:
                self.processes.signal(STOP_SIGNAL)  # the first may have arrived before the function began
                last_signal = now
            self._wait(SECONDS_BETWEEN_POLLS)

    def request_stop(self) -> None:
        """Ask the processes to stop; `follow` repeats the request and kills them after ``grace`` seconds."""
        if not self.finished():
            self._stopped = True
            self.processes.signal(STOP_SIGNAL)

    def stop(self) -> None:
        """Ask the processes to stop and wait until they have; discard further items and exceptions."""
        if self.processes.closed:
            return  # all processes were stopped, as when the program ends with an open stream
        try:
            self.request_stop()
            for _ in self.follow():
                pass
        except KeyboardInterrupt:
            self.processes.terminate(f"the {self.processes.what} were interrupted twice and killed")
            raise

    def results(self) -> list[Any]:
        """Return the results in process order, once all processes have ended; raise FunctionFailed if one raised."""
        if problems := self.problems():
            after = f"{self.processes.broken}. restart() brings all back" if self.processes.broken else ""
            raise self.processes.failed(f"{explain(problems, self.names)}\n{after}".rstrip(), problems, after)
        return [self.outcomes[number].value for number in range(len(self.names))]


def explain(problems: dict[int, RemoteError], names: list[str]) -> str:
    """Return a description of the exceptions by process, with the last lines of the first traceback."""
    first, *others = problems.values()
    if len(problems) == len(names) and all((p.kind, p.message) == (first.kind, first.message) for p in others):
        who = f"every {names[0].split()[0]}" if len(names) > 1 else names[0]
        return f"{who} raised {first.kind}: {first.message}"
    lines = [f"{names[number]} raised {problem.kind}: {problem.message}" for number, problem in problems.items()]
    trace = first.trace.strip().splitlines()[-TRACEBACK_LINES:]
    return "\n".join([*lines, *([f"Last lines of the traceback on {names[min(problems)]}:"] if trace else []), *trace])
