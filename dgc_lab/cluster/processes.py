"""Processes beside the notebook: how they are started so that nothing of them is left, watched, and ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import psutil

from dgc_lab.cluster import private_network
from dgc_lab.cluster.calls import Call, FunctionFailed, ProcessDied
from dgc_lab.common import LabError


class Processes:
    """Those of one cluster; `dgc_lab.cluster.process_group` and `dgc_lab.cluster.engines` say what they are.

    Attributes:
        what: how messages call them.
        died, failed: the errors that tell of a death, and of a function that raised.
        broken: why all were put down; None as long as they were not.
    """

    what, died, failed = "processes", ProcessDied, FunctionFailed
    broken: str | None = None

    @property
    def closed(self) -> bool:
        """Whether all was stopped."""
        raise NotImplementedError

    def dead(self) -> list[str]:
        """Names of those that are gone and without which the others cannot go on."""
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """Send a signal to every process that lives; does not wait."""
        raise NotImplementedError

    def kill(self) -> None:
        """End all at once, whatever they do."""
        raise NotImplementedError

    def call(self, payloads: Mapping[str, tuple[bytes, bool]], grace: float) -> Call:
        """Send functions on their way.

        Args:
            payloads: by name, cloudpickle of ``(function, args, kwargs)``, and whether it yields items.
            grace: as in `Call`.
        """
        raise NotImplementedError

    def terminate(self, reason: str) -> None:
        """End all at once, and keep the reason."""
        self.broken = reason
        self.kill()

    def look_for_dead(self) -> None:
        """Put all down when one is gone.

        Raises:
            ProcessDied: one is gone.
            LabError: all were stopped.
        """
        if self.closed:
            raise LabError(f"the {self.what} were stopped. start() starts them")
        if dead := self.dead():
            error = self.died(dead)
            self.terminate(str(error).split(";")[0])
            raise error


def start_guarded(module: str, *arguments: str, folder: str, private: bool, variables: Mapping[str, str], **pipes):
    """Start a Python module that ends when this process does; the folder goes with it (`dgc_lab.cluster.watchdog`).

    Args:
        module, arguments: what to run; it finds the modules that this process finds.
        folder: files of its own.
        private: whether it gets a network of its own (`dgc_lab.cluster.private_network`).
        variables: environment, over that of this process.
        pipes: of ``subprocess.Popen``: where it writes to, and how.

    Returns:
        psutil's ``Popen``; the process leads a group of its own.
    """
    network = "private" if private else "open"
    command = [sys.executable, "-m", "dgc_lab.cluster.watchdog", str(os.getpid()), folder, network, module, *arguments]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return psutil.Popen(
        [*private_network.entrance(), *command] if private else command,
        env=os.environ | path | variables,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **pipes,
    )


def kill(leader: psutil.Process) -> None:
    """Kill a process that leads a group of its own, with its group and all its children, and wait for them."""
    family = [leader]
    try:
        family += leader.children(recursive=True)
    except psutil.NoSuchProcess:
        pass
    # A group outlives its leader, and its number is not given away before it is empty.
    if leader.is_running() or not psutil.pid_exists(leader.pid):
        try:
            os.killpg(leader.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    end = time.monotonic() + 5
    while any(map(is_running, family)) and time.monotonic() < end:
        time.sleep(0.01)


def is_running(process: psutil.Process) -> bool:
    """Whether a process is there and more than a zombie; a grandchild's zombie is the system's to take away."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run_in_thread(function: Callable):
    """Run a function that must not be interrupted; beside a running event loop, as a notebook's, in a thread of its own.

    Beside such a loop, ipyparallel's blocking functions would start a thread for themselves, which never ends.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()
