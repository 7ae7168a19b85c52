"""Processes alongside the notebook: start, watch and end them without leaving anything behind."""

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
    """Processes of one cluster: a `ProcessGroup` on this machine, or the user's own `UserEngines`.

    Both have ``closed`` (all processes were stopped), ``dead()`` (names of dead processes without which the others
    cannot continue), ``signal(number)``, ``kill()``, ``close()``, and ``call(payloads, grace)``, which starts a call.
    ``payloads`` maps process names to ``(function, args, kwargs)``, pickled, and whether the function yields items.
    """

    what = "processes"  # their name in messages
    died, failed = ProcessDied, FunctionFailed  # errors for a dead process and for a function that raised
    broken: str | None = None  # why all processes were stopped

    def crash_reason(self, names: list[str]) -> str:
        """Return why these processes crashed, or an empty text if that is not known."""
        return ""

    def terminate(self, reason: str) -> None:
        """End all processes at once, and keep the reason."""
        self.broken = reason
        self.kill()

    def raise_if_dead(self) -> None:
        """Stop all processes and raise ProcessDied if one is gone; raise LabError if they were stopped already."""
        dead = self.dead()  # first, because processes have not died if another thread closes the cluster now
        if self.closed:
            raise LabError(f"the {self.what} were stopped. start() starts them")
        if dead:
            error = self.died(dead, self.crash_reason(dead))
            self.terminate(str(error).split(";")[0])
            raise error


def start_guarded(module: str, *arguments: str, private: bool, variables: Mapping[str, str], **pipes):
    """Start a Python module that ends with this process; return its process and its folder, which is then removed.

    The module has the import path of this process, leads its own process group, and begins when its stdin is closed.
    Only this user can read the folder, which holds the module's temporary files. ``pipes`` are passed to
    ``subprocess.Popen``.
    """
    # The watchdog starts before the folder is created, because this process can be killed at any moment.
    folder = os.path.join(tempfile.gettempdir(), f"dgc_lab-{secrets.token_hex(4)}")
    network = "private" if private else "open"
    command = [sys.executable, "-m", "dgc_lab.cluster.watchdog", str(os.getpid()), folder, network, module, *arguments]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": folder, FOLDER: folder}
    process = psutil.Popen(
        [*private_network.command_prefix(), *command] if private else command,
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
    """Kill a process that leads its own group, with the group and all its children, and wait until they have ended."""
    family, new = [], [leader]
    with defer_sigint():  # suspended processes that are not killed would remain
        while new:  # suspended processes start no others that the next pass would miss
            family += new
            for process in new:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
            new = []
            with contextlib.suppress(psutil.NoSuchProcess):
                new = [process for process in leader.children(recursive=True) if process not in family]
        # A group outlives its leader, and its ID is not reused before it is empty.
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
    """Return whether a process exists and is not a zombie; the system removes the zombies of grandchildren."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def has_ended(process: psutil.Process) -> bool:
    """Return whether all threads of a process have ended; until then, a killed process holds its ports."""
    try:
        return not is_running(process) and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def run_in_thread(function: Callable):
    """Run a function of ipyparallel, in a thread if an event loop is running, as in a notebook.

    In the thread of the event loop, ipyparallel's blocking functions would start another one, which never ends.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@contextlib.contextmanager
def defer_sigint():
    """Delay an interrupt until the block has ended, so that it cannot separate an action from its record.

    A second interrupt is not delayed.
    """
    if threading.current_thread() is not threading.main_thread():  # no other thread gets interrupts
        yield
        return
    # Get the previous handler first, because an interrupt can arrive at once.
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
