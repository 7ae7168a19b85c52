"""TensorFlow's own clusters beside the notebook, with a network of their own.

    with ParameterServers(workers=2, ps=1) as servers:
        for record in servers.stream(train, ...):   # runs in the coordinator
            ...

TensorFlow's servers listen on all interfaces, without a password: in a private network nobody else is on these. What
runs inside the processes is in `dgc_lab.cluster.tensorflow_roles`.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import time
import warnings
from collections.abc import Callable
from typing import Any

from dgc_lab.cluster import private_network
from dgc_lab.cluster import tensorflow_roles as roles
from dgc_lab.cluster.base import Cluster, show_line
from dgc_lab.cluster.process_group import ProcessGroup
from dgc_lab.common import LabError, check_whole
from dgc_lab.install.launch_env import LOOPBACK, cores

FIRST_PORT = 20000
MOST = 64  # processes of one kind


class TensorFlowCluster(Cluster):
    """What `ParameterServers`, whose arguments these are, and `MultiWorkerMirrored` have in common.

    ``jobs`` is the number of processes by job: ``"chief"``, ``"ps"``, ``"worker"``.
    """

    def __init__(self, jobs: dict[str, int], port, reachable, timeout, grace, progress):
        super().__init__(timeout, grace, progress)
        self._jobs, self._number = jobs, sum(jobs.values())
        self.workers = jobs["worker"]
        if port is not None:
            check_whole("port", port, 1024, 65536 - self._number)
        self._port, self._reachable = port, reachable

    def _prepare(self) -> dict[str, Callable[[], None]]:
        """By name of the process, what it does first."""
        raise NotImplementedError

    def _check(self):
        reason = private_network.why_not()
        if reason and not self._reachable:
            raise LabError(
                f"this machine allows no private network ({reason}). TensorFlow's servers would listen on all of its "
                "addresses, with no password: whoever reaches them can run code here. reachable=True starts them so"
            )
        if reason:
            warnings.warn(
                f"no private network ({reason}): until stop(), TensorFlow's servers listen on all addresses of this "
                "machine, with no password",
                stacklevel=4,
            )
        for port in range(self._port, self._port + self._number) if reason and self._port is not None else ():
            try:
                socket.create_server(("", port)).close()
            except OSError as error:
                raise LabError(f"port {port} is taken ({os.strerror(error.errno)}); port says which to use") from None
        if self.workers > cores():
            warnings.warn(f"{self.workers} workers share {cores()} cores: expect slow steps", stacklevel=4)

    def _start(self, deadline, resources):
        private = private_network.why_not() is None
        # Children of one process cannot share its GPU; they compute on the CPU. Each role sets its own threads.
        variables = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GRPC_FAIL_FAST": "use_caller"}
        variables["no_grpc_proxy"] = LOOPBACK  # with http_proxy set, gRPC would look for the servers behind the proxy
        self._processes = ProcessGroup(self.what, variables, private)
        resources.callback(self._processes.close)
        self._say("importing TensorFlow, once for all processes")
        self._processes.start(deadline)
        self._say("starting servers")
        if private or self._port is not None:
            ports = range(first := self._port or FIRST_PORT, first + self._number)
        else:
            ports = private_network.free_ports(self._number)
        addresses = iter(f"{LOOPBACK}:{port}" for port in ports)
        self._addresses = {job: [next(addresses) for _ in range(number)] for job, number in self._jobs.items()}
        self._add(self._prepare(), deadline)
        return self.what, ""

    def _add(self, prepare, deadline):
        configs = {
            name: {"TF_CONFIG": json.dumps({"cluster": self._addresses, "task": {"type": job, "index": int(index)}})}
            for name, (job, index) in {name: task(name) for name in prepare}.items()
        }
        self._processes.add(prepare, deadline, configs, self._vital())

    def _vital(self) -> set[str]:
        """Names of the processes without which the others cannot go on."""
        return set(self._prepare())


def task(name: str) -> tuple[str, str]:
    """Job and index in ``TF_CONFIG`` of the process of that name; the coordinator is TensorFlow's chief."""
    kind, _, number = name.rpartition(" ")
    return {"": ("chief", "0"), "worker": ("worker", number), "parameter server": ("ps", number)}[kind]


