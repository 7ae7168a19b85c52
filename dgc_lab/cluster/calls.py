"""Function calls on the processes of a cluster, seen from the notebook: results, streamed items, errors.

Lessons 3, 5, 7 and 8.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from dgc_lab.cluster.processes import defer_sigint
from dgc_lab.cluster.rank import STOP_SIGNAL, CallResult, RemoteError, message_of
from dgc_lab.cluster.stalls import Waits
from dgc_lab.common import LabError

TRACEBACK_LINES = 8
SECONDS_BETWEEN_POLLS = 0.02
SECONDS_BETWEEN_STOPS = 0.5
GRACES_FOR_A_SLOW_READER = 9
MESSAGES_PER_POLL = 100
MAX_WAITING = 1_000_000  # characters of a process that may wait to be printed
TRUNCATED = "... earlier output is omitted ...\n"
STEP_TOGETHER = "All ranks must take the same steps; in model.fit, AverageMetrics as the first callback checks that"
DIED_OUTCOME = cloudpickle.dumps(CallResult(problem=RemoteError("ProcessDied", "its connection ended", "")))
DIED = cloudpickle.dumps(("outcome", DIED_OUTCOME))


class ProcessDied(LabError):
    """Error raised if a process of a cluster died; ``names`` lists the dead ones, as in ``["rank 1"]``.

    The other processes are stopped. The message includes the crash reason ``how`` if it is known, as in "rank 1 died
    (Segmentation fault)".
    """

    def __init__(self, names: list[str], how: str = ""):
        by = f" ({how})" if how else ""
        super().__init__(f"{', '.join(names)} died{by}; the others were stopped. restart() starts all of them again")
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
    """One call of a function on the processes ``names`` of a `ProcessGroup`.

    ``payloads`` has for each process ``(function, args, kwargs)``, pickled, and whether the function yields items;
    without it, the call is already running. Processes get ``grace`` seconds to stop on request, or to return after
    another one has raised.
    """

    def __init__(self, group, names: list[str], grace: float, payloads: Iterable[tuple[bytes, bool]] = ()):
        self.group, self.names, self.grace = group, names, grace
        self.outcomes: dict[int, CallResult] = {}  # by process number, once the function has ended there
        self._unreadable: dict[int, RemoteError] = {}  # by number of a process that yielded an unreadable item
        self._stopped = False
        self._connections = [group.members[name].connection for name in names]
        self._texts, self._ended = [""] * len(names), set()  # output to print; processes with a reported end
        self._messages, self._receiving = deque(), threading.Lock()
        try:
            for connection, payload in zip(self._connections, payloads, strict=False):
                with contextlib.suppress(OSError):  # its process is gone, which `follow` reports
                    connection.send_bytes(cloudpickle.dumps(payload))
        except BaseException:  # an interrupt, which may have cut off a message
            group.terminate("a call was interrupted while it was sent; all processes were stopped")
            raise

    def finished(self) -> bool:
        """Return whether the function has ended on all processes."""
        self._receive()
        return len(self.outcomes) == len(self.names)

    def problems(self) -> dict[int, RemoteError]:
        """Return the exceptions raised so far, by process number."""
        raised = {number: outcome.problem for number, outcome in self.outcomes.items() if outcome.problem}
        return dict(sorted((raised | self._unreadable).items()))

    def follow(self, deadline: float | None = None) -> Iterator[Any]:
        """Yield items until the function has ended on all processes.

        Kill the processes if the deadline passes, or without a deadline if they wait for each other forever.
        """
        failed_since, stopped_since = None, None
        last_signal, patience = time.monotonic(), self.grace
        waits = Waits(self.names, self.group.log_reader(), self.group.lost)
        while True:
            finished = self.finished()  # before `raise_if_dead`: a result may be the first sign of a death
            for item in self._items():
                given = time.monotonic()
                yield item
                waits.skip()
                if failed_since or stopped_since:
                    # The consumer's time does not count, up to a limit: some processes yield items endlessly.
                    patience += time.monotonic() - given
            patience = min(patience, (1 + GRACES_FOR_A_SLOW_READER) * self.grace)
            self.group.raise_if_dead()
            if finished:
                return
            now = time.monotonic()
            what = f"the {self.group.what}"
            if deadline and now > deadline:
                self.group.terminate(f"{what} were not ready in time and were killed")
                raise LabError(f"{self.group.broken}. restart() tries again")
            if not (deadline or self._stopped or self.problems()):
                running = [name for number, name in enumerate(self.names) if number not in self.outcomes]
                if wait := waits.look(running):
                    self.group.terminate(f"{wait}; {what} were killed")
                    raise self.group.failed(f"{self.group.broken}. {STEP_TOGETHER}. restart() starts {what} again")
            failed_since = failed_since or (now if self.problems() else None)
            if failed_since and now > failed_since + patience:
                self.group.terminate(f"one of {what} failed; the others did not return and were killed")
                return
            # Count from this poll: the consumer may take longer for items from before the stop.
            stopped_since = stopped_since or (now if self._stopped else None)
            if stopped_since and now > stopped_since + patience:
                self.group.terminate(f"{what} did not stop within {self.grace:g} s and were killed")
                raise self.group.failed(f"{self.group.broken}. restart() starts all of them again")
            if stopped_since and now > last_signal + SECONDS_BETWEEN_STOPS:
                self.group.signal(STOP_SIGNAL)  # the first may have arrived before the function began
                last_signal = now
            self._ready(SECONDS_BETWEEN_POLLS)  # waits for a message

    def request_stop(self) -> None:
        """Ask the processes to stop; `follow` repeats the request and kills them after ``grace`` seconds."""
        if not self.finished():
            self._stopped = True
            self.group.signal(STOP_SIGNAL)

    def stop(self) -> None:
        """Ask the processes to stop and wait until they have; discard further items and exceptions."""
        if self.group.closed:
            return  # all processes were stopped, as when the program ends with an open stream
        try:
            self.request_stop()
            for _ in self.follow():
                pass
        except KeyboardInterrupt:
            self.group.terminate(f"the {self.group.what} were interrupted twice and killed")
            raise

    def results(self) -> list[Any]:
        """Return the results in process order, once all processes have ended; raise FunctionFailed if one raised."""
        if problems := self.problems():
            after = f"{self.group.broken}. restart() starts all of them again" if self.group.broken else ""
            raise self.group.failed(f"{explain(problems, self.names)}\n{after}".rstrip(), problems, after)
        return [self.outcomes[number].value for number in range(len(self.names))]

    def end(self) -> None:
        """Print the remaining output; stop all processes if the function still runs on some."""
        self._print(range(len(self.names)))
        if len(self.outcomes) < len(self.names) and not self.group.broken:
            # Its remaining messages would be taken for the next call's.
            self.group.terminate("a call was abandoned before its end; all processes were stopped")

    def _items(self):
        self._receive()
        for _ in range(len(self._messages)):  # not later ones, which may arrive faster than they are consumed
            number, kind, content = self._messages.popleft()
            if kind == "item":
                yield content
                continue
            if kind == "text":
                text = self._texts[number] + content
                self._texts[number] = text if len(text) <= MAX_WAITING else TRUNCATED + text[-MAX_WAITING:]
            else:
                self._ended.add(number)
            self._print(self._ended)

    def _receive(self):
        """Receive pending messages; any thread may do so, because a stop waits for a stream that is no longer read."""
        if not self._ready(0):
            return
        with defer_sigint(), self._receiving:  # an interrupt would cut off a message
            for connection in self._ready(0):
                number = self._connections.index(connection)
                for _ in range(MESSAGES_PER_POLL):
                    try:
                        if number in self.outcomes or not connection.poll():
                            break
                        message = connection.recv_bytes()
                    except (EOFError, OSError):
                        if self.group.members[self.names[number]].vital:
                            break  # `raise_if_dead` reports it
                        message = DIED
                    self._take(number, message)

    def _take(self, number, message):
        """Record a message; if it is an item that cannot be unpickled, ask the function to stop."""
        read, problem = unpickled(message, "an item")  # other messages contain only text and bytes
        if problem:
            self._unreadable.setdefault(number, problem)
            self.group.signal(STOP_SIGNAL)
            return
        kind, content = read
        self._messages.append((number, kind, content))
        if kind == "outcome":
            result, problem = unpickled(content, "the result")
            self.outcomes[number] = CallResult(problem=problem) if problem else result

    def _print(self, ended):
        """Print the first process's output at once, and the others' when all processes before them have ended.

        The waiting output is limited, because a rank that prints endlessly would fill the notebook's memory.
        """
        for number, name in enumerate(self.names):
            *lines, rest = self._texts[number].split("\n")
            if number in ended and rest:
                lines, rest = [*lines, rest], ""
            for line in lines:
                print(f"[{name}] {line}")
            self._texts[number] = rest
            if number not in ended:
                return

    def _ready(self, seconds) -> list[Connection]:
        """Return the connections with pending messages, after waiting for at most ``seconds``."""
        running = [connection for number, connection in enumerate(self._connections) if number not in self.outcomes]
        try:
            return wait(running, seconds)
        except (OSError, ValueError):  # another thread has stopped the processes and closed the connections
            return []


def unpickled(content: bytes, what: str) -> tuple[Any, RemoteError | None]:
    """Return the object and None, or None and the error; ``what`` names the object in the message."""
    try:
        return cloudpickle.loads(content), None
    except Exception as error:
        message = f"{what} cannot be unpickled in the notebook: {message_of(error)}"
        return None, RemoteError(type(error).__name__, message, "")


def explain(problems: dict[int, RemoteError], names: list[str]) -> str:
    """Return a description of the exceptions by process, with the last lines of the first traceback."""
    first, *others = problems.values()
    if len(problems) == len(names) and all((p.kind, p.message) == (first.kind, first.message) for p in others):
        who = f"every {names[0].split()[0]}" if len(names) > 1 else names[0]
        return f"{who} raised {first.kind}: {first.message}"
    lines = [f"{names[number]} raised {problem.kind}: {problem.message}" for number, problem in problems.items()]
    trace = first.trace.strip().splitlines()[-TRACEBACK_LINES:]
    return "\n".join([*lines, *([f"Last lines of the traceback on {names[min(problems)]}:"] if trace else []), *trace])
