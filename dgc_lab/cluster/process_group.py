"""Processes forked from one host, which can be killed and replaced individually, and function calls on them.

They connect to the notebook through a Unix socket in a private folder. `dgc_lab.cluster.host` runs inside them.
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
from dgc_lab.cluster.processes import Processes, defer_sigint, is_running, kill, start_guarded
from dgc_lab.cluster.rank import CallResult, RemoteError
from dgc_lab.common import LabError

SECONDS_BETWEEN_POLLS = 0.05
MESSAGES_PER_POLL = 100
MAX_WAITING = 1_000_000  # characters of a process that may wait to be printed
TRUNCATED = "... what was printed before is left out ...\n"
DIED_OUTCOME = cloudpickle.dumps(CallResult(problem=RemoteError("ProcessDied", "its connection ended", "")))


@dataclass
class Member:
    """One process of a group."""

    process: psutil.Process
    connection: Connection
    vital: bool  # whether the others are stopped if it dies


class ProcessGroup(Processes):
    """A host that imports ``modules`` once for all, and ``members``, the processes forked from it, by name."""

    def __init__(self, what: str, variables: Mapping[str, str], private: bool, modules: Iterable[str] = ("keras",)):
        self.what, self.members = what, {}
        self._variables, self._private, self._modules = dict(variables), private, modules
        self._owner = os.getpid()
        self._folder = self._host = self._host_connection = self._listener = self._log = None

    def start(self, deadline: float) -> None:
        """Start the host before the deadline, a value of ``time.monotonic``; a LabError includes the host's output."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        how = {"private": self._private, "variables": self._variables, "stdout": self._log}
        with defer_sigint():
            self._host, self._folder = start_guarded("dgc_lab.cluster.host", *self._modules, **how)
        Path(self._folder, PIDS).mkdir()
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(f"{self._folder}/{SOCKET}")
        except OSError as error:
            raise LabError(f"cannot create a socket in {self._folder}: {error}. Set TMPDIR to another folder") from None
        self._listener.listen()
        self._host.stdin.close()
        _, self._host_connection = self._accept([self._host], deadline)

    def add(
        self, prepare: Mapping[str, Callable], deadline: float, variables=None, vital: Iterable[str] = ()
    ) -> list[Any]:
        """Fork processes, all at once, and wait until they are ready; they replace processes of the same names.

        ``prepare`` maps each name to the function that the process runs first; its result is returned. ``variables``
        maps names to additional environment variables. The other processes cannot continue without the ``vital`` ones.
        Raises LabError if a process is not ready in time.
        """
        forked = {}
        try:
            for name, first in prepare.items():
                own = (variables or {}).get(name, {})
                try:
                    self._host_connection.send_bytes(cloudpickle.dumps((name, own, first)))
                    forked[name] = psutil.Process(cloudpickle.loads(self._host_connection.recv_bytes()))
                except (OSError, EOFError, psutil.NoSuchProcess):
                    raise LabError(f"the host or {name} ended while it was starting.\n{self._output_tail()}") from None
            for _ in prepare:
                name, connection = self._accept([self._host, *forked.values()], deadline)
                if name in self.members:
                    self.members[name].connection.close()
                self.members[name] = Member(forked[name], connection, name in vital)
        except BaseException:  # a late process would be taken for one added later
            self.terminate(f"{' and '.join(prepare)} did not start; all processes were stopped")
            raise
        ready = MemberCall(self, list(prepare), grace=0)
        for _ in ready.follow(deadline):
            pass
        return ready.results()

    def finish_adding(self) -> None:
        """Let the host free the memory of its imported modules; the existing processes keep theirs."""
        self._host_connection.close()

    @property
    def closed(self) -> bool:
        return self._folder is None

    def dead(self) -> list[str]:
        """Return the names of the vital processes that are gone; without the host, all are about to end."""
        host = self._host and is_running(self._host)
        vital = {name: member.process for name, member in self.members.items() if member.vital}
        gone = [name for name, process in vital.items() if not is_running(process)]
        return gone or ([] if host else list(vital) or ["the host"])

    def crash_reason(self, names: list[str]) -> str:
        errors = set()
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another thread has stopped all processes meanwhile
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
            # Now, because the host's watchdog is gone and could not do it if this process were killed.
            shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """End all processes and remove their files; may be called more than once."""
        if os.getpid() != self._owner or self._folder is None:
            return  # a fork of the notebook's process must not stop processes that it does not own
        folder, self._folder = self._folder, None  # a call that is still followed then raises that all were stopped
        try:
            kill(self._host)
            self._host.wait(5)
        finally:
            ours = [self._log, self._host.stdin, self._listener, self._host_connection]
            for open_end in [*ours, *(member.connection for member in self.members.values())]:
                if open_end is not None:
                    open_end.close()
            shutil.rmtree(folder, ignore_errors=True)

    def call(self, payloads: Mapping[str, tuple[bytes, bool]], grace: float) -> MemberCall:
        return MemberCall(self, list(payloads), grace, payloads.values())

    def _accept(self, processes, deadline) -> tuple[str, Connection]:
        """Return name and connection of the next process to connect; raise LabError if one of ``processes`` ends."""
        self._listener.settimeout(SECONDS_BETWEEN_POLLS)
        while True:
            with contextlib.suppress(TimeoutError, EOFError):  # EOFError: it died while it sent its name
                caller, _ = self._listener.accept()
                caller.setblocking(True)
                connection = Connection(caller.detach())
                return cloudpickle.loads(connection.recv_bytes()), connection
            ended = not all(map(is_running, processes))
            if ended or time.monotonic() > deadline:
                what = "a process ended" if ended else "the time limit passed"
                raise LabError(f"{what} before all processes had connected.\n{self._output_tail()}")

    def _output_tail(self) -> str:
        """Return the last lines of the processes' output."""
        last = max(0, os.fstat(self._log.fileno()).st_size - 1500)
        return os.pread(self._log.fileno(), 1500, last).decode(errors="replace")  # leaves the write position as it is


class MemberCall(Call):
    """A function call on processes of a group; without ``payloads``, a call that is already running."""

    def __init__(
        self, group: ProcessGroup, names: list[str], grace: float, payloads: Iterable[tuple[bytes, bool]] = ()
    ):
        super().__init__(group, names, grace)
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
        self._receive()
        return len(self.outcomes) == len(self.names)

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

    def _missing(self):
        return len(self._messages)

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
                        kind, content = cloudpickle.loads(connection.recv_bytes())
                    except (EOFError, OSError):
                        if self.processes.members[self.names[number]].vital:
                            break  # `raise_if_dead` reports it
                        kind, content = "outcome", DIED_OUTCOME
                    self._messages.append((number, kind, content))
                    if kind == "outcome":
                        self.outcomes[number] = cloudpickle.loads(content)

    def end(self) -> None:
        self._print(range(len(self.names)))
        if len(self.outcomes) < len(self.names) and not self.processes.broken:
            # Its remaining messages would be taken for the next call's.
            self.processes.terminate("a call was abandoned before its end; all processes were stopped")

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

    def _wait(self, seconds):
        self._ready(seconds)

    def _ready(self, seconds) -> list[Connection]:
        """Return the connections with pending messages, after waiting for at most ``seconds``."""
        running = [connection for number, connection in enumerate(self._connections) if number not in self.outcomes]
        try:
            return wait(running, seconds)
        except (OSError, ValueError):  # another thread has stopped the processes and closed the connections
            return []
