"""Horovod ranks alongside the notebook, joined into one Horovod job and kept warm.

On this machine they are forked from one process, elsewhere they are ipyparallel engines. `dgc_lab.cluster.rank` runs
inside them.
"""

from __future__ import annotations

import ast
import socket
import sys
import warnings
from collections.abc import Callable, Iterable

from dgc_lab.cluster import magic, private_network
from dgc_lab.cluster import rank as rank_side
from dgc_lab.cluster.base import Cluster, show_line
from dgc_lab.cluster.calls import RankDied, RankFailed
from dgc_lab.cluster.engines import UserEngines
from dgc_lab.cluster.process_group import ProcessGroup
from dgc_lab.common import LabError, check_whole
from dgc_lab.install.build_horovod import require_horovod
from dgc_lab.install.launch_env import (
    LOOPBACK,
    LOOPBACK_INTERFACE,
    cores,
    rank_variables,
    rendezvous,
    rendezvous_variables,
    thread_variables,
)

MODULES = ("horovod.tensorflow", "horovod.runner.http.http_server", "keras")  # imported once, for all ranks


class HorovodRanks(Cluster):
    """Horovod ranks that stay warm alongside the notebook.

    Args:
        size: number of ranks, at least 1; more ranks than cores cause a warning.
        timeout: time limit for a start in seconds, above 0.
        grace: seconds for ranks to stop on request, or to return after another one has raised; at least 0.
        progress: function that receives a line of text at each stage of the start; None for no output.
        cluster: an ``ipyparallel.Cluster`` to start instead of ranks on this machine.
        client: an ``ipyparallel.Client`` with running engines, which keep running after `stop`.
        address: this machine's IP address at which ranks on other machines reach Horovod's rendezvous server.
        interface: network interface for the traffic of those ranks, such as ``"eth0"``; required with ``address``.

    Raises:
        ValueError: an argument does not meet the requirements above.

    Example:
        >>> with HorovodRanks(2) as ranks:  # doctest: +SKIP
        ...     ranks.run(lambda x: x + hvd.rank(), 10)
        [10, 11]
    """

    what = "ranks"
    _yielding = ("rank 0",)

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
        check_whole("size", size, 1, 4096)
        if cluster is not None and client is not None:
            raise ValueError("cluster and client must not both be given")
        if (address is None) != (interface is None):
            raise ValueError(f"address and interface must be given together, got {address!r} and {interface!r}")
        self.size, self._cells = size, 0
        self._callers = [f"rank {rank}" for rank in range(size)]
        self._cluster, self._client = cluster, client
        self._address, self._interface = address, interface

    def run_cell(self, source: str, ranks: Iterable[int] | None = None) -> None:
        """Run a cell on the given ranks, or on all of them, like ``%%px``; each rank keeps its variables."""
        wanted = range(self.size) if ranks is None else ranks
        numbers = sorted({check_whole("rank", rank, 0, self.size - 1) for rank in wanted})
        if not numbers:
            raise ValueError(f"ranks must name at least one of 0 to {self.size - 1}, got none")
        self._cells += 1
        name = f"<px {self._cells}>"
        ast.parse(source, name)
        try:
            self._results(magic.run_cell, {f"rank {number}": (source, name) for number in numbers}, {})
        except RankFailed as error:
            problems = {numbers[index]: problem for index, problem in error.problems.items()}
            raise magic.CellFailed(str(error), problems, error.after) from None

    def _check(self):
        require_horovod()
        if self._on_user_cluster:
            return
        if self.size > cores():
            warnings.warn(f"{self.size} ranks share {cores()} cores: expect slow steps", stacklevel=4)
        if reason := private_network.unavailable_reason():
            warnings.warn(
                f"no private network ({reason}): until stop(), other users of this machine can reach the ranks on "
                f"{LOOPBACK}, with no password",
                stacklevel=4,
            )

    @property
    def _on_user_cluster(self):
        return self._cluster is not None or self._client is not None

    def _start(self, deadline, resources):
        hosts, meeting = (self._start_engines if self._on_user_cluster else self._start_here)(deadline, resources)
        self._say("ranks join Horovod")
        arguments = [(variables | meeting, sys.path) for variables in rank_variables(hosts)]
        gpus = max(self._results(rank_side.join, dict(zip(self._callers, arguments, strict=True)), {}, deadline))
        shared = f"; they share {gpus} GPU{'s' * (gpus > 1)}, whose memory each takes as it needs it" if gpus else ""
        if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
            magic.register(shell, self)  # %px, %%px and %%rank
        return f"{self.size} ranks", shared

    def _start_here(self, deadline, resources) -> tuple[list[str], dict[str, str]]:
        """Start ranks on this machine; return their hosts and the environment variables of their rendezvous."""
        private = private_network.unavailable_reason() is None
        group = self._processes = ProcessGroup(self.what, thread_variables(self.size), private, MODULES)
        group.died, group.failed = RankDied, RankFailed
        resources.callback(group.close)
        self._say("importing TensorFlow and Horovod, once for all ranks")
        group.start(deadline)
        self._say("starting ranks")
        # Horovod's server has no password, so rank 0 runs it in the ranks' own network.
        first = dict.fromkeys(self._callers, int) | {self._callers[0]: rank_side.serve_rendezvous}
        port, *_ = group.add(first, deadline, vital=self._callers)
        group.finish_adding()
        return [LOOPBACK] * self.size, rendezvous_variables(port)

    def _start_engines(self, deadline, resources) -> tuple[list[str], dict[str, str]]:
        """Start ranks on the user's cluster; return the same as `_start_here`."""
        engines = self._processes = UserEngines(self.size, self._cluster, self._client)
        resources.callback(engines.close)
        engines.start(deadline, self._say)
        hosts = engines.client[list(engines.ids.values())].apply_sync(socket.gethostname)
        elsewhere = sorted(set(hosts) - {LOOPBACK, socket.gethostname()})
        if elsewhere and self._address is None:
            raise LabError(f"ranks on {', '.join(elsewhere)} cannot reach {LOOPBACK}: pass address= and interface=")
        address, interface = self._address or LOOPBACK, self._interface or LOOPBACK_INTERFACE
        return hosts, rendezvous_variables(resources.enter_context(rendezvous(address)), address, interface)

    def _leave(self):
        if self._client is not None and self.ready:
            self.run(rank_side.leave)  # so that the user's engines can join another job
