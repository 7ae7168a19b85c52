"""What runs inside the processes beside the notebook: its functions, whose end is told; how a rank joins Horovod."""

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

# No `threading.Event`: a second signal within the handler of the first would wait for the event's lock for ever.
_stop = False
_kept = contextlib.ExitStack()  # what lives as long as the process


@dataclass(frozen=True)
class RemoteError:
    """An exception in a process, in a form that every notebook can read, whatever its class was."""

    kind: str  # name of its class
    message: str
    trace: str  # its traceback, as Python prints it


@dataclass
class CallResult:
    """How a call ended in a process."""

    value: Any = None
    problem: RemoteError | None = None
    batches: int = 0  # of a stream that were published, where items travel apart from the result


def stop_requested() -> bool:
    """Whether the notebook has asked this process to stop; False outside a cluster's process.

    It becomes true on each rank at its own moment. A training loop must therefore agree with the other ranks on the
    step to stop at, by a collective of its own: a rank that leaves alone makes the others wait for ever.

    Example:
        >>> stop_requested()
        False
    """
    return _stop


def request_stop(*_) -> None:
    """Make `stop_requested` true in this process; as a signal's handler too."""
    global _stop
    _stop = True


def listen_for_stop() -> None:
    """Let the stop signal make `stop_requested` true; to be called in the main thread."""
    # Python runs a signal's handler between two steps of the main thread, where the functions run too.
    signal.signal(STOP_SIGNAL, request_stop)


def serve_rendezvous() -> int:
    """Run Horovod's rendezvous server on this process's loopback interface for as long as it lives; gives its port."""
    return _kept.enter_context(rendezvous())


def join(variables: dict[str, str], path: list[str]) -> int:
    """Become a rank: set its variables, find the modules that the notebook finds, meet the others; count its GPUs."""
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


def outcome_of(payload: bytes, run: Callable) -> bytes:
    """Run a function that came from the notebook, and say how it ended, whatever it raised: a `CallResult`, pickled.

    ``run`` gets the `CallResult` to fill, the function, its arguments and its keywords; it returns the value.
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
            trace = trace.tb_next  # begin in the notebook's function, not in the lab's
        printed = "".join(traceback.format_exception(type(error), error, trace))
        problem = RemoteError(type(error).__name__, str(error), printed)
        return cloudpickle.dumps(CallResult(None, problem, outcome.batches))


def plainly(outcome: CallResult, function: Callable, args: tuple, kwargs: dict):
    """Run a function; one of the ways for `outcome_of`."""
    return function(*args, **kwargs)


def items_of(function: Callable, args: tuple, kwargs: dict) -> Iterator:
    """What a generator function yields; a TypeError where it is none."""
    items = function(*args, **kwargs)
    if not hasattr(items, "__next__"):
        raise TypeError(f"stream needs a generator function, {function.__name__} returned {type(items).__name__}")
    return items


def exhaust(function: Callable, /, *args, **kwargs) -> None:
    """Run a generator function whose items nobody wants, as those of all ranks but the first."""
    for _ in items_of(function, args, kwargs):
        pass
