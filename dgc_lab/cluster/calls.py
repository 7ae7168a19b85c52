"""One function that runs on the processes of a cluster, seen from the notebook: results, stream, what went wrong.

Lessons 3, 5, 7 and 8.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from dgc_lab.cluster.rank import STOP_SIGNAL, CallResult, RemoteError
from dgc_lab.common import LabError

TRACEBACK_LINES = 8
SECONDS_BETWEEN_LOOKS = 0.02
SECONDS_BETWEEN_STOPS = 0.5
SECONDS_FOR_LAST_ITEMS = 30
GRACES_FOR_A_SLOW_READER = 9


class ProcessDied(LabError):
    """A process of a cluster is gone, and the cluster with it; ``names`` has those that are, as ``["rank 1"]``.

    ``how`` they ended is told too where it is known, as in "rank 1 died (Segmentation fault)".
    """

    def __init__(self, names: list[str], how: str = ""):
        by = f" ({how})" if how else ""
        super().__init__(f"{', '.join(names)} died{by}; the others were stopped. restart() brings all back")
        self.names = names


class FunctionFailed(LabError):
    """A function raised on a process, or did not stop; ``problems``, by the process's number, have kind and trace.

    ``after`` says that all were killed then, where it is so; the message has it too.
    """

    def __init__(self, message: str, problems: dict[int, RemoteError] | None = None, after: str = ""):
        super().__init__(message)
        self.problems, self.after = problems or {}, after


class RankDied(ProcessDied):
    """The process of a rank is gone, as a `ProcessDied` tells."""


class RankFailed(FunctionFailed):
    """A `FunctionFailed` of ranks; ``problems`` are by rank."""


class Call:
    """A function on its way through a cluster's processes, called ``names``; a subclass knows how it travels.

    It says whether the function has ended everywhere (``finished``), what was yielded since the last look (``_items``)
    and how much of that is still under way at the end (``_missing``), waits for something to happen (``_wait``), and
    clears up (``end``). Processes get ``grace`` seconds to follow a stop, or to come back when one of them has raised.
    """

    def __init__(self, processes, names: list[str], grace: float):
        self.processes, self.names, self.grace = processes, names, grace
        self.outcomes: dict[int, CallResult] = {}  # by number, of those that have ended
        self._stopped = False

    def problems(self) -> dict[int, RemoteError]:
        """What was raised, by number of the process."""
        return {number: outcome.problem for number, outcome in sorted(self.outcomes.items()) if outcome.problem}

    def follow(self, deadline: float | None = None) -> Iterator[Any]:
        """Yield the items until the function has ended everywhere; after the deadline, the processes are killed."""
        failed_since, stopped_since, finished_since = None, None, None
        last_signal, patience = time.monotonic(), self.grace
        while True:
            finished = self.finished()  # before the look for the dead: a result can tell of a death first
            for item in self._items():
                given, finished_since = time.monotonic(), None
                yield item
                if failed_since or stopped_since:
                    # What the reader takes is not the processes' time, up to a point: some yield without end.
                    patience += time.monotonic() - given
            patience = min(patience, (1 + GRACES_FOR_A_SLOW_READER) * self.grace)
            self.processes.look_for_dead()
            now = time.monotonic()
            if finished:
                if not self._missing():
                    return
                # A stream's items may travel apart from the results, and come after them: time runs from the last.
                finished_since = finished_since or now
                if now > finished_since + SECONDS_FOR_LAST_ITEMS:
                    raise LabError(f"{self._missing()} batches of {self.names[0]}'s items were lost")
                time.sleep(SECONDS_BETWEEN_LOOKS)
                continue
            what = f"the {self.processes.what}"
            if deadline and now > deadline:
                self.processes.terminate(f"{what} were not ready in time and were killed")
                raise LabError(f"{self.processes.broken}. restart() tries again")
            failed_since = failed_since or (now if self.problems() else None)
            if failed_since and now > failed_since + patience:
                self.processes.terminate(f"one of {what} failed, the others did not come back and were killed")
                return
            # From this look on: what had come before the stop may take the reader longer than all patience.
            stopped_since = stopped_since or (now if self._stopped else None)
            if stopped_since and now > stopped_since + patience:
                self.processes.terminate(f"{what} did not stop within {self.grace:g} s and were killed")
                raise self.processes.failed(f"{self.processes.broken}. restart() brings them back")
            if stopped_since and now > last_signal + SECONDS_BETWEEN_STOPS:
                self.processes.signal(STOP_SIGNAL)  # the first may have come before the function began
                last_signal = now
            self._wait(SECONDS_BETWEEN_LOOKS)

    def request_stop(self) -> None:
        """Ask the processes to stop; `follow` asks again and puts them down after the time of grace."""
        if not self.finished():
            self._stopped = True
            self.processes.signal(STOP_SIGNAL)

    def stop(self) -> None:
        """Ask for a stop and wait for it; what the processes still yield or raise is not wanted any more."""
        if self.processes.closed:
            return  # all was stopped, as when the program ends with a stream open
        try:
            self.request_stop()
            for _ in self.follow():
                pass
        except KeyboardInterrupt:
            self.processes.terminate(f"the {self.processes.what} were interrupted twice and killed")
            raise

    def results(self) -> list[Any]:
        """What the function returned, in the order of the processes, when all have ended; or FunctionFailed."""
        if problems := self.problems():
            after = f"{self.processes.broken}. restart() brings all back" if self.processes.broken else ""
            raise self.processes.failed(f"{explain(problems, self.names)}\n{after}".rstrip(), problems, after)
        return [self.outcomes[number].value for number in range(len(self.names))]


def explain(problems: dict[int, RemoteError], names: list[str]) -> str:
    """Say which process raised what, with the last lines of the first one's traceback."""
    first, *others = problems.values()
    if len(problems) == len(names) and all((p.kind, p.message) == (first.kind, first.message) for p in others):
        who = f"every {names[0].split()[0]}" if len(names) > 1 else names[0]
        return f"{who} raised {first.kind}: {first.message}"
    lines = [f"{names[number]} raised {problem.kind}: {problem.message}" for number, problem in problems.items()]
    trace = first.trace.strip().splitlines()[-TRACEBACK_LINES:]
    return "\n".join([*lines, *([f"Last lines of the traceback on {names[min(problems)]}:"] if trace else []), *trace])
