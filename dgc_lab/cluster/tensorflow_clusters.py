"""TensorFlow's own clusters alongside the notebook; `dgc_lab.cluster.tensorflow_roles` runs inside their processes."""

from __future__ import annotations

import functools
import itertools
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

from dgc_lab.cluster import private_network
from dgc_lab.cluster import tensorflow_roles as roles
from dgc_lab.cluster.base import Cluster, show_line
from dgc_lab.cluster.process_group import ProcessGroup
from dgc_lab.cluster.processes import has_ended, is_running
from dgc_lab.common import LabError, check_flag, check_whole
from dgc_lab.install.launch_env import LOOPBACK, cores

FIRST_PORT = 20000
MAX_PROCESSES = 64  # of one kind
SECONDS_TO_END = 30  # for a killed process


class TensorFlowCluster(Cluster):
    """Base class of `ParameterServers`, which documents the options, and `MultiWorkerMirrored`.

    ``jobs`` maps each job, ``"chief"``, ``"ps"`` or ``"worker"``, to its number of processes.
    """

    def __init__(
        self,
        jobs: dict[str, int],
        *,
        reachable: bool = False,
        timeout: float = 120,
        grace: float = 10,
        progress: Callable[[str], None] | None = show_line,
    ):
        super().__init__(timeout, grace, progress)
        self.workers, self._jobs, self._reachable = jobs["worker"], jobs, check_flag("reachable", reachable)

    def _prepare(self) -> dict[str, Callable[[], None]]:
        """Return the function that each process runs first, by process name."""
        raise NotImplementedError

    def _check(self):
        reason = private_network.unavailable_reason()
        if reason and not self._reachable:
            raise LabError(
                f"this machine allows no private network ({reason}). TensorFlow's servers would listen on all of its "
                "addresses, with no password: anyone who reaches them can run code here. "
                "Pass reachable=True to start them anyway"
            )
        if reason:
            warnings.warn(
                f"no private network ({reason}): until stop(), TensorFlow's servers listen on all addresses of this "
                "machine, with no password",
                stacklevel=4,
            )
        if self.workers > cores():
            warnings.warn(f"{self.workers} workers share {cores()} cores: expect slow steps", stacklevel=4)

    def _new_group(self):
        # Children of one process cannot share its GPU, so they compute on the CPU. Each role sets its own threads.
        variables = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GRPC_FAIL_FAST": "use_caller"}
        variables["no_grpc_proxy"] = LOOPBACK  # if http_proxy is set, gRPC would reach for the servers through it
        variables["MALLOC_ARENA_MAX"] = "2"  # glibc's many arenas keep freed memory: 0.13 GB more in lesson 3
        return ProcessGroup(self.what, variables, private_network.unavailable_reason() is None)

    def _start(self, deadline):
        self._say("importing TensorFlow, once for all processes")
        self._group.start(deadline)
        self._say("starting servers")
        private = private_network.unavailable_reason() is None
        ports = itertools.count(FIRST_PORT) if private else private_network.free_ports(sum(self._jobs.values()))
        addresses = (f"{LOOPBACK}:{port}" for port in ports)
        self._addresses = {job: [next(addresses) for _ in range(number)] for job, number in self._jobs.items()}
        self._add(self._prepare(), deadline)
        return self.what, ""

    def _add(self, prepare, deadline):
        configs = {name: json.dumps({"cluster": self._addresses, "task": task(name)}) for name in prepare}
        variables = {name: {"TF_CONFIG": config} for name, config in configs.items()}
        self._group.add(prepare, deadline, variables, self._vital())

    def _vital(self) -> set[str]:
        """Return the names of the processes without which the others cannot continue."""
        return set(self._prepare())


def task(name: str) -> dict:
    """Return job and index in ``TF_CONFIG`` of the process of that name; the coordinator is TensorFlow's chief."""
    kind, _, number = name.rpartition(" ")
    job = {"": "chief", "worker": "worker", "parameter server": "ps"}[kind]
    return {"type": job, "index": int(number) if kind else 0}


