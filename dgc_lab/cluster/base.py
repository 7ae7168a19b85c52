"""Base class of all clusters, which start, stay warm, run one function at a time, and stop."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from dgc_lab.cluster.calls import Call
from dgc_lab.cluster.process_group import ProcessGroup
from dgc_lab.cluster.processes import defer_sigint
from dgc_lab.cluster.rank import exhaust
from dgc_lab.common import LabError, check_number


def show_line(text: str) -> None:
    """Print a line of progress over the previous one, in a notebook cell or a terminal."""
    print(f"\r{text:<79}", end="", flush=True)


class Cluster:
    """Processes that stay warm alongside the notebook; `HorovodRanks` documents the arguments."""

    what = "processes"  # their name in messages
    _yielding: tuple[str, ...] | None = None  # processes whose items a stream yields; None: all

    def __init__(self, timeout: float, grace: float, progress: Callable[[str], None] | None):
        self.timeout = check_number("timeout", timeout, "above 0")
        self.grace = check_number("grace", grace, "at least 0")
        if progress is not None and not callable(progress):
            raise ValueError(f"progress must be a function, or None for no output, got {progress!r}")
        self.progress = progress
        self._callers: list[str] = []  # names of the processes that run functions
        self._group: ProcessGroup | None = None
        self._call = self._finalizer = None
        self._started = False
        self._lifecycle_lock, self._call_lock = threading.RLock(), threading.Lock()

    def _check(self) -> None:
        """Raise an error if a start cannot succeed; called before anything starts."""

    def _new_group(self) -> ProcessGroup:
        """Return a new group, which `_start` starts."""
        raise NotImplementedError

    def _start(self, deadline: float) -> tuple[str, str]:
        """Start ``_group`` and its processes; return two texts: who is ready, details."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether the processes are started and no essential one has died."""
        group = self._group
        return self._started and group is not None and not group.broken and not group.dead()

    def __enter__(self):
        return self._bring_up()

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self):
        """Start the processes, in about ten seconds; do nothing if they are running.

        Raises LabError if a requirement is missing or the processes are not ready in time.
        """
        return self._bring_up()

    def _bring_up(self):  # only called by public methods: the warnings' stacklevel relies on it
        with self._lifecycle_lock:
            if self._group is None:
                self._check()
                group, began = self._new_group(), time.monotonic()
                # Runs when this object is garbage-collected or the kernel ends; it must not reference this object.
                self._finalizer = weakref.finalize(self, group.close)
                try:
                    self._group = group
                    who, more = self._start(began + self.timeout)
                    self._started = True
                    self._say(f"{who} ready after {time.monotonic() - began:.1f} s{more}")
                except BaseException as error:  # KeyboardInterrupt too: leave nothing half started
                    self.stop()
                    if type(error) is LabError:  # messages of subclasses say how to continue
                        message = f"{str(error).rstrip()}\nAll processes were stopped; start() tries again"
                        raise LabError(message) from error
                    raise
                if self.progress is show_line:
                    print()
            return self

    def stop(self) -> None:
        """Stop the processes, after asking a running call to stop; do nothing if they are stopped."""
        with self._lifecycle_lock:
            group, call = self._group, self._call
            if group is None:
                return
            if call and not group.broken:
                call.request_stop()
                end = time.monotonic() + self.grace
                while not call.finished() and not group.dead() and time.monotonic() < end:
                    time.sleep(0.02)
            with defer_sigint():
                self._group = self._call = None
                self._started = False
                self._finalizer()

    def restart(self):
        """Stop any remaining processes and start all of them again."""
        with self._lifecycle_lock:
            self.stop()
            return self._bring_up()

    def run(self, function: Callable, /, *args, **kwargs) -> list[Any]:
        """Run ``function(*args, **kwargs)`` on every process and print its output here.

        Args:
            function: any function, including one defined in a notebook cell. The function, its arguments and its
                result are pickled with cloudpickle.

        Returns:
            The results, in the order of the processes.

        Raises:
            FunctionFailed: the function raised an exception on a process.
            ProcessDied: a process died.
            LabError: the processes are not running, or are busy.
        """
        return self._results(function, dict.fromkeys(self._callers, args), kwargs)

    def stream(self, function: Callable[..., Iterator], /, *args, **kwargs) -> Iterator[Any]:
        """Run a generator function on every process and yield its items here, while it runs.

        The function begins when the first item is requested. Closing the iterator, leaving its loop, or calling
        `request_stop` asks it to stop (see `dgc_lab.cluster.stop_requested`). Raises the same errors as `run`.

        Yields:
            Each item, in order, with a delay of at most about a tenth of a second; for Horovod ranks, only rank 0's.
        """
        call = self._begin(True, function, dict.fromkeys(self._callers, args), kwargs)
        try:
            yield from call.follow()
        except (GeneratorExit, KeyboardInterrupt):
            if self._call is call:  # not if stop() was called, or another function runs
                call.stop()
            raise
        finally:
            self._end(call)
        call.results()

    def request_stop(self) -> None:
        """Make `stop_requested` return True on every process until the running call ends; any thread may call this."""
        with self._call_lock:  # a request to one call must not reach the next one
            if call := self._call:
                call.request_stop()

    def _results(self, function, arguments: dict[str, tuple], kwargs, deadline=None) -> list[Any]:
        """Run a function on the named processes, each with its own arguments, and return the results."""
        call = self._begin(False, function, arguments, kwargs)
        try:
            for _ in call.follow(deadline):
                pass
        except KeyboardInterrupt:
            if deadline is None:  # an interrupted start stops all processes anyway
                call.stop()
            raise
        finally:
            self._end(call)
        return call.results()

    def _begin(self, streamed, function, arguments, kwargs) -> Call:
        with self._call_lock:
            if self._group is None:
                raise LabError(f"the {self.what} are not running. start() starts them")
            if self._group.broken:
                raise LabError(f"{self._group.broken}. restart() starts all of them again")
            if self._call and not self._call.finished():
                raise LabError(f"the {self.what} are busy with another call. request_stop() asks them to end it")
            self._group.raise_if_dead()
            payloads = {}
            for name, args in arguments.items():
                yields = streamed and (self._yielding is None or name in self._yielding)
                sent = (function, args) if yields or not streamed else (exhaust, (function, *args))
                payloads[name] = cloudpickle.dumps((*sent, kwargs)), yields
            try:
                with defer_sigint():  # an unrecorded call's results would be taken for the next one's
                    self._call = Call(self._group, list(payloads), self.grace, payloads.values())
            except KeyboardInterrupt:
                if self._call:
                    self._call.stop()
                    self._end(self._call)
                raise
            return self._call

    def _end(self, call):
        call.end()
        if self._call is call:
            self._call = None

    def _say(self, text):
        if self.progress:
            self.progress(text)
