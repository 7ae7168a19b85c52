"""Horovod ranks beside the notebook: ipyparallel engines, joined into one Horovod job and kept warm.

    with HorovodRanks(2) as ranks:
        ranks.run(train, steps=100)             # on all ranks; a list of results
        for step in ranks.stream(train_live):   # what rank 0 yields, while it trains
            ...

What runs inside a rank is in `dgc_lab.rank`. On this machine nothing listens but on the loopback interface.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from dgc_lab import rank as rank_side
from dgc_lab.build_horovod import require_horovod
from dgc_lab.calls import Call, RankDied, RankFailed, look_for_dead
from dgc_lab.engines import ForeignEngines, LocalEngines, aside
from dgc_lab.errors import LabError
from dgc_lab.rank import stop_requested
from dgc_lab.rendezvous import (
    LOOPBACK,
    LOOPBACK_INTERFACE,
    cores,
    meeting_variables,
    rank_variables,
    rendezvous,
    thread_variables,
)

__all__ = ["HorovodRanks", "RankDied", "RankFailed", "stop_requested"]


def show_line(text: str) -> None:
    """Print over the line before: progress for a notebook cell and a terminal."""
    print(f"\r{text:<79}", end="", flush=True)


class HorovodRanks:
    """Horovod ranks that stay warm beside the notebook.

    Args:
        size: number of ranks, at least 1; more than there are cores brings a warning.
        timeout: seconds that a start may take, above 0.
        grace: seconds that ranks get to follow a stop, or to come back when one of them has raised; 0 or more.
        progress: gets a line of text at each stage of the start; None for silence.
        cluster: an ``ipyparallel.Cluster`` to start in place of engines on this machine.
        client: an ``ipyparallel.Client`` whose engines run already; they are left running.
        address: IP address of this machine at which ranks on other machines reach Horovod's rendezvous server.
        interface: network interface of those ranks' traffic, such as ``"eth0"``; goes with ``address``.

    Attributes:
        view: ipyparallel's view of the engines in rank order, which ``%px`` uses; None when stopped.

    Raises:
        ValueError: an argument is not as said above.

    Example:
        >>> with HorovodRanks(2) as ranks:  # doctest: +SKIP
        ...     ranks.run(lambda x: x + hvd.rank(), 10)
        [10, 11]
    """

    def __init__(
        self,
        size: int = 2,
        *,
        timeout: float = 180,
        grace: float = 5,
        progress: Callable[[str], None] | None = show_line,
        cluster=None,
        client=None,
        address: str | None = None,
        interface: str | None = None,
    ):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"size must be an integer, at least 1, got {size!r}")
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0, got {timeout!r}")
        if not grace >= 0:
            raise ValueError(f"grace must be at least 0, got {grace!r}")
        if cluster is not None and client is not None:
            raise ValueError("cluster and client must not both be given")
        if (address is None) != (interface is None):
            raise ValueError(f"address and interface go together, got {address!r} and {interface!r}")
        self.size, self.timeout, self.grace, self.progress = size, timeout, grace, progress
        self.view = None
        self._cluster, self._client = cluster, client
        self._address, self._interface = address, interface
        self._engines = self._call = self._finalizer = None
        self._changing, self._beginning = threading.RLock(), threading.Lock()

    @property
    def ready(self) -> bool:
        """Whether the ranks are started and all alive."""
        engines = self._engines
        return self.view is not None and not engines.broken and not engines.dead()

    def __enter__(self) -> HorovodRanks:
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self) -> HorovodRanks:
        """Start the ranks, in about ten seconds; does nothing when they run already.

        Raises:
            LabError: Horovod is missing or built for another TensorFlow, or the ranks were not there in time.
        """
        with self._changing:
            if self._engines is None:
                require_horovod()
                if self._cluster is None and self._client is None and self.size > cores():
                    warnings.warn(f"{self.size} ranks share {cores()} cores: expect slow steps", stacklevel=2)
                try:
                    self._start()
                except BaseException:  # KeyboardInterrupt too: leave nothing half started
                    self.stop()
                    raise
            return self

    def _start(self):
        began = time.monotonic()
        resources = contextlib.ExitStack()
        if self._cluster is None and self._client is None:
            self._engines = LocalEngines(self.size, thread_variables(self.size))
        else:
            self._engines = ForeignEngines(self.size, self._cluster, self._client)
        resources.callback(self._engines.close)
        # Runs when this object is forgotten and when the kernel ends; it must not hold this object.
        self._finalizer = weakref.finalize(self, resources.close)
        self._engines.start(began + self.timeout, self._say)
        hosts = self._engines.hosts()
        elsewhere = sorted(set(hosts) - {LOOPBACK, socket.gethostname()})
        if elsewhere and self._address is None:
            raise LabError(f"ranks on {', '.join(elsewhere)} cannot reach {LOOPBACK}: say address and interface")
        address, interface = self._address or LOOPBACK, self._interface or LOOPBACK_INTERFACE
        self._say("ranks import TensorFlow and Horovod, and meet")
        meeting = meeting_variables(resources.enter_context(rendezvous(address)), address, interface)
        arguments = [(place | meeting, sys.path) for place in rank_variables(hosts)]
        gpus = max(self._results(rank_side.join, arguments, {}, deadline=began + self.timeout))
        shared = f"; they share {gpus} GPU{'s' * (gpus > 1)}, whose memory each takes as it needs it" if gpus else ""
        self.view = self._engines.client[self._engines.ids]
        self.view.block = True
        if "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
            self.view.activate()  # %px and %%px
        self._say(f"{self.size} ranks ready after {time.monotonic() - began:.1f} s{shared}")
        if self.progress is show_line:
            print()

    def stop(self) -> None:
        """End the ranks; those that run a call are asked to end it first. Harmless when they are stopped."""
        with self._changing:
            engines, call = self._engines, self._call
            if engines is None:
                return
            if call and not engines.broken:
                call.request_stop()
                end = time.monotonic() + self.grace
                while not call.finished() and not engines.dead() and time.monotonic() < end:
                    time.sleep(0.02)
            try:
                if self._client is not None and self.ready:
                    self.run(rank_side.leave)  # the user's engines may join another job
            finally:
                self._engines = self._call = self.view = None
                aside(self._finalizer)  # in a notebook, an interrupt does not reach it there

    def restart(self) -> HorovodRanks:
        """Stop what is left of the ranks and start them anew."""
        with self._changing:
            self.stop()
            return self.start()

    def run(self, function: Callable, *args, **kwargs) -> list[Any]:
        """Run ``function(*args, **kwargs)`` on every rank, and print here what it prints there.

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
        return self._results(function, [args] * self.size, kwargs)

    def stream(self, function: Callable[..., Iterator], *args, **kwargs) -> Iterator[Any]:
        """Run a generator function on every rank, and yield here what rank 0 yields, while it runs.

        The ranks begin when the first item is asked for. Closing the iterator, leaving its loop, and `request_stop`
        ask them to stop (see `stop_requested`).

        Args:
            function: generator function; what the other ranks yield is dropped.

        Yields:
            Each item of rank 0, in order, about a tenth of a second later at most.

        Raises:
            As `run`.
        """
        call = self._begin(rank_side.stream, function, [args] * self.size, kwargs)
        try:
            yield from call.follow()
        except (GeneratorExit, KeyboardInterrupt):
            call.stop()
            raise
        finally:
            self._end(call)
        call.results()

    def request_stop(self) -> None:
        """Make `stop_requested` true on every rank, until the running call ends. Any thread may call it."""
        if call := self._call:
            call.request_stop()

    def _results(self, function, arguments, kwargs, deadline=None):
        call = self._begin(rank_side.call, function, arguments, kwargs)
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

    def _begin(self, how, function, arguments, kwargs) -> Call:
        """Send a function to all ranks."""
        with self._beginning:
            if self._engines is None:
                raise LabError("the ranks are not running. start() starts them")
            if self._engines.broken:
                raise LabError(f"{self._engines.broken}. restart() brings all ranks back")
            if self._call and not self._call.finished():
                raise LabError("the ranks are busy with another call. request_stop() asks them to end it")
            look_for_dead(self._engines)
            payloads = [cloudpickle.dumps((function, args, kwargs)) for args in arguments]
            self._call = Call(self._engines, how, payloads, self.grace)
            return self._call

    def _end(self, call):
        call.end()
        if self._call is call:
            self._call = None

    def _say(self, text):
        if self.progress:
            self.progress(text)
