"""Processes forked from one host, which can be killed and replaced one by one, and a function's way through them.

They reach the notebook by a Unix socket in a private folder. What runs in them is in `dgc_lab.cluster.host`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from dgc_lab.cluster.calls import Call
from dgc_lab.cluster.host import CRASH, PIDS, SOCKET
from dgc_lab.cluster.processes import Processes, interrupt_held_back, is_running, kill, start_guarded
from dgc_lab.cluster.rank import CallResult, RemoteError
from dgc_lab.common import LabError

SECONDS_BETWEEN_LOOKS = 0.05
MESSAGES_A_LOOK = 100
WAITING = 1_000_000  # characters of a process that may wait for their turn to be printed
CUT = "... what was printed before is left out ...\n"
DIED = cloudpickle.dumps(CallResult(problem=RemoteError("ProcessDied", "its connection ended", "")))


@dataclass
class Member:
    """One of the processes."""

    process: psutil.Process
    connection: Connection
    vital: bool  # whether the others are stopped when it dies


class ProcessGroup(Processes):
    """A host, which imports ``modules`` once for all, and ``members``, the processes forked from it, by name."""

    def __init__(self, what: str, variables: Mapping[str, str], private: bool, modules: Iterable[str] = ("keras",)):
        self.what, self.members = what, {}
        self._variables, self._private, self._modules = dict(variables), private, modules
        self._owner = os.getpid()
        self._folder = self._host = self._orders = self._listener = self._log = None

    def start(self, deadline: float) -> None:
        """Start the host before the deadline, on the clock of ``time.monotonic``; a LabError holds what it printed."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        how = {"private": self._private, "variables": self._variables, "stdout": self._log}
        with interrupt_held_back():
            self._host, self._folder = start_guarded("dgc_lab.cluster.host", *self._modules, **how)
        Path(self._folder, PIDS).mkdir()
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(f"{self._folder}/{SOCKET}")
        except OSError as error:
            raise LabError(f"no socket in {self._folder}: {error}. TMPDIR says where another folder can be") from None
        self._listener.listen()
        self._host.stdin.close()
        _, self._orders = self._accept([self._host], deadline)

    def add(
        self, prepare: Mapping[str, Callable], deadline: float, variables=None, vital: Iterable[str] = ()
    ) -> list[Any]:
        """Fork processes, all at once, and wait until they are ready; names that were in use are replaced.

        ``prepare`` and ``variables`` are by name: what each does first, whose result comes back, and environment of its
        own. Without ``vital`` ones the others cannot go on. A LabError where one is not ready in time.
        """
        forked = {}
        try:
            for name, first in prepare.items():
                own = (variables or {}).get(name, {})
                try:
                    self._orders.send_bytes(cloudpickle.dumps((name, own, first)))
                    forked[name] = psutil.Process(cloudpickle.loads(self._orders.recv_bytes()))
                except (OSError, EOFError, psutil.NoSuchProcess):
                    raise LabError(f"the host or {name} ended as it was started.\n{self._printed()}") from None
            for _ in prepare:
                name, connection = self._accept([self._host, *forked.values()], deadline)
                if name in self.members:
                    self.members[name].connection.close()
                self.members[name] = Member(forked[name], connection, name in vital)
        except BaseException:  # one that comes later would be taken for one that is added next
            self.terminate(f"{' and '.join(prepare)} did not start; all processes were stopped")
            raise
        ready = MemberCall(self, list(prepare), grace=0)
        for _ in ready.follow(deadline):
            pass
        return ready.results()

    def add_no_more(self) -> None:
        """Let the host give back the memory of what it has imported; the processes that are there keep theirs."""
        self._orders.close()

    @property
    def closed(self) -> bool:
        return self._folder is None

    def dead(self) -> list[str]:
        """Names of the vital processes that are gone; without the host all are about to end."""
        host = self._host and is_running(self._host)
        vital = {name: member.process for name, member in self.members.items() if member.vital}
        gone = [name for name, process in vital.items() if not is_running(process)]
        return gone or ([] if host else list(vital) or ["the host"])

    def how_ended(self, names: list[str]) -> str:
        errors = set()
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another thread has stopped all meanwhile
                first, _, _ = Path(f"{self._folder}/{PIDS}/{name}{CRASH}").read_text().partition("\n")
                errors.add(first.removeprefix("Fatal Python error: "))
        return ", ".join(sorted(filter(None, errors)))

    def signal(self, number: int) -> None:
        for member in self.members.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.process.send_signal(number)

    def kill(self) -> None:
        if self._folder is not None:
            kill(self._host)
            # Now: with the host its guard is gone, and nobody would do it should this process be killed.
            shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """End all processes and remove their files. Harmless when called again."""
        if os.getpid() != self._owner or self._folder is None:
            return  # a fork of the notebook's process must not stop what it does not own
        folder, self._folder = self._folder, None  # who still follows a call is told that all were stopped
        try:
            kill(self._host)
            self._host.wait(5)
        finally:
            ours = [self._log, self._host.stdin, self._listener, self._orders]
            for open_end in [*ours, *(member.connection for member in self.members.values())]:
                if open_end is not None:
                    open_end.close()
            shutil.rmtree(folder, ignore_errors=True)

    def call(self, payloads: Mapping[str, tuple[bytes, bool]], grace: float) -> MemberCall:
        return MemberCall(self, list(payloads), grace, payloads.values())

    def _accept(self, processes, deadline) -> tuple[str, Connection]:
        """Wait until a process calls: its name, and the connection to it. None of those given may end meanwhile."""
        self._listener.settimeout(SECONDS_BETWEEN_LOOKS)
        while True:
            with contextlib.suppress(TimeoutError, EOFError):  # an end: it died while it told its name
                caller, _ = self._listener.accept()
                caller.setblocking(True)
                connection = Connection(caller.detach())
                return cloudpickle.loads(connection.recv_bytes()), connection
            ended = not all(map(is_running, processes))
            if ended or time.monotonic() > deadline:
                what = "a process ended" if ended else "the time limit passed"
                raise LabError(f"{what} before all were there.\n{self._printed()}")

    def _printed(self) -> str:
        """Last lines of what the processes printed."""
        last = max(0, os.fstat(self._log.fileno()).st_size - 1500)
        return os.pread(self._log.fileno(), 1500, last).decode(errors="replace")  # the place where it is written stays


