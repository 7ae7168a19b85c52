"""What runs inside a rank: it joins the Horovod job, runs the notebook's functions, and hands their results back.

The notebook's side is `dgc_lab.cluster.horovod_ranks`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from dgc_lab.common import free_memory
from dgc_lab.install.launch_env import thread_variables

SECONDS_BETWEEN_BATCHES = 0.04
STOP_SIGNAL = signal.SIGUSR1

_stop = threading.Event()


@dataclass(frozen=True)
class RemoteError:
    """An exception in a rank, in a form that every notebook can read, whatever its class was.

    Attributes:
        kind: name of its class.
        message: its text.
        trace: its traceback, as Python prints it.
    """

    kind: str
    message: str
    trace: str


@dataclass
class CallResult:
    """How a call ended on a rank.

    Attributes:
        value: what the function returned.
        problem: what it raised, or None.
        batches: how many batches of a stream the rank has published.
    """

    value: Any = None
    problem: RemoteError | None = None
    batches: int = 0


def stop_requested() -> bool:
    """Whether the notebook has asked the ranks to stop; False outside a rank.

    It becomes true on each rank at its own moment. A training loop must therefore agree with the other ranks on the
    step to stop at, by a collective of its own: a rank that leaves alone makes the others wait for ever.

    Example:
        >>> stop_requested()
        False
    """
    return _stop.is_set()


def listen_for_stop() -> None:
    """Let the stop signal make `stop_requested` true; to be called in the main thread."""
    # Python runs a signal's handler between two steps of the main thread, where the functions run too.
    signal.signal(STOP_SIGNAL, lambda *_: _stop.set())


def join(variables: dict[str, str], path: list[str]) -> int:
    """Become a rank: set the variables, import Horovod, meet the others.

    Args:
        variables: environment of this rank (`dgc_lab.install.launch_env`).
        path: the notebook's ``sys.path``, so that a rank finds the same modules.

    Returns:
        Number of GPUs that it sees.
    """
    listen_for_stop()
    os.environ.update(thread_variables(int(variables["HOROVOD_LOCAL_SIZE"])) | variables)
    sys.path.extend(entry for entry in path if entry not in sys.path)
    import horovod.tensorflow as hvd
    import tensorflow as tf

    # Each new training traces its own step; TensorFlow would warn of that after the fifth, in the notebook's cells.
    tf.get_logger().setLevel("ERROR")
    hvd.init()
    return len(tf.config.list_physical_devices("GPU"))


def leave() -> None:
    """Leave the Horovod job; the process lives on."""
    import horovod.tensorflow as hvd

    hvd.shutdown()


def call(payload: bytes) -> bytes:
    """Run a function of the notebook.

    Args:
        payload: cloudpickle of ``(function, args, kwargs)``; it came over ipyparallel's signed channel.

    Returns:
        cloudpickle of the `CallResult`.
    """
    return outcome_of(payload, lambda outcome, function, args, kwargs: function(*args, **kwargs))


def stream(payload: bytes) -> bytes:
    """Run a generator function of the notebook; rank 0 publishes what it yields, batch by batch, while it runs.

    Args and result are those of `call`; the outcome says how many batches the notebook has to wait for.
    """
    return outcome_of(payload, _stream)


def outcome_of(payload: bytes, run: Callable) -> bytes:
    """Run a function that came from the notebook, and say how it ended, whatever it raised.

    Args:
        payload: as in `call`.
        run: gets the outcome to fill, the function, its arguments and its keywords; returns the function's value.

    Returns:
        cloudpickle of the `CallResult`.
    """
    _stop.clear()
    free_memory()  # models and traces of earlier calls
    outcome = CallResult()
    try:
        function, args, kwargs = cloudpickle.loads(payload)
        outcome.value = run(outcome, function, args, kwargs)
        return cloudpickle.dumps(outcome)
    except BaseException as error:  # KeyboardInterrupt and SystemExit too: the notebook waits for an answer
        trace = error.__traceback__
        while trace.tb_next and trace.tb_frame.f_code.co_filename in (__file__, run.__code__.co_filename):
            trace = trace.tb_next  # begin in the notebook's function, not in the lab's
        printed = "".join(traceback.format_exception(type(error), error, trace))
        problem = RemoteError(type(error).__name__, str(error), printed)
        return cloudpickle.dumps(CallResult(None, problem, outcome.batches))


def _stream(outcome, function, args, kwargs):
    items = function(*args, **kwargs)
    if not hasattr(items, "__next__"):
        raise TypeError(f"stream needs a generator function, {function.__name__} returned {type(items).__name__}")
    if os.environ["HOROVOD_RANK"] != "0":
        for _ in items:
            pass
        return
    publisher = Publisher()
    try:
        for item in items:
            publisher.waiting.append(item)
    finally:
        outcome.batches = publisher.finish()
    if publisher.error:
        raise publisher.error


class Publisher:
    """Sends what lies in ``waiting`` to the notebook, 25 times a second, from a thread of its own.

    A batch at a time, because a message costs about a millisecond, and a rank may yield thousands of items a second.
    """

    def __init__(self):
        self.waiting, self.error = [], None
        self._sent = 0
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._thread.start()

    def _work(self):
        try:
            while not self._finished.wait(SECONDS_BETWEEN_BATCHES):
                self._publish()
            self._publish()
        except Exception as error:
            self.error = error
            _stop.set()  # the training loop takes this to the other ranks as it takes a stop

    def _publish(self):
        from ipyparallel.engine.datapub import publish_data

        # Only the training thread appends, and only at the end: the first items can be taken without a lock.
        batch = self.waiting[:]
        if batch:
            publish_data({f"batch {self._sent}": cloudpickle.dumps(batch)})
            del self.waiting[: len(batch)]
            self._sent += 1

    def finish(self) -> int:
        """Send the rest; returns the number of batches sent in all."""
        self._finished.set()
        self._thread.join()
        return self._sent
