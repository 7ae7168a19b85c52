"""The process that those of a cluster are forked from: it has imported TensorFlow, and never runs it.

Forks start at once and share the memory of what was imported; they are sound as long as no thread of TensorFlow runs
here. The notebook's side is `dgc_lab.cluster.process_group`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import os
import signal
import sys
import types
from multiprocessing.connection import Client, Connection
from pathlib import Path

import cloudpickle
import psutil

from dgc_lab.cluster import watchdog
from dgc_lab.cluster.magic import TELLING, raise_if_interrupted
from dgc_lab.cluster.processes import is_running
from dgc_lab.cluster.rank import items_of, listen_for_stop, outcome_of, plainly

SOCKET, PIDS = "socket", "pids"  # in the folder that is shared with the notebook
CRASH = ".crash"  # after the process's name: where Python says by what it crashed
# Keras imports these where it finds them, for what a cluster does not do: a third of the time that all imports take.
LEFT_OUT = ("matplotlib", "sklearn")


def main() -> None:
    """Import the modules, then fork a process for each order of the notebook, until no more orders come."""
    notebook = os.getppid()
    sys.modules.update(dict.fromkeys(LEFT_OUT))  # not to be found, until all else is there
    gc.disable()  # it would look through all that stays, again and again: an eighth of the time
    for module in sys.argv[1:]:
        importlib.import_module(module)
    import tensorflow as tf

    for module in LEFT_OUT:
        del sys.modules[module]
    tf.get_logger().setLevel("ERROR")
    gc.collect()
    gc.freeze()  # else the collector of each fork writes to all that they share
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead children vanish, and are then known to be dead
    listen_for_stop()
    connection = call_notebook("host")
    while True:
        try:
            name, variables, prepare = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            # The notebook wants no more processes, or is gone. Those that are there keep what was imported; here a
            # program that only watches takes its place.
            arguments = ["-m", watchdog.__name__, str(notebook), os.environ[watchdog.FOLDER]]
            os.execv(sys.executable, [sys.executable, *arguments])
        child = os.fork()
        if child == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                live(name, variables, prepare)
            finally:
                os._exit(0)
        connection.send_bytes(cloudpickle.dumps(child))


def call_notebook(name: str) -> Connection:
    """Connect to the notebook, and say who is there."""
    folder = os.environ[watchdog.FOLDER]
    connection = Client(f"{folder}/{SOCKET}", "AF_UNIX")
    partly = Path(folder, PIDS, f"{name}.part")
    partly.write_text(str(os.getpid()))
    partly.replace(Path(folder, PIDS, name))  # others may read it at this moment, in `process_of`
    connection.send_bytes(cloudpickle.dumps(name))
    return connection


def live(name: str, variables: dict[str, str], prepare) -> None:
    """What a forked process does: get ready (``prepare``), tell the notebook, run its functions one after another."""
    os.environ.update(variables)
    sys.modules["__main__"] = types.ModuleType("__main__")  # where the notebook's cells run (`magic.run_cell`)
    faulthandler.enable(open(Path(os.environ[watchdog.FOLDER], PIDS, name + CRASH), "w"))  # noqa: SIM115 - it stays open
    connection = call_notebook(name)
    channel = ResultChannel(connection)
    channel.tell("outcome", outcome_of(cloudpickle.dumps((prepare, (), {})), plainly))
    sys.stdout = channel
    while True:
        try:
            payload, yields = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            return
        channel.tell("outcome", outcome_of(payload, channel.stream if yields else plainly))


class ResultChannel(io.TextIOBase):
    """Tells the notebook what a function prints, yields and returns; any thread may print."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def tell(self, kind: str, content) -> None:
        """Send a message: ``"item"``, ``"text"`` or ``"outcome"`` (pickled itself), and its content."""
        message = cloudpickle.dumps((kind, content))
        with TELLING:
            self._connection.send_bytes(message)

    def write(self, text: str) -> int:
        self.tell("text", text)
        raise_if_interrupted()
        return len(text)

    def stream(self, outcome, function, args, kwargs):
        """Run a generator function, and send what it yields; one of the ways for `outcome_of`."""
        for item in items_of(function, args, kwargs):
            self.tell("item", item)


def process_of(name: str) -> int | None:
    """The id of the cluster's process of that name, None where it does not live now."""
    with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
        process = psutil.Process(int(Path(os.environ[watchdog.FOLDER], PIDS, name).read_text()))
        if is_running(process):
            return process.pid
    return None


if __name__ == "__main__":
    main()
