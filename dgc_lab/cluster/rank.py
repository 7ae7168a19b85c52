"""Code inside the processes of a cluster: run the notebook's functions, report their outcome, and join Horovod."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle

from dgc_lab.common import free_memory
from dgc_lab.install.launch_env import rendezvous

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


def join(variables: dict[str, str]) -> int:
    """Make this process a rank: set its environment variables and join the others; return its number of GPUs."""
    os.environ.update(variables)
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    return len(tf.config.list_physical_devices("GPU"))


def outcome_of(payload: bytes, send_item: Callable[[Any], None] | None = None) -> bytes:
    """Run a function from the notebook and return a pickled `CallResult`, even if the function raises an exception.

    ``send_item`` receives each item of a generator function; it is None for any other function.
    """
    global _stop
    _stop = False
    free_memory()  # models and traces of earlier calls
    value = None
    try:
        function, args, kwargs = cloudpickle.loads(payload)
        if send_item is None:
            value = function(*args, **kwargs)
        else:
            for item in items_of(function, args, kwargs):
                send_item(item)
        return cloudpickle.dumps(CallResult(value))
    except BaseException as error:  # KeyboardInterrupt and SystemExit too: the notebook waits for an answer
        trace = error.__traceback__
        while trace.tb_next and os.path.dirname(trace.tb_frame.f_code.co_filename) == OWN_FOLDER:
            trace = trace.tb_next  # begin in the notebook's function, not in the library's
        printed = "".join(traceback.format_exception(type(error), error, trace))
        return cloudpickle.dumps(CallResult(problem=RemoteError(type(error).__name__, message_of(error), printed)))


def message_of(error: BaseException) -> str:
    """Return an exception's message; if its ``__str__`` fails, the text that Python's tracebacks show instead."""
    try:
        return str(error)
    except Exception:  # of the exception's own code
        return "<exception str() failed>"


def items_of(function: Callable, args: tuple, kwargs: dict) -> Iterator:
    """Return the iterator of a generator function; raise TypeError if it is not one."""
    items = function(*args, **kwargs)
    if not hasattr(items, "__next__"):
        name = getattr(function, "__name__", repr(function))  # a partial function has none
        raise TypeError(f"stream needs a generator function, {name} returned {type(items).__name__}")
    return items


def exhaust(function: Callable, /, *args, **kwargs) -> None:
    """Run a generator function and discard its items, like those of all ranks but the first."""
    for _ in items_of(function, args, kwargs):
        pass
