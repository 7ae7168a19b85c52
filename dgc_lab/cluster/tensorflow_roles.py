"""Roles of the processes in a TensorFlow cluster: server, coordinator, mirrored worker. Runs inside them."""

from __future__ import annotations

import contextlib
import functools
import json
import os

from dgc_lab.cluster.host import process_of
from dgc_lab.common import LabError, check_whole

_servers = []  # a server ends with its last reference


def set_threads(inter: int, intra: int) -> None:
    """Limit TensorFlow to ``inter`` operations at a time, with ``intra`` threads each."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(inter)
    tf.config.threading.set_intra_op_parallelism_threads(intra)


def serve(inter: int, intra: int) -> None:
    """Start a parameter server or worker as specified by ``TF_CONFIG``; it runs until the process ends.

    It runs ``inter`` operations at a time, each on ``intra`` threads. If ``inter`` is not above the number of workers,
    servers on few cores wait forever. Raises ValueError if ``inter`` or ``intra`` is not from 1 to 4096.

    Example:
        In a process of its own:

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
    """Return this process's ``ClusterCoordinator``, connected to the servers in ``TF_CONFIG``.

    Call it once in a function: it discards an error in an earlier function's step, which TensorFlow would raise again
    at the next ``schedule``. The first call in a process raises LabError if a worker is not alive.
    """
    import tensorflow as tf

    with contextlib.suppress(tf.errors.OpError):
        _connected().done()
    return _connected()


@functools.cache
def _connected():
    import tensorflow as tf

    if dead := dead_workers():  # TensorFlow would wait for them forever
        names = " and ".join(f"worker {number}" for number in dead)
        raise LabError(f"{names} died before the coordinator connected to all workers. restart_worker() restarts one")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


@functools.cache
def mirrored():
    """Return this process's ``MultiWorkerMirroredStrategy``; all workers must call it, as they wait for each other."""
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()


def number_of(job: str) -> int:
    """Return the number of processes of a job, ``"worker"`` or ``"ps"``, in ``TF_CONFIG``."""
    return len(json.loads(os.environ["TF_CONFIG"])["cluster"][job])


def own_number() -> int:
    """Return the index of this process in its job."""
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def worker_processes() -> list[int | None]:
    """Return the process IDs of the workers by number; None for workers that are gone at this moment."""
    return [process_of(f"worker {number}") for number in range(number_of("worker"))]


def dead_workers() -> list[int]:
    """Return the numbers of the workers whose process is gone at this moment."""
    return [number for number, process in enumerate(worker_processes()) if process is None]
