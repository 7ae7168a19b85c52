"""Horovod ranks beside the notebook: ipyparallel engines, joined into one Horovod job and kept warm.

    with HorovodRanks(2) as ranks:
        ranks.run(train, steps=100)             # on all ranks; a list of results
        for step in ranks.stream(train_live):   # what rank 0 yields, while it trains
            ...

What runs inside a rank is in `dgc_lab.cluster.rank`. On this machine nothing listens but on the loopback interface.
"""

from __future__ import annotations

import socket
import sys
import time
import warnings
from collections.abc import Callable

import cloudpickle

from dgc_lab.cluster import rank as rank_side
from dgc_lab.cluster.base import Cluster, show_line
from dgc_lab.cluster.engine_calls import EngineCall, RankFailed
from dgc_lab.cluster.engines import ForeignEngines, LocalEngines
from dgc_lab.common import LabError, check_whole
from dgc_lab.install.build_horovod import require_horovod
from dgc_lab.install.launch_env import (
    LOOPBACK,
    LOOPBACK_INTERFACE,
    cores,
    meeting_variables,
    rank_variables,
    rendezvous,
    thread_variables,
)

__all__ = ["HorovodRanks", "RankFailed"]


class HorovodRanks(Cluster):
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

    what = "ranks"

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
        super().__init__(timeout, grace, progress)
        check_whole("size", size, 1)
        if cluster is not None and client is not None:
            raise ValueError("cluster and client must not both be given")
        if (address is None) != (interface is None):
            raise ValueError(f"address and interface go together, got {address!r} and {interface!r}")
        self.size, self.view = size, None
        self._cluster, self._client = cluster, client
        self._address, self._interface = address, interface

    @property
    def ready(self) -> bool:
        return self.view is not None and super().ready

    def _check(self):
        require_horovod()
        if self._cluster is None and self._client is None and self.size > cores():
            warnings.warn(f"{self.size} ranks share {cores()} cores: expect slow steps", stacklevel=4)

    def _start(self, began, resources):
        if self._cluster is None and self._client is None:
            self._processes = LocalEngines(self.size, thread_variables(self.size))
        else:
            self._processes = ForeignEngines(self.size, self._cluster, self._client)
        resources.callback(self._processes.close)
        self._processes.start(began + self.timeout, self._say)
        hosts = self._processes.hosts()
        elsewhere = sorted(set(hosts) - {LOOPBACK, socket.gethostname()})
        if elsewhere and self._address is None:
            raise LabError(f"ranks on {', '.join(elsewhere)} cannot reach {LOOPBACK}: say address and interface")
        address, interface = self._address or LOOPBACK, self._interface or LOOPBACK_INTERFACE
        self._say("ranks join Horovod")
        meeting = meeting_variables(resources.enter_context(rendezvous(address)), address, interface)
        arguments = [(place | meeting, sys.path) for place in rank_variables(hosts)]
        gpus = max(self._results(rank_side.join, arguments, {}, deadline=began + self.timeout))
        shared = f"; they share {gpus} GPU{'s' * (gpus > 1)}, whose memory each takes as it needs it" if gpus else ""
        self.view = self._processes.client[self._processes.ids]
        self.view.block = True
        if "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
            self.view.activate()  # %px and %%px
        self._say(f"{self.size} ranks ready after {time.monotonic() - began:.1f} s{shared}")
        if self.progress is show_line:
            print()

    def _leave(self):
        try:
            if self._client is not None and self.ready:
                self.run(rank_side.leave)  # the user's engines may join another job
        finally:
            self.view = None

    def _arguments(self, args):
        return [args] * self.size

    def _new_call(self, streamed, function, arguments, kwargs):
        payloads = [cloudpickle.dumps((function, args, kwargs)) for args in arguments]
        how = rank_side.stream if streamed else rank_side.call
        return EngineCall(self._processes, how, payloads, self.grace)
