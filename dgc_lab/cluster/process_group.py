"""Processes that are forked from one host and can be killed and replaced one by one; the notebook's side.

What runs in them is in `dgc_lab.cluster.host`. Where the kernel allows it, they have a network of their own
(`dgc_lab.cluster.private_network`); they reach the notebook by a Unix socket in a private folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import cloudpickle
import psutil

from dgc_lab.cluster import private_network
from dgc_lab.cluster.calls import ProcessDied, explain
from dgc_lab.cluster.engines import is_running, kill
from dgc_lab.cluster.host import FOLDER, PIDS, SOCKET
from dgc_lab.cluster.member_calls import MemberCall
from dgc_lab.common import LabError

SECONDS_BETWEEN_LOOKS = 0.05


@dataclass
class Member:
    """One of the processes.

    Attributes:
        name: such as ``"worker 1"``.
        process: psutil's handle.
        connection: what it tells, and what it is told.
        vital: whether the others are put down when it dies.
    """

    name: str
    process: psutil.Process
    connection: Connection
    vital: bool


class ProcessGroup:
    """A host and the processes forked from it.

    Args:
        variables: environment of all, over that of this process.
        private: whether they have a network of their own.

    Attributes:
        members: by name, the `Member` of each process that was added.
        broken: why all were put down; None as long as they were not.
    """

    what = "processes"

    def __init__(self, variables: Mapping[str, str], private: bool):
        self.members, self.broken = {}, None
        self._variables, self._private, self._owner = dict(variables), private, os.getpid()
        self._folder = self._host = self._orders = self._listener = None

    def start(self, deadline: float) -> None:
        """Start the host.

        Args:
            deadline: on the clock of ``time.monotonic``.

        Raises:
            LabError: the deadline passed, or the host ended; the message holds what it printed.
        """
        self._folder = tempfile.mkdtemp(prefix="dgc_lab-")  # for this user alone
        Path(self._folder, PIDS).mkdir()
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(f"{self._folder}/{SOCKET}")
        except OSError as error:
            raise LabError(f"no socket in {self._folder}: {error}. TMPDIR says where another folder can be") from None
        self._listener.listen()
        guarded = [sys.executable, "-m", "dgc_lab.cluster.watchdog", str(os.getpid()), self._folder]
        command = [*guarded, "dgc_lab.cluster.host", "private" if self._private else "open"]
        # The processes find what the notebook finds; what TensorFlow leaves behind goes with the folder.
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": self._folder, FOLDER: self._folder}
        with open(f"{self._folder}/log", "wb") as log:
            self._host = psutil.Popen(
                [*private_network.entrance(), *command] if self._private else command,
                env=os.environ | self._variables | paths,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _, _, self._orders = self._accept(deadline)

    def add(self, prepare: Mapping[str, Callable], deadline: float, variables=None, vital: Iterable[str] = ()) -> None:
        """Fork processes, all at once, and wait until they are ready; names that were in use are replaced.

        Args:
            prepare: by name, what each does first, such as to start a server.
            deadline: as in `start`.
            variables: by name, environment of its own.
            vital: names of those without which the others cannot go on.

        Raises:
            LabError: one could not get ready, or not in time.
        """
        try:
            for name, first in prepare.items():
                own = (variables or {}).get(name, {})
                with contextlib.suppress(OSError):  # the host is gone: the next lines tell of it
                    self._orders.send_bytes(cloudpickle.dumps((name, own, first)))
            for _ in prepare:
                name, number, connection = self._accept(deadline)
                if name in self.members:
                    self.members[name].connection.close()
                self.members[name] = Member(name, psutil.Process(number), connection, name in vital)
        except BaseException:  # one that comes later would be taken for one that is added next
            self.terminate(f"{' and '.join(prepare)} did not come, and all were put down")
            raise
        names = list(prepare)
        ready = MemberCall(self, names, grace=0)
        for _ in ready.follow(deadline):
            pass
        if problems := ready.problems():
            raise LabError(explain(problems, names))

    @property
    def closed(self) -> bool:
        """Whether all was stopped."""
        return self._folder is None

    def dead(self) -> list[str]:
        """Names of the vital processes that are gone; the host is one."""
        gone = [member.name for member in self.members.values() if member.vital and not is_running(member.process)]
        return gone or ([] if self._host and is_running(self._host) else ["the host"])

    def look_for_dead(self) -> None:
        """Put all processes down when a vital one is gone.

        Raises:
            ProcessDied: a vital process is gone.
            LabError: all were stopped.
        """
        if self._folder is None:
            raise LabError(f"the {self.what} were stopped. start() starts them")
        if dead := self.dead():
            error = ProcessDied(dead)
            self.terminate(str(error).split(";")[0])
            raise error

    def signal(self, number: int) -> None:
        """Send a signal to every process that lives."""
        for member in self.members.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.process.send_signal(number)

    def terminate(self, reason: str) -> None:
        """End all processes at once, whatever they do, and keep the reason."""
        self.broken = reason
        if self._host is not None and self._folder is not None:
            kill([self._host])
            # Now: with the host its guard is gone, and nobody would do it should this process be killed.
            shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """End all processes and remove their files. Harmless when called again."""
        if os.getpid() != self._owner or self._folder is None:
            return  # a fork of the notebook's process must not stop what it does not own
        folder, self._folder = self._folder, None  # who still follows a call is told that all were stopped
        try:
            if self._host is not None:
                kill([self._host])
                self._host.wait(5)
        finally:
            for open_end in [self._listener, self._orders, *(member.connection for member in self.members.values())]:
                if open_end is not None:
                    open_end.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _accept(self, deadline):
        """Wait for a process to call: its name, its number, and the connection to it."""
        self._listener.settimeout(SECONDS_BETWEEN_LOOKS)
        while True:
            with contextlib.suppress(TimeoutError, EOFError):  # an end: it died while it told its name
                caller, _ = self._listener.accept()
                caller.setblocking(True)
                connection = Connection(caller.detach())
                return *cloudpickle.loads(connection.recv_bytes()), connection
            ended = not is_running(self._host)
            if ended or time.monotonic() > deadline:
                what = "a process ended" if ended else "the time limit passed"
                raise LabError(f"{what} before all were there.\n{self._printed()}")

    def _printed(self) -> str:
        """Last lines of what the processes printed."""
        try:
            return Path(self._folder, "log").read_text(errors="replace")[-1500:]
        except FileNotFoundError:  # the children of a host that is gone remove the folder
            return ""
