"""Processes beside the notebook: how they are started so that nothing of them is left, watched, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import psutil

from dgc_lab.cluster import private_network
from dgc_lab.cluster.calls import FunctionFailed, ProcessDied
from dgc_lab.cluster.watchdog import FOLDER
from dgc_lab.common import LabError


class Processes:
    """Those of one cluster: a `ProcessGroup` on this machine, or the `ForeignEngines` of the user's.

    Both have ``closed`` (all was stopped), ``dead()`` (names of those that are gone and without which the others cannot
    go on), ``signal(number)``, ``kill()``, ``close()``, and ``call(payloads, grace)``, which sends functions on their
    way: by name the cloudpickle of ``(function, args, kwargs)``, and whether the function yields items.
    """

    what = "processes"  # how messages call them
    died, failed = ProcessDied, FunctionFailed  # what tells of a death, and of a function that raised
    broken: str | None = None  # why all were stopped

    def how_ended(self, names: list[str]) -> str:
        """What those processes ended by, where they crashed and it is known."""
        return ""

    def terminate(self, reason: str) -> None:
        """End all at once, and keep the reason."""
        self.broken = reason
        self.kill()

    def look_for_dead(self) -> None:
        """Stop all, and raise ProcessDied, when one is gone; a LabError where all were stopped."""
        dead = self.dead()  # first: those of which another thread closes the cluster meanwhile have not died
        if self.closed:
            raise LabError(f"the {self.what} were stopped. start() starts them")
        if dead:
            error = self.died(dead, self.how_ended(dead))
            self.terminate(str(error).split(";")[0])
            raise error


def start_guarded(module: str, *arguments: str, private: bool, variables: Mapping[str, str], **pipes):
    """Start a Python module that ends when this process does; returns it and its folder, which goes then too.

    It finds the modules that this process finds, leads a group of its own, and begins when its stdin is closed. The
    folder is for this user alone, and where the module's temporary files go. ``pipes`` are of ``subprocess.Popen``.
    """
    # Its watchdog is on its way before it is made: this process can be killed at any moment.
    folder = os.path.join(tempfile.gettempdir(), f"dgc_lab-{secrets.token_hex(4)}")
    network = "private" if private else "open"
    command = [sys.executable, "-m", "dgc_lab.cluster.watchdog", str(os.getpid()), folder, network, module, *arguments]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": folder, FOLDER: folder}
    process = psutil.Popen(
        [*private_network.entrance(), *command] if private else command,
        env=os.environ | variables | own,
        stdin=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **pipes,
    )
    try:
        os.mkdir(folder, 0o700)
    except OSError:
        kill(process)
        process.wait(5)
        raise
    return process, folder


def kill(leader: psutil.Process) -> None:
    """Kill a process that leads a group of its own, with its group and all its children, and wait for them."""
    family, new = [], [leader]
    with interrupt_held_back():  # what was stopped and not killed would stay
        while new:  # what stands still starts nothing that this look does not find
            family += new
            for process in new:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
            new = []
            with contextlib.suppress(psutil.NoSuchProcess):
                new = [process for process in leader.children(recursive=True) if process not in family]
        # A group outlives its leader, and its number is not given away before it is empty.
        if leader.is_running() or not psutil.pid_exists(leader.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader.pid, signal.SIGKILL)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    end = time.monotonic() + 5
    while any(map(is_running, family)) and time.monotonic() < end:
        time.sleep(0.01)


def is_running(process: psutil.Process) -> bool:
    """Whether a process is there and more than a zombie; a grandchild's zombie is the system's to take away."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def has_ended(process: psutil.Process) -> bool:
    """Whether nothing of a process runs: one that was killed holds its ports until its last thread has ended."""
    try:
        return not is_running(process) and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def run_in_thread(function: Callable):
    """Run a function of ipyparallel; beside a running event loop, as in a notebook, in a thread.

    Beside such a loop, its blocking functions would start a thread for themselves, which never ends.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@contextlib.contextmanager
def interrupt_held_back():
    """Let an interrupt come after the block: not between a deed and its note. A second one comes at once."""
    if threading.current_thread() is not threading.main_thread():  # interrupts come in no other
        yield
        return
    # The handler of before is known first: an interrupt can come at once.
    held, usual = [], signal.getsignal(signal.SIGINT)

    def hold(number, frame):
        signal.signal(signal.SIGINT, usual)
        held.append(number)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if held:
            signal.raise_signal(signal.SIGINT)
