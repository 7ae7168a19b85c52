"""Horovod ranks beside the notebook: ipyparallel engines, joined into one Horovod job and kept warm.

    with HorovodRanks(2) as ranks:
        ranks.run(train, steps=100)             # on all ranks; a list of results
        for step in ranks.stream(train_live):   # what rank 0 yields, while it trains
            ...

What runs inside a rank is in `dgc_lab.rank`. On this machine nothing listens but on the loopback interface.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from dgc_lab import rank as rank_side
from dgc_lab.errors import LabError
from dgc_lab.rank import Problem, stop_requested

__all__ = ["HorovodRanks", "Problem", "RankDied", "RankFailed", "stop_requested"]

SECONDS_BETWEEN_LOOKS = 0.02
SECONDS_BETWEEN_STOPS = 0.5


class RankDied(LabError):
    """The process of a rank is gone.

    Attributes:
        rank: which one.
    """

    def __init__(self, rank: int):
        super().__init__(f"rank {rank} died; the others were put down too. restart() brings all ranks back")
        self.rank = rank


class RankFailed(LabError):
    """A function raised on a rank, or the ranks did not do what they were asked to.

    Attributes:
        problems: by rank, the `dgc_lab.rank.Problem` with the exception's class, message and traceback.
    """

    def __init__(self, message: str, problems: dict[int, Problem] | None = None):
        super().__init__(message)
        self.problems = problems or {}


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_variables(size: int) -> dict[str, str]:
    """Environment that gives each of ``size`` ranks its share of the cores; read when TensorFlow is imported.

    Example:
        >>> sorted(thread_variables(2))[0]
        'OMP_NUM_THREADS'
    """
    share = str(max(1, cores() // size))
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return dict.fromkeys(names, share) | {
        # On a GPU, a rank would otherwise take all of its memory, and leave none to the others.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }


def show_line(text: str) -> None:
    """Print over the line before: progress for a notebook cell and a terminal."""
    print(f"\r{text:<79}", end="", flush=True)


class HorovodRanks:
    """Horovod ranks that stay warm beside the notebook.

    Args:
        size: number of ranks, at least 1; more than there are cores brings a warning.
        timeout: seconds that a start may take.
        grace: seconds that the ranks get to follow a stop, or to come back after one of them has raised.
        progress: gets a line of text at each stage of the start; None for silence.

    Raises:
        ValueError: an argument is not as said above.

    Example:
        >>> with HorovodRanks(2) as ranks:  # doctest: +SKIP
        ...     ranks.run(lambda: hvd.rank())
        [0, 1]
    """

    def __init__(
        self,
        size: int = 2,
        *,
        timeout: float = 180,
        grace: float = 5,
        progress: Callable[[str], None] | None = show_line,
    ):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"size must be an integer, at least 1, got {size!r}")
        self.size, self.timeout, self.grace, self.progress = size, timeout, grace, progress
        self.view = None
        self._engines = self._call = self._broken = self._finalizer = None
        self._stop_since = None
        self._changing, self._calling = threading.RLock(), threading.Lock()
        self._meeting = contextlib.ExitStack()

    def __enter__(self) -> HorovodRanks:
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self) -> HorovodRanks:
        """Start the ranks; does nothing when they run already. Takes about ten seconds.

        Raises:
            LabError: Horovod is missing or built for another TensorFlow, or the ranks were not there in time.
        """
        with self._changing:
            if self._engines is None:
                check_horovod()
                if self.size > cores():
                    warnings.warn(f"{self.size} ranks share {cores()} cores: expect slow steps", stacklevel=2)
                try:
                    self._start()
                except BaseException:  # KeyboardInterrupt too: leave nothing half started
                    self.stop()
                    raise
            return self

    def _start(self):
        from dgc_lab.engines import LocalEngines
        from dgc_lab.rendezvous import meeting_variables, rank_variables, rendezvous

        began = time.monotonic()
        threads = thread_variables(self.size)
        self._engines = LocalEngines(self.size, threads)
        # Runs when this object is forgotten or the kernel ends; knows the engines, not this object.
        self._finalizer = weakref.finalize(self, self._engines.close)
        self._engines.start(began + self.timeout, self._say)
        self.view = self._engines.client[self._engines.ids]
        self.view.block = True
        self._say("importing TensorFlow and Horovod, ranks meet")
        port = self._meeting.enter_context(rendezvous())
        places = rank_variables(["127.0.0.1"] * self.size)
        arguments = [(threads | place | meeting_variables(port), sys.path) for place in places]
        self._broken = None
        found = self._results(rank_side.call, rank_side.join, arguments, deadline=began + self.timeout)
        gpus = max(count for _, count in found)
        shared = f", they share {gpus} GPU{'s' * (gpus > 1)} and its memory grows as needed" if gpus else ""
        self._say(f"{self.size} ranks ready after {time.monotonic() - began:.1f} s{shared}")
        if self.progress is show_line:
            print()
        if "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
            self.view.activate()  # %px and %%px

    def stop(self) -> None:
        """End the ranks; one that trains is asked to stop first, and gets the time of grace. Harmless when stopped."""
        with self._changing:
            engines, call = self._engines, self._call
            if engines is None:
                return
            if call and not self._broken:
                self.request_stop()
                end = time.monotonic() + self.grace
                while not call.finished() and not engines.dead() and time.monotonic() < end:
                    time.sleep(SECONDS_BETWEEN_LOOKS)
            self._engines = self._call = self.view = None
            self._finalizer()
            self._meeting.close()

    def restart(self) -> HorovodRanks:
        """Stop what is left of the ranks and start them anew."""
        with self._changing:
            self.stop()
            return self.start()

    def run(self, function: Callable, *args, **kwargs) -> list[Any]:
        """Run ``function(*args, **kwargs)`` on every rank.

        Args:
            function: any function, one defined in a notebook's cell too; it travels by cloudpickle, and so do its
                arguments and its result.

        Returns:
            The results in rank order.

        Raises:
            RankFailed: the function raised on a rank.
            RankDied: the process of a rank ended.
            LabError: the ranks are not running, or busy.
        """
        return self._results(rank_side.call, function, [args] * self.size, kwargs)

    def stream(self, function: Callable[..., Iterator], *args, **kwargs) -> Iterator[Any]:
        """Run a generator function on every rank, and yield here what rank 0 yields, while it runs.

        The ranks start with the first item that is asked for. Closing the iterator, leaving its loop, and
        `request_stop` ask them to stop (see `stop_requested`).

        Args:
            function: generator function; what the other ranks yield is dropped.

        Yields:
            Each item of rank 0, in order, a tenth of a second later at most.

        Raises:
            As `run`.
        """
        call = self._begin(rank_side.stream, function, [args] * self.size, kwargs)
        try:
            yield from self._follow(call)
        except (GeneratorExit, KeyboardInterrupt):
            self._stop_politely(call)
            raise
        finally:
            self._end(call)
        self._check(call)

    def request_stop(self) -> None:
        """Make `stop_requested` true on every rank, until the running call ends. Any thread may call it."""
        if self._call and not self._call.finished():
            self._stop_since = self._stop_since or time.monotonic()
            self._engines.signal(rank_side.STOP_SIGNAL)

    def _results(self, how, function, arguments, kwargs=None, deadline=None):
        call = self._begin(how, function, arguments, kwargs or {})
        try:
            for _ in self._follow(call, deadline):
                pass
        except KeyboardInterrupt:
            self._stop_politely(call)
            raise
        finally:
            self._end(call)
        self._check(call)
        return [call.outcomes[rank].value for rank in range(self.size)]

    def _begin(self, how, function, arguments, kwargs) -> Call:
        """Send a function to all ranks."""
        with self._calling:
            if self._engines is None:
                raise LabError("the ranks are not running; start() starts them")
            if self._broken:
                raise LabError(f"{self._broken}. restart() brings the ranks back")
            if self._call and not self._call.finished():
                raise LabError("the ranks are busy with another call; request_stop() asks them to end it")
            if dead := self._engines.dead():
                self._put_down(f"rank {dead[0]} died")
                raise RankDied(dead[0])
            payloads = [cloudpickle.dumps((function, args, kwargs)) for args in arguments]
            self._stop_since = None
            self._call = Call(self._engines, how, payloads)
            return self._call

    def _follow(self, call: Call, deadline: float | None = None) -> Iterator[Any]:
        """Yield rank 0's items until every rank has ended, with an eye on death, failure and stop."""
        failed_since, last_signal = None, time.monotonic()
        while True:
            yield from call.items()
            if call.finished() and call.drained():
                return
            now = time.monotonic()
            if self._engines is not call.engines:
                raise LabError("the ranks were stopped while they ran a call")
            if dead := call.engines.dead():
                self._put_down(f"rank {dead[0]} died")
                raise RankDied(dead[0])
            if deadline and now > deadline:
                self._put_down("the ranks did not meet in time")
                raise LabError(f"the ranks did not meet within {self.timeout:g} s")
            if call.problems():
                failed_since = failed_since or now
                if now > failed_since + self.grace:
                    self._put_down(f"{listed(call.problems())} failed and the others did not come back")
                    return
            if self._stop_since:
                if now > self._stop_since + self.grace:
                    self._put_down(f"the ranks did not stop within {self.grace:g} s")
                    raise RankFailed(f"{self._broken} and were put down. restart() brings them back")
                if now > last_signal + SECONDS_BETWEEN_STOPS:  # the first may have come before the function began
                    call.engines.signal(rank_side.STOP_SIGNAL)
                    last_signal = now
            call.wait(SECONDS_BETWEEN_LOOKS)

    def _stop_politely(self, call):
        """Ask for a stop and wait for it; what the ranks still yield or raise is not wanted any more."""
        try:
            self.request_stop()
            for _ in self._follow(call):
                pass
        except KeyboardInterrupt:
            self._put_down("the ranks were interrupted twice")
            raise

    def _put_down(self, reason):
        self._broken = reason
        self._engines.kill()

    def _end(self, call):
        if self._call is call and (call.finished() or self._broken):
            self._call = None
        call.forget()

    def _check(self, call):
        """Raise what went wrong on the ranks."""
        problems = call.problems()
        if not problems:
            return
        first = problems[min(problems)]
        what = f"{first.kind}: {first.message}"
        if len(problems) == self.size and {(p.kind, p.message) for p in problems.values()} == {
            (first.kind, first.message)
        }:
            raise RankFailed(what if self.size == 1 else f"every rank raised {what}", problems)
        tail = "\n".join(first.trace.strip().splitlines()[-8:])
        lines = [f"rank {rank} raised {p.kind}: {p.message}" for rank, p in sorted(problems.items())]
        if self._broken:
            lines.append("The other ranks did not come back and were put down. restart() brings all ranks back.")
        raise RankFailed("\n".join([*lines, f"Traceback on rank {min(problems)}:", tail]), problems)

    def _say(self, text):
        if self.progress:
            self.progress(text)


