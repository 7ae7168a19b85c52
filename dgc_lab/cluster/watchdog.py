"""Run a Python module for as long as its parent lives: a notebook's kernel can be killed at any moment.

python -m dgc_lab.cluster.watchdog PARENT FOLDER NETWORK MODULE ARGUMENTS...
"""

from __future__ import annotations

import contextlib
import glob
import os
import runpy
import shutil
import signal
import socket
import sys
import threading
import time

from dgc_lab.cluster.private_network import raise_loopback

SECONDS_BETWEEN_LOOKS = 0.5
FOLDER = "DGC_LAB_FOLDER"  # the variable that names the folder


def watch(parent: int, folder: str) -> None:
    """Look for the parent twice a second; when it is gone, remove ``folder`` and kill the group of this process.

    ``PR_SET_PDEATHSIG`` would be simpler, but it strikes when the *thread* ends that started the process, and in a
    notebook that is often a widget's.
    """
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    shutil.rmtree(folder, ignore_errors=True)
    remove_semaphores(folder)
    os.killpg(0, signal.SIGKILL)


def remove_semaphores(folder: str) -> None:
    """Remove from shared memory what bears the folder's name; the tracker that would do it is killed with the rest."""
    for semaphore in glob.glob(f"/dev/shm/sem.{os.path.basename(folder)}-*"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(semaphore)


def main() -> None:
    """Start two watches, then become the module; without one, only watch.

    The second is a small process that does the same when this one is gone. Where memory is short, the parent and this
    process can be killed at one moment, as the largest that there are.
    """
    parent, folder, *module = sys.argv[1:]
    if not module:
        watch(int(parent), folder)
    this = os.getpid()
    if os.fork() == 0:
        os.closerange(0, 3)  # who reads what the module prints waits for no other's end
        watch(this, folder)
    threading.Thread(target=watch, args=(int(parent), folder), name="watchdog", daemon=True).start()
    sys.stdin.read()  # the parent closes it when all is ready
    network, name, *arguments = module
    if network == "private":
        raise_loopback()
        socket.sethostname("localhost")  # Gloo looks it up; the machine's own often leads to its other interfaces
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
