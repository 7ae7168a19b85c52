"""Code inside the processes of a cluster: run the notebook's functions, report their outcome, and join Horovod."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle

from dgc_lab.common import free_memory
from dgc_lab.install.launch_env import rendezvous, thread_variables

STOP_SIGNAL = signal.SIGUSR1
OWN_FOLDER = os.path.dirname(__file__)

# Not a `threading.Event`: a second signal in the handler of the first would wait for the event's lock forever.
_stop = False
_resources = contextlib.ExitStack()  # closed when the process ends


@dataclass(frozen=True)
class RemoteError:
    """An exception in a process, in a form that every notebook can read, regardless of its class."""

    kind: str  # name of its class
    message: str
    trace: str  # its traceback, as Python prints it


@dataclass
class CallResult:
    """Outcome of a call in a process."""

    value: Any = None
    problem: RemoteError | None = None
    batches: int = 0  # number of published batches of a stream, if items travel separately


def stop_requested() -> bool:
    """Return whether the notebook has asked this process to stop; False outside a cluster's processes.

    It becomes true at a different moment on each rank. A training loop must therefore agree with the other ranks on the
    step to stop at, by a collective of its own: if one rank stops alone, the others wait forever.

    Example:
        >>> stop_requested()
        False
    """
    return _stop


def request_stop(*_) -> None:
    """Make `stop_requested` return True in this process; also usable as a signal handler."""
    global _stop
    _stop = True


def listen_for_stop() -> None:
    """Make `stop_requested` return True after the stop signal; call this in the main thread."""
    # Python runs signal handlers between two instructions of the main thread, where the functions run too.
    signal.signal(STOP_SIGNAL, request_stop)


def serve_rendezvous() -> int:
    """Run Horovod's rendezvous server on the loopback interface until this process ends, and return its port."""
    return _resources.enter_context(rendezvous())


def join(variables: dict[str, str], path: list[str]) -> int:
    """Make this process a rank: set its variables and import path, join the others; return its number of GPUs."""
    listen_for_stop()
    os.environ.update(thread_variables(int(variables["HOROVOD_LOCAL_SIZE"])) | variables)
    sys.path.extend(entry for entry in path if entry not in sys.path)
    import horovod.tensorflow as hvd
    import tensorflow as tf

    # Each new training traces its own step; after the fifth, TensorFlow would print a warning in the notebook.
    tf.get_logger().setLevel("ERROR")
    hvd.init()
    return len(tf.config.list_physical_devices("GPU"))


def leave() -> None:
    """Leave the Horovod job; the process keeps running."""
    import horovod.tensorflow as hvd

    hvd.shutdown()


def outcome_of(payload: bytes, run: Callable) -> bytes:
    """Run a function from the notebook and return a pickled `CallResult`, even if the function raises an exception.

    ``run`` receives the `CallResult` to fill, the function, its arguments and its keyword arguments, and returns the
    value.
    """
    global _stop
    _stop = False
    free_memory()  # models and traces of earlier calls
    outcome = CallResult()
    try:
        function, args, kwargs = cloudpickle.loads(payload)
        outcome.value = run(outcome, function, args, kwargs)
        return cloudpickle.dumps(outcome)
    except BaseException as error:  # KeyboardInterrupt and SystemExit too: the notebook waits for an answer
        trace = error.__traceback__
        while trace.tb_next and os.path.dirname(trace.tb_frame.f_code.co_filename) == OWN_FOLDER:
            trace = trace.tb_next  # begin in the notebook's function, not in the library's
        printed = "".join(traceback.format_exception(type(error), error, trace))
        problem = RemoteError(type(error).__name__, str(error), printed)
        return cloudpickle.dumps(CallResult(None, problem, outcome.batches))


def run_function(outcome: CallResult, function: Callable, args: tuple, kwargs: dict):
    """Run a function and return its value; a ``run`` argument of `outcome_of`."""
    return function(*args, **kwargs)


def items_of(function: Callable, args: tuple, kwargs: dict) -> Iterator:
    """Return the iterator of a generator function; raise TypeError if it is not one."""
    items = function(*args, **kwargs)
    if not hasattr(items, "__next__"):
        raise TypeError(f"stream needs a generator function, {function.__name__} returned {type(items).__name__}")
    return items


def exhaust(function: Callable, /, *args, **kwargs) -> None:
    """Run a generator function and discard its items, like those of all ranks but the first."""
    for _ in items_of(function, args, kwargs):
        pass
