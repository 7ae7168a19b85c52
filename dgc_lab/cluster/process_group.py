"""Processes forked from one host, which can be killed and replaced individually.

They connect to the notebook through a Unix socket in a private folder. `dgc_lab.cluster.host` runs inside them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from dgc_lab.cluster.calls import Call, FunctionFailed, ProcessDied
from dgc_lab.cluster.host import CRASH, PIDS, SOCKET
from dgc_lab.cluster.processes import defer_sigint, is_running, kill, start_guarded
from dgc_lab.common import LabError

SECONDS_BETWEEN_POLLS = 0.05


def remaining(deadline: float) -> float:
    """Return the seconds before the deadline, at most ten minutes: select(2) does not take infinity."""
    return min(max(0.0, deadline - time.monotonic()), 600)


@dataclass
class Member:
    """One process of a group."""

    process: psutil.Process
    connection: Connection
    vital: bool  # whether the others are stopped if it dies


class ProcessGroup:
    """A host that imports ``modules`` once for all, and ``members``, the processes forked from it, by name.

    ``what`` is their name in messages.
    """

    died, failed = ProcessDied, FunctionFailed  # errors for a dead process and for a function that raised
    broken: str | None = None  # why all processes were stopped

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
                    if not self._host_connection.poll(remaining(deadline)):
                        raise LabError(f"the time limit passed before {name} had started.\n{self.output_tail()}")
                    forked[name] = psutil.Process(cloudpickle.loads(self._host_connection.recv_bytes()))
                except (OSError, EOFError, psutil.NoSuchProcess):
                    raise LabError(f"the host or {name} ended while it was starting.\n{self.output_tail()}") from None
            for _ in prepare:
                name, connection = self._accept([self._host, *forked.values()], deadline)
                if name in self.members:
                    self.members[name].connection.close()
                self.members[name] = Member(forked[name], connection, name in vital)
        except BaseException:  # a late process would be taken for one added later
            self.terminate(f"{' and '.join(prepare)} did not start; all processes were stopped")
            raise
        ready = Call(self, list(prepare), grace=0)
        for _ in ready.follow(deadline):
            pass
        return ready.results()

    def finish_adding(self) -> None:
        """Let the host free the memory of its imported modules; the existing processes keep theirs."""
        self._host_connection.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or no process was ever started."""
        return self._folder is None

    def dead(self) -> list[str]:
        """Return the names of the vital processes that are gone; without the host, all are about to end."""
        host = self._host and is_running(self._host)
        vital = {name: member.process for name, member in self.members.items() if member.vital}
        gone = [name for name, process in vital.items() if not is_running(process)]
        return gone or ([] if host else list(vital) or ["the host"])

    def lost(self) -> list[str]:
        """Return the names of dead processes without which the others could continue."""
        return [name for name, each in self.members.items() if not each.vital and not is_running(each.process)]

    def raise_if_dead(self) -> None:
        """Stop all processes and raise ProcessDied if one is gone; raise LabError if they were stopped already."""
        dead = self.dead()  # first, because processes have not died if another thread closes the cluster now
        if self.closed:
            raise LabError(f"the {self.what} were stopped. start() starts them")
        if dead:
            error = self.died(dead, self._crash_reason(dead))
            self.terminate(str(error).split(";")[0])
            raise error

    def signal(self, number: int) -> None:
        """Send a signal to all processes that are alive."""
        for member in self.members.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.process.send_signal(number)

    def terminate(self, reason: str) -> None:
        """Kill all processes and keep the reason in ``broken``."""
        self.broken = reason
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

    def _accept(self, processes, deadline) -> tuple[str, Connection]:
        """Return name and connection of the next process to connect; raise LabError if one of ``processes`` ends."""
        self._listener.settimeout(SECONDS_BETWEEN_POLLS)
        what = "the time limit passed"
        while time.monotonic() <= deadline:
            with contextlib.suppress(TimeoutError, EOFError):  # EOFError: it died while it sent its name
                caller, _ = self._listener.accept()
                caller.setblocking(True)
                connection = Connection(caller.detach())
                if connection.poll(remaining(deadline)):
                    return cloudpickle.loads(connection.recv_bytes()), connection
            if not all(map(is_running, processes)):
                what = "a process ended"
                break
        raise LabError(f"{what} before all processes had connected.\n{self.output_tail()}")

    def _crash_reason(self, names: list[str]) -> str:
        """Return why these processes crashed, or an empty text if that is not known."""
        errors = set()
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another thread has stopped all processes meanwhile
                first, _, _ = Path(f"{self._folder}/{PIDS}/{name}{CRASH}").read_text().partition("\n")
                errors.add(first.removeprefix("Fatal Python error: "))
        return ", ".join(sorted(filter(None, errors)))

    def log_reader(self) -> Callable[[], str]:
        """Return a function that returns the processes' new output since its last call, at most 64 KiB."""
        position = 0

        def read() -> str:
            nonlocal position
            try:
                size = os.fstat(self._log.fileno()).st_size
                first, position = max(position, size - 2**16), size
                return os.pread(self._log.fileno(), size - first, first).decode(errors="replace")
            except ValueError:  # another thread has closed the cluster
                return ""

        return read

    def output_tail(self) -> str:
        """Return the last lines of the processes' output."""
        last = max(0, os.fstat(self._log.fileno()).st_size - 1500)
        return os.pread(self._log.fileno(), 1500, last).decode(errors="replace")  # leaves the write position as it is