class ParameterServers(TensorFlowCluster):
    """Parameter servers, workers and a coordinator, each in its own process; functions run in the coordinator.

    There, `dgc_lab.cluster.tensorflow_roles.coordinator` returns TensorFlow's ``ClusterCoordinator``.

    Args:
        workers: number of workers, from 1 to 64; more workers than cores cause a warning.
        ps: number of parameter servers, from 1 to 64.
        reachable: consent to servers that listen on all addresses of this machine if the kernel allows no private
            network. If it allows one, the network is private in any case.
        timeout: time limit for a start in seconds, above 0.
        grace: seconds for the coordinator to stop on request; at least 0.
        progress: function that receives a line of text at each stage of the start; None for no output.

    Raises:
        ValueError: an argument does not meet the requirements above.

    Example:
        >>> with ParameterServers(2, 1) as servers:  # doctest: +SKIP
        ...     servers.run(lambda: len(coordinator().strategy.extended.worker_devices))
    """

    what = "parameter servers"

    def __init__(self, workers: int = 2, ps: int = 1, **options):
        workers = check_whole("workers", workers, 1, MAX_PROCESSES)
        self.ps = check_whole("ps", ps, 1, MAX_PROCESSES)
        super().__init__({"chief": 1, "ps": self.ps, "worker": workers}, **options)
        self._callers = ["coordinator"]

    def run(self, function: Callable, /, *args, **kwargs) -> Any:
        """Run ``function(*args, **kwargs)`` in the coordinator, like `Cluster.run`, and return its single result."""
        [result] = super().run(function, *args, **kwargs)
        return result

    def restart_worker(self, number: int) -> None:
        """Kill a worker's process, if it is alive, and start a new one at its address, where the coordinator finds it.

        Raises ValueError if there is no worker of that number. Raises LabError if the worker is not ready in time, or
        the servers are not running.
        """
        number = check_whole("number", number, 0, self.workers - 1)
        with self._lifecycle_lock:
            if not self.ready:
                raise LabError("the parameter servers are not running. restart() starts them")
            self.kill(f"worker {number}")
            try:
                self._add({f"worker {number}": self._server()}, time.monotonic() + self.timeout)
            except LabError as error:  # the host died meanwhile, or it took too long
                self.kill(f"worker {number}")  # it has no server, so the others must not wait for it
                raise LabError(f"worker {number} did not restart. restart() restarts all processes: {error}") from None

    def kill(self, name: str) -> None:
        """Kill ``"worker 0"``, ``"parameter server 0"``, ``"coordinator"`` and so on, like ``kill -9``.

        Raises ValueError if there is no process of that name, and LabError if it does not end within 30 seconds.
        """
        members = self._group.members if self._group else {}
        if name not in members:
            known = ", ".join(self._prepare())  # not `members`, which are in the order of their connections
            allowed = f"one of {known}" if members else "a running process (none is running: call start())"
            raise ValueError(f"name must be {allowed}, got {name!r}")
        process = members[name].process
        if is_running(process):
            process.kill()
        end = time.monotonic() + SECONDS_TO_END
        while not has_ended(process):
            if time.monotonic() > end:
                raise LabError(f"{name} has not ended {SECONDS_TO_END} s after it was killed")
            time.sleep(0.01)

    def _server(self):
        # With fewer than workers + 1 operations at a time, servers on few cores wait for each other forever.
        return functools.partial(roles.serve, inter=self.workers + 2, intra=max(1, cores() // self.workers))

    def _prepare(self):
        servers = [f"parameter server {n}" for n in range(self.ps)] + [f"worker {n}" for n in range(self.workers)]
        threads = functools.partial(roles.set_threads, inter=self.workers + 2, intra=1)
        return {name: self._server() for name in servers} | {"coordinator": threads}

    def _vital(self):
        return {name for name in self._prepare() if not name.startswith("worker")}


class MultiWorkerMirrored(TensorFlowCluster):
    """Workers of ``tf.distribute.MultiWorkerMirroredStrategy``, each in its own process; functions run in all of them.

    There, `dgc_lab.cluster.tensorflow_roles.mirrored` returns the strategy. If a worker dies, all others are stopped.
    Raises ValueError if ``workers`` is not from 1 to 64; other arguments and errors are those of `ParameterServers`.

    Example:
        >>> with MultiWorkerMirrored(2) as workers:  # doctest: +SKIP
        ...     workers.run(lambda: mirrored().num_replicas_in_sync)
        [2, 2]
    """

    what = "workers"

    def __init__(self, workers: int = 2, **options):
        super().__init__({"worker": check_whole("workers", workers, 1, MAX_PROCESSES)}, **options)
        self._callers = list(self._prepare())

    def _prepare(self):
        threads = functools.partial(roles.set_threads, inter=self.workers + 2, intra=max(1, cores() // self.workers))
        return {f"worker {number}": threads for number in range(self.workers)}
