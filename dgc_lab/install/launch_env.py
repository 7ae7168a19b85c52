"""Launching of Horovod ranks without ``horovodrun``: environment variables and a rendezvous server.

Uses only the standard library until the server starts, so that `dgc_lab.install.build_horovod` can use it too.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"
MAX_GLOO_SECONDS = 10**6  # for a timeout of infinity
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


def rank_variables(hosts: Sequence[str]) -> list[dict[str, str]]:
    """Return Horovod's environment variables for each process: its rank overall, on its host and across hosts.

    ``hosts`` has the host name of each rank, in rank order.
    """
    local_ranks = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    variables = []
    for rank, (host, local_rank) in enumerate(zip(hosts, local_ranks, strict=True)):
        # A cross group in Horovod consists of the ranks with the same local rank.
        cross = [other for other, theirs in zip(hosts, local_ranks, strict=True) if theirs == local_rank]
        numbers = {
            "RANK": rank,
            "SIZE": len(hosts),
            "LOCAL_RANK": local_rank,
            "LOCAL_SIZE": hosts.count(host),
            "CROSS_RANK": cross.index(host),
            "CROSS_SIZE": len(cross),
        }
        variables.append(
            {f"HOROVOD_{name}": str(number) for name, number in numbers.items()} | {"HOROVOD_HOSTNAME": host}
        )
    return variables


def rendezvous_variables(port: int, address: str = LOOPBACK, interface: str = LOOPBACK_INTERFACE) -> dict[str, str]:
    """Return the variables that direct a rank to the rendezvous server and its Gloo traffic to a network interface."""
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def gloo_variables(timeout: float) -> dict[str, str]:
    """Return the variable that lets ranks wait for each other at their start until a time limit in seconds has passed.

    Gloo's own limit of 30 seconds would abort ranks that share few cores. The time limit passes first.

    Example:
        >>> gloo_variables(180)
        {'HOROVOD_GLOO_TIMEOUT_SECONDS': '210'}
    """
    return {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(math.ceil(min(timeout, MAX_GLOO_SECONDS)) + 30)}


def cores() -> int:
    """Return the number of CPU cores that this process may use, by its affinity and its containers' quotas."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(allowed, *cpu_quotas(Path("/")))))


def cpu_quotas(root: Path) -> list[float]:
    """Return the quotas, in cores, of this process's control groups and their parents; infinity for those without.

    Docker's ``--cpus``, Kubernetes and hubs set them. The affinity, which `os.process_cpu_count` looks at, does not
    show them. ``root`` is the root of the file system.

    References:
        The kernel's documentation of ``cpu.max`` (cgroup v2) and ``cpu.cfs_quota_us`` (v1).
    """
    quotas = [math.inf]
    with contextlib.suppress(OSError):  # only Linux has control groups
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if "cpu" in controllers.split(",") or not controllers:  # v2 names no controllers
                parts = [part for part in group.split("/") if part]
                folders = [root.joinpath("sys/fs/cgroup", controllers, *parts[:end]) for end in range(len(parts) + 1)]
                quotas += map(_quota, folders)
    return quotas


def _quota(folder: Path) -> float:
    """Return the quota of a control group of version 2 or 1; infinity if it has none or is not visible."""
    for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with contextlib.suppress(OSError):
            quota, period = " ".join((folder / file).read_text() for file in files).split()
            return int(quota) / int(period) if quota.isdecimal() else math.inf  # "max" in v2, -1 in v1
    return math.inf


def thread_variables(size: int) -> dict[str, str]:
    """Return variables that give each of a machine's ``size`` ranks an equal share of the cores.

    Set them before importing TensorFlow.

    Example:
        >>> thread_variables(10_000)["OMP_NUM_THREADS"]
        '1'
    """
    share = str(max(1, cores() // size))
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return dict.fromkeys(names, share) | {
        # Otherwise, a rank on a GPU would take all of its memory and leave none to the others.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }


@contextlib.contextmanager
def rendezvous(address: str = LOOPBACK) -> Iterator[int]:
    """Run Horovod's rendezvous server at the IP address ``address`` only, and yield its port, chosen by the system.

    Horovod's own ``RendezvousServer`` listens on every interface, but the server inside it accepts an address. It has
    no authentication: anyone who can reach it can read and change the addresses of the ranks.
    """
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer((address, 0), RendezvousHandler, 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="rendezvous", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
