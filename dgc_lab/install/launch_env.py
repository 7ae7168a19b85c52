"""What makes a process one of Horovod's ranks without ``horovodrun``: a few variables, and a server to meet at.

Uses the standard library alone until the server starts, so that `dgc_lab.install.build_horovod` can use it too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


def rank_variables(hosts: Sequence[str]) -> list[dict[str, str]]:
    """Which rank each process is, overall, on its host and across hosts, as the variables that Horovod reads.

    ``hosts`` are the names of the ranks' hosts, in rank order.
    """
    local_ranks = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    variables = []
    for rank, (host, local_rank) in enumerate(zip(hosts, local_ranks, strict=True)):
        # Horovod calls the ranks that have the same place on their hosts a cross group.
        cross = [other for other, place in zip(hosts, local_ranks, strict=True) if place == local_rank]
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


def meeting_variables(port: int, address: str = LOOPBACK, interface: str = LOOPBACK_INTERFACE) -> dict[str, str]:
    """The variables that send a rank to the server, and its traffic (Gloo) over one network interface."""
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_variables(size: int) -> dict[str, str]:
    """Environment that gives each of a machine's ``size`` ranks its share of the cores.

    To be set before TensorFlow is imported.

    Example:
        >>> thread_variables(10_000)["OMP_NUM_THREADS"]
        '1'
    """
    share = str(max(1, cores() // size))
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return dict.fromkeys(names, share) | {
        # On a GPU, a rank would otherwise take all of its memory, and leave none to the others.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }


@contextlib.contextmanager
def rendezvous(address: str = LOOPBACK) -> Iterator[int]:
    """Run Horovod's rendezvous server at the IP address ``address`` only, and give its port, which the system chooses.

    Horovod's own ``RendezvousServer`` listens on every interface; the server inside it takes an address. It knows
    no authentication: whoever reaches it can read and change the addresses of the ranks.
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
