"""Run a Python module only while its parent is alive: a notebook's kernel can be killed at any moment.

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

SECONDS_BETWEEN_POLLS = 0.5
FOLDER = "DGC_LAB_FOLDER"  # environment variable with the path of the folder


def watch(parent: int, folder: str) -> None:
    """Check for the parent twice a second; when it is gone, remove ``folder`` and kill this process's group.

    ``PR_SET_PDEATHSIG`` would be simpler, but it acts when the *thread* that started the process ends, and in a
    notebook that is often a widget's.
    """
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_POLLS)
    shutil.rmtree(folder, ignore_errors=True)
    remove_semaphores(folder)
    os.killpg(0, signal.SIGKILL)


def remove_semaphores(folder: str) -> None:
    """Remove semaphores named after the folder; the tracker that would do it is killed with the other processes."""
    for semaphore in glob.glob(f"/dev/shm/sem.{os.path.basename(folder)}-*"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(semaphore)


def main() -> None:
    """Start two watchdogs, then become the module; without a module, only watch.

    The second one is a small process that does the same if this process is gone. If memory runs out, the parent and
    this process can be killed at the same moment, because they are the largest.
    """
    parent, folder, *module = sys.argv[1:]
    if not module:
        watch(int(parent), folder)
    this = os.getpid()
    if os.fork() == 0:
        os.closerange(0, 3)  # so that readers of the module's output do not wait for this process
        watch(this, folder)
    threading.Thread(target=watch, args=(int(parent), folder), name="watchdog", daemon=True).start()
    sys.stdin.read()  # the parent closes it when everything is ready
    network, name, *arguments = module
    if network == "private":
        raise_loopback()
        socket.sethostname("localhost")  # Gloo resolves this name; the machine's own often leads to other interfaces
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
