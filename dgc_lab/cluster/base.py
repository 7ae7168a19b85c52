"""What all clusters beside the notebook have in common: they start, stay warm, run one function at a time, and end."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from dgc_lab.cluster.calls import Call
from dgc_lab.cluster.processes import Processes, interrupt_held_back
from dgc_lab.cluster.rank import exhaust
from dgc_lab.common import LabError, check_number


def show_line(text: str) -> None:
    """Print over the line before: progress for a notebook cell and a terminal."""
    print(f"\r{text:<79}", end="", flush=True)


class Cluster:
    """Processes that stay warm beside the notebook; `HorovodRanks` says what the arguments are."""

    what = "processes"  # how messages call them
    _yielding: tuple[str, ...] | None = None  # names of those whose items a stream yields; None: of all

    def __init__(self, timeout: float, grace: float, progress: Callable[[str], None] | None):
        self.timeout = check_number("timeout", timeout, "above 0")
        self.grace = check_number("grace", grace, "at least 0")
        self.progress = progress
        self._callers: list[str] = []  # names of the processes that run functions
        self._processes: Processes | None = None
        self._call = self._finalizer = None
        self._started = False
        self._changing, self._beginning = threading.RLock(), threading.Lock()

    def _check(self) -> None:
        """Raise where a start cannot succeed; nothing is started yet."""

    def _start(self, deadline: float, resources: contextlib.ExitStack) -> tuple[str, str]:
        """Set ``_processes`` and start them; say who is ready, and what else. ``resources`` closes what it is given."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Called before the processes end, when they are idle."""

    @property
    def ready(self) -> bool:
        """Whether all are started and alive."""
        processes = self._processes
        return self._started and processes is not None and not processes.broken and not processes.dead()

    def __enter__(self):
        return self._bring_up()

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self):
        """Start the processes, in about ten seconds; does nothing when they run already.

        A LabError where something that they need is missing, or they are not there in time.
        """
        return self._bring_up()

    def _bring_up(self):  # called by what the user calls alone: warnings count on it to tell the line
        with self._changing:
            if self._processes is None:
                self._check()
                resources, began = contextlib.ExitStack(), time.monotonic()
                # Runs when this object is forgotten and when the kernel ends; it must not hold this object.
                self._finalizer = weakref.finalize(self, resources.close)
                try:
                    who, more = self._start(began + self.timeout, resources)
                    self._started = True
                    self._say(f"{who} ready after {time.monotonic() - began:.1f} s{more}")
                except BaseException as error:  # KeyboardInterrupt too: leave nothing half started
                    self.stop()
                    if type(error) is LabError:  # others say by themselves how to go on
                        raise LabError(f"{str(error).rstrip()}\nAll were stopped; start() tries again") from error
                    raise
                if self.progress is show_line:
                    print()
            return self

    def stop(self) -> None:
        """End the processes; those that run a call are asked to end it first. Harmless when they are stopped."""
        with self._changing:
            processes, call = self._processes, self._call
            if processes is None:
                return
            if call and not processes.broken:
                call.request_stop()
                end = time.monotonic() + self.grace
                while not call.finished() and not processes.dead() and time.monotonic() < end:
                    time.sleep(0.02)
            try:
                self._leave()
            finally:
                self._processes = self._call = None
                self._started = False
                with interrupt_held_back():
                    self._finalizer()

    def restart(self):
        """Stop what is left of the processes and start them anew."""
        with self._changing:
            self.stop()
            return self._bring_up()

    def run(self, function: Callable, *args, **kwargs) -> list[Any]:
        """Run ``function(*args, **kwargs)`` on every process, and print here what it prints there.

        Args:
            function: any function, one defined in a notebook's cell too; it travels by cloudpickle, and so do its
                arguments and its result.

        Returns:
            The results, in the order of the processes.

        Raises:
            FunctionFailed: the function raised on a process.
            ProcessDied: a process ended.
            LabError: the processes are not running, or busy.
        """
        return self._results(function, dict.fromkeys(self._callers, args), kwargs)

    def stream(self, function: Callable[..., Iterator], *args, **kwargs) -> Iterator[Any]:
        """Run a generator function on every process, and yield here what it yields there, while it runs.

        They begin when the first item is asked for. Closing the iterator, leaving its loop, and `request_stop` ask
        them to stop (see `dgc_lab.cluster.stop_requested`). Raises as `run` does.

        Yields:
            Each item, in order, about a tenth of a second later at most; of Horovod ranks, rank 0's alone.
        """
        call = self._begin(True, function, dict.fromkeys(self._callers, args), kwargs)
        try:
            yield from call.follow()
        except (GeneratorExit, KeyboardInterrupt):
            if self._call is call:  # not where stop() was called, or another function runs
                call.stop()
            raise
        finally:
            self._end(call)
        call.results()

    def request_stop(self) -> None:
        """Make `stop_requested` true on every process, until the running call ends. Any thread may call it."""
        with self._beginning:  # what is asked of one call must not reach the next
            if call := self._call:
                call.request_stop()

    def _results(self, function, arguments: dict[str, tuple], kwargs, deadline=None) -> list[Any]:
        """Run a function in the processes of these names, in each with its own arguments."""
        call = self._begin(False, function, arguments, kwargs)
        try:
            for _ in call.follow(deadline):
                pass
        except KeyboardInterrupt:
            if deadline is None:  # a start that is interrupted ends all anyway
                call.stop()
            raise
        finally:
            self._end(call)
        return call.results()

    def _begin(self, streamed, function, arguments, kwargs) -> Call:
        with self._beginning:
            if self._processes is None:
                raise LabError(f"the {self.what} are not running. start() starts them")
            if self._processes.broken:
                raise LabError(f"{self._processes.broken}. restart() brings all back")
            if self._call and not self._call.finished():
                raise LabError(f"the {self.what} are busy with another call. request_stop() asks them to end it")
            self._processes.look_for_dead()
            payloads = {}
            for name, args in arguments.items():
                yields = streamed and (self._yielding is None or name in self._yielding)
                sent = (function, args) if yields or not streamed else (exhaust, (function, *args))
                payloads[name] = cloudpickle.dumps((*sent, kwargs)), yields
            try:
                with interrupt_held_back():  # a call that nobody knows of would answer for the next one
                    self._call = self._processes.call(payloads, self.grace)
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