class MemberCall(Call):
    """A function on its way through processes of a group; without ``payloads``, one that is under way already."""

    def __init__(
        self, group: ProcessGroup, names: list[str], grace: float, payloads: Iterable[tuple[bytes, bool]] = ()
    ):
        super().__init__(group, names, grace)
        self._connections = [group.members[name].connection for name in names]
        self._texts, self._ended = [""] * len(names), set()  # what is still to print, and whose end was told
        self._news, self._receiving = deque(), threading.Lock()
        try:
            for connection, payload in zip(self._connections, payloads, strict=False):
                with contextlib.suppress(OSError):  # its process is gone: `follow` tells of it
                    connection.send_bytes(cloudpickle.dumps(payload))
        except BaseException:  # an interrupt, with half a message sent
            group.terminate("a call was interrupted on its way, and all were stopped")
            raise

    def finished(self) -> bool:
        self._receive()
        return len(self.outcomes) == len(self.names)

    def _items(self):
        self._receive()
        for _ in range(len(self._news)):  # not what comes meanwhile: it can come faster than it is read
            number, kind, content = self._news.popleft()
            if kind == "item":
                yield content
                continue
            if kind == "text":
                text = self._texts[number] + content
                self._texts[number] = text if len(text) <= WAITING else CUT + text[-WAITING:]
            else:
                self._ended.add(number)
            self._print(self._ended)

    def _missing(self):
        return len(self._news)

    def _receive(self):
        """Take what has come. Any thread may: a stop waits for a stream that nobody reads any more."""
        if not self._ready(0):
            return
        with interrupt_held_back(), self._receiving:  # else it would tear a message apart
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
        self._print(range(len(self.names)))
        if len(self.outcomes) < len(self.names) and not self.processes.broken:
            # What it still tells would be taken for the next call's.
            self.processes.terminate("a call was left before its end, and all were stopped")

    def _print(self, ended):
        """Print what the first process says as it says it; the others' lines wait until those before have ended.

        What waits is bounded: a rank that prints without end would fill the notebook's memory.
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

    def _wait(self, seconds):
        self._ready(seconds)

    def _ready(self, seconds) -> list[Connection]:
        """Those that have something to tell, now or within that time."""
        running = [connection for number, connection in enumerate(self._connections) if number not in self.outcomes]
        try:
            return wait(running, seconds)
        except (OSError, ValueError):  # another thread has stopped the processes, and closed the connections
            return []