class ParameterServers(TensorFlowCluster):
    """Parameter servers, workers and a coordinator, each a process of its own; functions run in the coordinator.

    There, `dgc_lab.cluster.tensorflow_roles.coordinator` gives TensorFlow's ``ClusterCoordinator``.

    Args:
        workers: number of workers, 1 to 64; more than there are cores brings a warning.
        ps: number of parameter servers, 1 to 64.
        port: first of the ports that the servers listen on; None for any that are free.
        reachable: consent to servers that listen on all addresses of this machine, where the kernel allows no
            private network. Where it does, the network is private all the same.
        timeout: seconds that a start may take, above 0.
        grace: seconds that the coordinator gets to follow a stop; 0 or more.
        progress: gets a line of text at each stage of the start; None for silence.

    Raises:
        ValueError: an argument is not as said above.

    Example:
        >>> with ParameterServers(2, 1) as servers:  # doctest: +SKIP
        ...     servers.run(lambda: len(coordinator().strategy.extended.worker_devices))
    """

    what = "parameter servers"

    def __init__(
        self,
        workers: int = 2,
        ps: int = 1,
        *,
        port: int | None = None,
        reachable: bool = False,
        timeout: float = 120,
        grace: float = 10,
        progress: Callable[[str], None] | None = show_line,
    ):
        check_whole("workers", workers, 1, MOST)
        check_whole("ps", ps, 1, MOST)
        super().__init__({"chief": 1, "ps": ps, "worker": workers}, port, reachable, timeout, grace, progress)
        self.ps = ps
        self._callers = ["coordinator"]

    def run(self, function: Callable, *args, **kwargs) -> Any:
        """Run ``function(*args, **kwargs)`` in the coordinator; as `Cluster.run`, but gives its one result."""
        [result] = super().run(function, *args, **kwargs)
        return result

    def restart_worker(self, number: int) -> None:
        """End a worker's process, if it lives, and start it anew at its address; the coordinator finds it there.

        Raises:
            ValueError: no such worker.
            LabError: it was not there in time, or the servers are not running.
        """
        check_whole("number", number, 0, self.workers - 1)
        with self._changing:
            if not self.ready:
                raise LabError("the parameter servers are not running. restart() starts them")
            self.kill(f"worker {number}")
            try:
                self._add({f"worker {number}": self._server()}, time.monotonic() + self.timeout)
            except LabError as error:  # the host died meanwhile, or it took too long
                raise LabError(f"worker {number} did not come back. restart() brings all back: {error}") from None

    def kill(self, name: str) -> None:
        """Kill a process as ``kill -9`` does, to see what the others make of it.

        Args:
            name: ``"worker 0"``, ``"parameter server 0"``, ``"coordinator"`` and so on.

        Raises:
            ValueError: no such process.
        """
        members = self._processes.members if self._processes else {}
        if name not in members:
            known = ", ".join(self._prepare() if members else ["none, nothing runs"])  # not as they happened to come
            raise ValueError(f"name must be one of {known}, got {name!r}")
        process = members[name].process
        if process.is_running():
            process.kill()
            while process.is_running():
                time.sleep(0.01)

    def _server(self):
        # Below workers + 1 operations at a time, servers on few cores wait for each other for ever.
        return functools.partial(roles.serve, inter=self.workers + 2, intra=max(1, cores() // self.workers))

    def _prepare(self):
        servers = [f"parameter server {n}" for n in range(self.ps)] + [f"worker {n}" for n in range(self.workers)]
        threads = functools.partial(roles.set_threads, inter=self.workers + 2, intra=1)
        return {name: self._server() for name in servers} | {"coordinator": threads}

    def _vital(self):
        return {name for name in self._prepare() if not name.startswith("worker")}


class MultiWorkerMirrored(TensorFlowCluster):
    """Workers of ``tf.distribute.MultiWorkerMirroredStrategy``, each a process; functions run in all of them.

    There, `dgc_lab.cluster.tensorflow_roles.mirrored` gives the strategy. A worker that dies takes all others down.

    Args:
        workers: number of workers, 1 to 64.
        port, reachable, timeout, grace, progress: as in `ParameterServers`.

    Raises:
        ValueError: an argument is not as said above.

    Example:
        >>> with MultiWorkerMirrored(2) as workers:  # doctest: +SKIP
        ...     workers.run(lambda: mirrored().num_replicas_in_sync)
        [2, 2]
    """

    what = "workers"

    def __init__(
        self,
        workers: int = 2,
        *,
        port: int | None = None,
        reachable: bool = False,
        timeout: float = 120,
        grace: float = 10,
        progress: Callable[[str], None] | None = show_line,
    ):
        check_whole("workers", workers, 1, MOST)
        super().__init__({"worker": workers}, port, reachable, timeout, grace, progress)
        self._callers = list(self._prepare())

    def _prepare(self):
        threads = functools.partial(roles.set_threads, inter=self.workers + 2, intra=max(1, cores() // self.workers))
        return {f"worker {number}": threads for number in range(self.workers)}
