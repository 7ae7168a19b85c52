"""How a function travels to processes that are forked from one host, and what they tell comes back.

The processes are those of a `dgc_lab.cluster.process_group.ProcessGroup`; `dgc_lab.cluster.host` is at the other end.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait

import cloudpickle

from dgc_lab.cluster.calls import Call
from dgc_lab.cluster.rank import CallResult, RemoteError

MESSAGES_A_LOOK = 100
DIED = cloudpickle.dumps(CallResult(problem=RemoteError("ProcessDied", "its connection ended", "")))


class MemberCall(Call):
    """A function on its way through some vital processes of a `dgc_lab.cluster.process_group.ProcessGroup`.

    ``payloads`` are those of `Processes.call`; there are none where the function is under way already.
    """

    def __init__(self, group, names, grace, payloads: Iterable[tuple[bytes, bool]] = ()):
        super().__init__(group, names, grace)
        self._connections = [group.members[name].connection for name in names]
        self._texts, self._ended = [""] * len(names), set()  # what is still to print, and whose end was told
        self._news, self._receiving = deque(), threading.Lock()
        try:
            for connection, payload in zip(self._connections, payloads, strict=False):
                with contextlib.suppress(OSError):  # its process is gone: `follow` tells of it
                    connection.send_bytes(cloudpickle.dumps(payload))
        except BaseException:  # an interrupt, with half a message sent
            group.terminate("a call was interrupted on its way, and all were put down")
            raise

    def finished(self) -> bool:
        self._receive()
        return len(self.outcomes) == len(self.names)

    def _items(self):
        self._receive()
        while self._news:
            number, kind, content = self._news.popleft()
            if kind == "item":
                yield content
                continue
            if kind == "text":
                self._texts[number] += content
            else:
                self._ended.add(number)
            self._print(self._ended)

    def _missing(self):
        return len(self._news)

    def _receive(self):
        """Take what has come. Any thread may: a stop waits for a stream that nobody reads any more."""
        if self._ready(0):
            # In a thread, because an interrupt must not tear a message apart.
            with ThreadPoolExecutor(1) as aside:
                aside.submit(self._receive_aside).result()

    def _receive_aside(self):
        with self._receiving:
            for connection in self._ready(0):
                number = self._connections.index(connection)
                for _ in range(MESSAGES_A_LOOK):
                    try:
                        if number in self.outcomes or not connection.poll():
                            break
                        kind, content = cloudpickle.loads(connection.recv_bytes())
                    except (EOFError, OSError):
                        if self.processes.members[self.names[number]].vital:
                            break  # `look_for_dead` tells of it
                        kind, content = "outcome", DIED
                    self._news.append((number, kind, content))
                    if kind == "outcome":
                        self.outcomes[number] = cloudpickle.loads(content)

    def end(self) -> None:
        """Print the rest of what the function printed."""
        self._print(range(len(self.names)))
        if len(self.outcomes) < len(self.names) and not self.processes.broken:
            # What it still tells would be taken for the next call's.
            self.processes.terminate("a call was left before its end, and all were put down")

    def _print(self, ended):
        """Print what the first process says as it says it; the others' lines wait until those before have ended."""
        for number, name in enumerate(self.names):
            *lines, rest = self._texts[number].split("\n")
            if number in ended and rest:
                lines, rest = [*lines, rest], ""
            for line in lines:
                print(f"[{name}] {line}")
            self._texts[number] = rest
            if number not in ended:
                return

    def _wait(self, seconds):
        self._ready(seconds)

    def _ready(self, seconds) -> list[Connection]:
        """Those that have something to tell, now or within that time."""
        running = [connection for number, connection in enumerate(self._connections) if number not in self.outcomes]
        try:
            return wait(running, seconds)
        except (OSError, ValueError):  # another thread has stopped the processes, and closed the connections
            return []
