"""What the processes of a TensorFlow cluster are: servers, a coordinator, mirrored workers. Runs inside them."""

from __future__ import annotations

import contextlib
import functools
import json
import os

from dgc_lab.cluster.host import process_of
from dgc_lab.common import LabError, check_whole

_servers = []  # a server ends with its last reference


def set_threads(inter: int, intra: int) -> None:
    """Limit TensorFlow's threads: ``inter`` operations at a time, ``intra`` threads for one of them."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(inter)
    tf.config.threading.set_intra_op_parallelism_threads(intra)


def serve(inter: int, intra: int) -> None:
    """Start the server that ``TF_CONFIG`` tells of, a parameter server or a worker; it lives as long as the process.

    It runs ``inter`` operations at a time, each on ``intra`` threads. With no more of the former than workers, servers
    on few cores wait for ever. A ValueError for fewer than one.

    Example, in a process of its own:
        >>> serve(inter=4, intra=1)  # doctest: +SKIP
    """
    import tensorflow as tf

    check_whole("inter", inter, 1, 4096)
    check_whole("intra", intra, 1, 4096)
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=inter, intra_op_parallelism_threads=intra)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster, job, index = resolver.cluster_spec(), resolver.task_type, resolver.task_id
    _servers.append(tf.distribute.Server(cluster, job, index, protocol="grpc", config=config))


def coordinator():
    """The ``ClusterCoordinator`` of this process, connected to the servers that ``TF_CONFIG`` names.

    Call it once in a function: an error of an earlier function's step, which TensorFlow would raise again at the next
    ``schedule``, is forgotten here. A LabError where this is the first call, and a worker is not alive.
    """
    import tensorflow as tf

    with contextlib.suppress(tf.errors.OpError):
        _connected().done()
    return _connected()


@functools.cache
def _connected():
    import tensorflow as tf

    if dead := dead_workers():  # TensorFlow would wait for them for ever
        names = " and ".join(f"worker {number}" for number in dead)
        raise LabError(f"{names} died before the coordinator had met all workers. restart_worker() brings it back")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


@functools.cache
def mirrored():
    """The ``MultiWorkerMirroredStrategy`` of this process; each worker has to call it, they wait for each other."""
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()


def number_of(job: str) -> int:
    """How many processes of a job ``TF_CONFIG`` names: ``"worker"`` or ``"ps"``."""
    return len(json.loads(os.environ["TF_CONFIG"])["cluster"][job])


def own_number() -> int:
    """The number of this process among those of its job."""
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def worker_processes() -> list[int | None]:
    """The ids of the workers' processes by number; None for those that are gone at this moment."""
    return [process_of(f"worker {number}") for number in range(number_of("worker"))]


def dead_workers() -> list[int]:
    """Numbers of the workers whose process is gone at this moment."""
    return [number for number, process in enumerate(worker_processes()) if process is None]
