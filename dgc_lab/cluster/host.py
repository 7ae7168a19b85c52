"""Host process from which a cluster's processes are forked: it imports TensorFlow, but never runs it.

Forks start at once and share the memory of the imported modules. They are safe as long as no TensorFlow thread runs in
the host. `dgc_lab.cluster.process_group` is the notebook's side.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib
import io
import os
import signal
import sys
import traceback
import types
from multiprocessing.connection import Client, Connection
from pathlib import Path

import cloudpickle
import psutil

from dgc_lab.cluster import watchdog
from dgc_lab.cluster.magic import SEND_LOCK, raise_if_interrupted
from dgc_lab.cluster.processes import is_running
from dgc_lab.cluster.rank import listen_for_stop, outcome_of

SOCKET, PIDS = "socket", "pids"  # in the folder shared with the notebook
CRASH = ".crash"  # suffix of the file in which Python records why a process crashed
# Keras imports these if it finds them, but a cluster does not need them. They take a third of the import time.
HIDDEN_MODULES = ("matplotlib", "sklearn")


def main() -> None:
    """Import the modules, then fork a process for each request from the notebook until it closes the connection."""
    notebook = os.getppid()
    sys.modules.update(dict.fromkeys(HIDDEN_MODULES))  # hidden until the other modules are imported
    gc.disable()  # it would scan the imported modules again and again, an eighth of the time
    for module in sys.argv[1:]:
        importlib.import_module(module)
    import tensorflow as tf

    for module in HIDDEN_MODULES:
        del sys.modules[module]
    # Each new training run traces its own step; after the fifth, TensorFlow would print a warning in the notebook.
    tf.get_logger().setLevel("ERROR")
    gc.collect()
    gc.freeze()  # otherwise, each fork's collector would write to the shared memory
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead children leave no zombies, so they are known to be dead
    listen_for_stop()
    connection = connect_to_notebook("host")
    while True:
        try:
            name, variables, prepare = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            # The notebook needs no more processes, or is gone. The existing processes keep the imported modules;
            # this one is replaced by a program that only watches.
            arguments = ["-m", watchdog.__name__, str(notebook), os.environ[watchdog.FOLDER]]
            os.execv(sys.executable, [sys.executable, *arguments])
        child = os.fork()
        if child == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                run_member(name, variables, prepare)
            except BaseException:  # os._exit would hide it
                traceback.print_exc()
            finally:
                os._exit(0)
        connection.send_bytes(cloudpickle.dumps(child))


def connect_to_notebook(name: str) -> Connection:
    """Connect to the notebook and send it this process's name."""
    folder = os.environ[watchdog.FOLDER]
    connection = Client(f"{folder}/{SOCKET}", "AF_UNIX")
    partly = Path(folder, PIDS, f"{name}.part")
    partly.write_text(str(os.getpid()))
    partly.replace(Path(folder, PIDS, name))  # atomic, because `process_of` may be reading it
    connection.send_bytes(cloudpickle.dumps(name))
    return connection


def run_member(name: str, variables: dict[str, str], prepare) -> None:
    """Run a forked process: call ``prepare``, send its outcome, then run the notebook's functions one after another."""
    os.environ.update(variables)
    sys.modules["__main__"] = types.ModuleType("__main__")  # where the notebook's cells run (`magic.run_cell`)
    faulthandler.enable(open(Path(os.environ[watchdog.FOLDER], PIDS, name + CRASH), "w"))  # noqa: SIM115 - it stays open
    connection = connect_to_notebook(name)
    channel = ResultChannel(connection)
    channel.send("outcome", outcome_of(cloudpickle.dumps((prepare, (), {}))))
    sys.stdout = channel
    while True:
        try:
            payload, yields = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            return
        channel.send("outcome", outcome_of(payload, functools.partial(channel.send, "item") if yields else None))


class ResultChannel(io.TextIOBase):
    """Channel that sends a function's output, items and outcome to the notebook; any thread may print."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def send(self, kind: str, content) -> None:
        """Send a message: its kind, ``"item"``, ``"text"`` or ``"outcome"`` (with pickled content), and its content."""
        message = cloudpickle.dumps((kind, content))
        with SEND_LOCK:
            self._connection.send_bytes(message)

    def write(self, text: str) -> int:
        self.send("text", text)
        raise_if_interrupted()
        return len(text)


def process_of(name: str) -> int | None:
    """Return the process ID of the cluster's process of that name, or None if it is not alive."""
    with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
        process = psutil.Process(int(Path(os.environ[watchdog.FOLDER], PIDS, name).read_text()))
        if is_running(process):
            return process.pid
    return None


if __name__ == "__main__":
    main()