class Call:
    """One function that runs on all ranks.

    Attributes:
        outcomes: by rank, the `dgc_lab.rank.Outcome` of those that have ended.
    """

    def __init__(self, engines, how, payloads):
        self.engines, self.outcomes = engines, {}
        views = [engines.client[number] for number in engines.ids]
        self._results = [view.apply_async(how, payload) for view, payload in zip(views, payloads, strict=True)]
        self._data = engines.client.metadata[self._results[0].msg_ids[0]]["data"]
        self._taken = 0

    def finished(self) -> bool:
        """Whether every rank has ended."""
        for rank, result in enumerate(self._results):
            if rank not in self.outcomes and result.ready():
                try:
                    self.outcomes[rank] = cloudpickle.loads(result.get(0))
                except Exception as error:  # ipyparallel's own: the engine died, or could not run dgc_lab.rank
                    kind = getattr(error, "ename", type(error).__name__)
                    self.outcomes[rank] = rank_side.Outcome(problem=Problem(kind, str(error), str(error)))
        return len(self.outcomes) == len(self._results)

    def problems(self) -> dict[int, Problem]:
        """What was raised, by rank."""
        return {rank: outcome.problem for rank, outcome in self.outcomes.items() if outcome.problem}

    def items(self) -> Iterator[Any]:
        """What has come from rank 0 and was not taken yet."""
        while (batch := self._data.pop(f"batch {self._taken}", None)) is not None:
            self._taken += 1
            yield from cloudpickle.loads(batch)

    def drained(self) -> bool:
        """Whether all batches of rank 0, which has ended, were taken."""
        return self._taken == self.outcomes[0].batches

    def wait(self, seconds: float) -> None:
        """Wait for the first rank that has not ended."""
        left = [result for rank, result in enumerate(self._results) if rank not in self.outcomes]
        if left:
            left[0].wait(seconds)
        else:
            time.sleep(seconds)

    def forget(self) -> None:
        """Let ipyparallel forget the results; it would keep them for ever."""
        client = self.engines.client
        if client and self.finished():
            client.purge_local_results([number for result in self._results for number in result.msg_ids])


def check_horovod() -> None:
    """Raise a LabError with the remedy when there is no Horovod for the installed TensorFlow."""
    from dgc_lab.build_horovod import horovod_state, tensorflow_version

    version, built_for = horovod_state()
    if version is None:
        raise LabError("Horovod is not installed. Run: python -m dgc_lab build-horovod")
    if built_for != tensorflow_version():
        raise LabError(
            f"Horovod was built for TensorFlow {built_for}, and {tensorflow_version()} is installed. "
            "Run: python -m dgc_lab build-horovod --force"
        )


def listed(ranks) -> str:
    """``"rank 1"`` or ``"ranks 0, 2"``."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
