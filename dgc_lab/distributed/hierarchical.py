"""Hosts as workers: the ranks of a host first add up their gradients, and each host sends one message.

Ranks on one host communicate through its memory, hosts through a far slower network. Fewer workers also raise the
break-even ratio.
"""

from __future__ import annotations

import socket

import numpy as np
import tensorflow as tf

from dgc_lab.common import LabError, check_text
from dgc_lab.distributed.communicators import HorovodWorkers

MAX_NAME_BYTES = 256


class HierarchicalCommunicator(HorovodWorkers):
    """Hosts of a running Horovod job, one worker each; every host must have the same number of ranks.

    ``size`` is the number of hosts and ``first`` the index of this rank's host, in the order of their lowest ranks. All
    ranks of a host hold the same velocities and residuals, bit for bit. Byte counts cover a host's payload in the
    exchange between hosts. Keras does not save communicators: set one again on a `DistributedOptimizer` after loading.

    Args:
        host: name of this rank's host; if None, the machine's host name.

    Attributes:
        ranks: list of the ranks on each host.
        leads: whether this rank sends for its host.

    Raises:
        LabError: on all ranks, if Horovod is not initialized in this process, or not with ``process_sets="dynamic"``.
        ValueError: on all ranks, if hosts have different numbers of ranks.

    Example:
        >>> workers = HierarchicalCommunicator()  # doctest: +SKIP
        >>> workers.size, workers.ranks  # doctest: +SKIP
        (2, [[0, 1], [2, 3]])

    References:
        https://horovod.readthedocs.io/en/stable/process_set.html
    """

    def __init__(self, host: str | None = None):
        if host is not None:
            check_text("host", host)
        super().__init__()
        name = (host or socket.gethostname()).encode()[:MAX_NAME_BYTES]
        padded = np.frombuffer(name.ljust(MAX_NAME_BYTES, b"\0"), np.uint8)[None]
        names = self._run_now(lambda: self.hvd.allgather(tf.constant(padded), name="dgc_lab.hosts"))
        names = [bytes(row) for row in names]
        self.ranks = [[rank for rank, other in enumerate(names) if other == name] for name in dict.fromkeys(names)]
        if len({len(ranks) for ranks in self.ranks}) != 1:
            raise ValueError(f"hosts must have equal numbers of ranks, got {self.ranks}")
        [self.first] = [number for number, ranks in enumerate(self.ranks) if self.hvd.rank() in ranks]
        self.leads = self.hvd.rank() == self.ranks[self.first][0]
        self.size = len(self.ranks)
        # Every rank must create every process set, in the same order.
        self._own = [self._process_set(ranks) for ranks in self.ranks][self.first]
        self._leaders = self._process_set([ranks[0] for ranks in self.ranks])

    @property
    def each_rank(self):
        return HorovodWorkers()

    def reduce_within_host(self, gradients, metadata, average):
        """Return this worker's float32 gradients and metadata: means over its host's ranks, or sums of gradients.

        ``tf.IndexedSlices`` of all ranks are concatenated, so row numbers may repeat.
        """
        [gradients], [metadata] = gradients, metadata
        ranks = len(self.ranks[self.first])
        gradients = [g if g is None else tf.cast(g, tf.float32) for g in gradients]  # Horovod cannot gather bfloat16
        dense = [g for g in gradients if isinstance(g, tf.Tensor)]
        *dense, metadata = self._sums([*dense, metadata / ranks], self._own, "dgc_lab.pool")
        scale, dense, pooled = 1 / ranks if average else 1.0, iter(dense), []
        for number, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                parts = [
                    self.hvd.allgather(part, name=f"dgc_lab.pool.{number}.{name}", process_set=self._own)
                    for name, part in {"values": gradient.values, "rows": gradient.indices}.items()
                ]
                gradient = tf.IndexedSlices(parts[0] * scale, parts[1], gradient.dense_shape)
            elif gradient is not None:
                gradient = next(dense) * scale
            pooled.append(gradient)
        return [pooled], [metadata]

    def allreduce(self, groups, name=None):
        [tensors] = groups
        if self.leads:
            tensors = self._sums(tensors, self._leaders, f"{name}.hosts")
        else:
            tensors = [tf.zeros_like(tensor) for tensor in tensors]
        return self._sums(tensors, self._own, f"{name}.own")  # only the leader adds values other than zero

    def allgather(self, tensors, name=None):
        [tensor] = tensors
        if self.leads:
            tensor = self.hvd.allgather(tensor, name=f"{name}.hosts", process_set=self._leaders)
        else:
            tensor = tensor[:0]
        return self.hvd.allgather(tensor, name=f"{name}.own", process_set=self._own)

    def _sums(self, tensors, ranks, name):
        return self.hvd.grouped_allreduce(tensors, op=self.hvd.Sum, name=name, process_set=ranks)

    def _process_set(self, ranks):
        """Return Horovod's process set of these ranks; create it if needed."""
        if ranks == list(range(self.hvd.size())):
            return self.hvd.global_process_set
        # Horovod rejects a set that exists, and has no public function that lists its sets.
        for number, members in self.hvd.mpi_ops._basics._get_process_set_ids_and_ranks().items():
            if list(members) == ranks:
                known = self.hvd.ProcessSet(ranks)
                known.process_set_id = number
                return known
        try:
            return self.hvd.add_process_set(ranks)
        except (ValueError, RuntimeError) as error:
            raise LabError(
                f"Horovod cannot add process sets ({error}): initialize it with hvd.init(process_sets='dynamic')"
            ) from error
