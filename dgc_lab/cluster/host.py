"""The process that those of a TensorFlow cluster are forked from: it has imported TensorFlow, and never runs it.

    python -m dgc_lab.cluster.watchdog PARENT FOLDER dgc_lab.cluster.host NETWORK

The notebook's side is `dgc_lab.cluster.process_group`. Forks start at once and share the memory of what was imported; they are
sound as long as no thread of TensorFlow runs here.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
from multiprocessing.connection import Client, Connection
from pathlib import Path

import cloudpickle

from dgc_lab.cluster import watchdog as guard
from dgc_lab.cluster.private_network import raise_loopback
from dgc_lab.cluster.rank import listen_for_stop, outcome_of

SOCKET, PIDS = "socket", "pids"  # in the folder that is shared with the notebook
FOLDER = "DGC_LAB_FOLDER"  # the variable that names it


def main() -> None:
    """Import TensorFlow, then fork a process for each order of the notebook, until the notebook is gone."""
    if sys.argv[1] == "private":
        raise_loopback()
    import keras  # noqa: F401 - imported here once, for all
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    gc.collect()
    gc.freeze()  # else the collector of each fork writes to all that they share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead children vanish, and are then known to be dead
    listen_for_stop()
    host = os.getpid()
    connection = call_notebook("host")
    while True:
        try:
            name, variables, prepare = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            while True:  # the notebook is gone, or about to end all: the guard clears up, or the notebook does
                signal.pause()
        if os.fork() == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            threading.Thread(target=guard.watch, args=(host, os.environ[FOLDER]), name="guard", daemon=True).start()
            try:
                live(name, variables, prepare)
            finally:
                os._exit(0)


def call_notebook(name: str) -> Connection:
    """Connect to the notebook, and say who is there."""
    folder = os.environ[FOLDER]
    connection = Client(f"{folder}/{SOCKET}", "AF_UNIX")
    partly = Path(folder, PIDS, f"{name}.part")
    partly.write_text(str(os.getpid()))
    partly.replace(Path(folder, PIDS, name))  # others may read it at this moment, in `alive`
    connection.send_bytes(cloudpickle.dumps((name, os.getpid())))
    return connection


def live(name: str, variables: dict[str, str], prepare) -> None:
    """What a forked process does: get ready, tell the notebook, run its functions one after another.

    Args:
        name: how the notebook calls this process.
        variables: environment.
        prepare: called first, such as to start a server.
    """
    os.environ.update(variables)
    connection = call_notebook(name)
    teller = ResultChannel(connection)
    teller.tell("outcome", outcome_of(cloudpickle.dumps((prepare, (), {})), teller.call))
    sys.stdout = teller
    while True:
        try:
            payload, streamed = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            return
        teller.tell("outcome", outcome_of(payload, teller.stream if streamed else teller.call))


class ResultChannel(io.TextIOBase):
    """Tells the notebook what a function prints, yields and returns; any thread may print."""

    def __init__(self, connection: Connection):
        self._connection, self._lock = connection, threading.Lock()

    def tell(self, kind: str, content) -> None:
        """Send a message: ``"item"``, ``"text"`` or ``"outcome"`` (pickled itself), and its content."""
        message = cloudpickle.dumps((kind, content))
        with self._lock:
            self._connection.send_bytes(message)

    def write(self, text: str) -> int:
        self.tell("text", text)
        return len(text)

    def call(self, outcome, function, args, kwargs):
        """Run a function."""
        return function(*args, **kwargs)

    def stream(self, outcome, function, args, kwargs):
        """Run a generator function, and send what it yields."""
        items = function(*args, **kwargs)
        if not hasattr(items, "__next__"):
            raise TypeError(f"stream needs a generator function, {function.__name__} returned {type(items).__name__}")
        for item in items:
            self.tell("item", item)


def alive(name: str) -> bool:
    """Whether the cluster's process of that name lives now."""
    try:
        os.kill(int(Path(os.environ[FOLDER], PIDS, name).read_text()), 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True


if __name__ == "__main__":
    main()
