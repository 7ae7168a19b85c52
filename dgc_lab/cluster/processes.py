"""Processes alongside the notebook: start, watch and end them without leaving anything behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping

import psutil

from dgc_lab.cluster import private_network
from dgc_lab.cluster.watchdog import FOLDER


def start_guarded(module: str, *arguments: str, private: bool, variables: Mapping[str, str], **pipes):
    """Start a Python module in a process that ends when this one does; return that process and its folder.

    The module has the import path of this process, leads its own process group, and begins when its stdin is closed.
    Only this user can read the folder, which holds the module's temporary files and is removed at the end. ``pipes``
    are passed to ``subprocess.Popen``.
    """
    # The watchdog starts before the folder is created, because this process can be killed at any moment.
    folder = os.path.join(tempfile.gettempdir(), f"dgc_lab-{secrets.token_hex(4)}")
    network = "private" if private else "open"
    command = [sys.executable, "-m", "dgc_lab.cluster.watchdog", str(os.getpid()), folder, network, module, *arguments]
    searched = [path for path in sys.path if path and isinstance(path, str)]  # imports ignore entries of other types
    own = {"PYTHONPATH": os.pathsep.join(searched), "TMPDIR": folder, FOLDER: folder}
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
