"""Hosts as the workers: the ranks of one host add up their gradients first, and one message a host goes out.

Ranks on one host reach each other by its memory, hosts by a network that is far slower. Fewer workers also make the
break-even ratio larger.
"""

from __future__ import annotations

import socket

import numpy as np
import tensorflow as tf

from dgc_lab.common import LabError, check_text
from dgc_lab.distributed.communicators import HorovodWorkers

LONGEST_NAME = 256


class HierarchicalCommunicator(HorovodWorkers):
    """The hosts of a running Horovod job, one worker each, with as many ranks on one as on another.

    ``size`` is the number of hosts and ``first`` the number of this rank's own, by their lowest ranks. All ranks of a
    host hold the same velocities and residuals, bit for bit. Bytes that are counted are those that a host hands to the
    exchange between hosts. Keras saves no communicator: give it again to a `DistributedOptimizer` that was loaded.

    Args:
        host: name of this rank's host; the machine's own if None.

    Attributes:
        ranks: numbers of the ranks on each host.
        leads: whether this rank sends for its host.

    Raises:
        LabError: Horovod has not been started in this process, or not with ``process_sets="dynamic"``; on all ranks.
        ValueError: hosts have different numbers of ranks; on all ranks.

    Example:
        >>> workers = HierarchicalCommunicator()  # doctest: +SKIP
        >>> workers.size, workers.ranks  # doctest: +SKIP
        (2, [[0, 1], [2, 3]])

    Source: https://horovod.readthedocs.io/en/stable/process_set.html.
    """

    def __init__(self, host: str | None = None):
        if host is not None:
            check_text("host", host)
        super().__init__()
        name = (host or socket.gethostname()).encode()[:LONGEST_NAME]
        padded = np.frombuffer(name.ljust(LONGEST_NAME, b"\0"), np.uint8)[None]
        names = self._now(lambda: self.hvd.allgather(tf.constant(padded), name="dgc_lab.hosts"))
        names = [bytes(row) for row in names]
        self.ranks = [[rank for rank, other in enumerate(names) if other == name] for name in dict.fromkeys(names)]
        if len({len(ranks) for ranks in self.ranks}) != 1:
            raise ValueError(f"hosts must have equal numbers of ranks, got {self.ranks}")
        [self.first] = [number for number, ranks in enumerate(self.ranks) if self.hvd.rank() in ranks]
        self.leads = self.hvd.rank() == self.ranks[self.first][0]
        self.size = len(self.ranks)
        # Every rank has to make every set, in one order.
        self._own = [self._set_of(ranks) for ranks in self.ranks][self.first]
        self._leaders = self._set_of([ranks[0] for ranks in self.ranks])

    @property
    def each_rank(self):
        return HorovodWorkers()

    def reduce_within_host(self, gradients, metadata, average):
        """One worker's float32 gradients and metadata of those of this host's ranks: means, or the gradients' sums.

        ``tf.IndexedSlices`` of all ranks are joined; rows may be named several times afterwards.
        """
        [gradients], [metadata] = gradients, metadata
        ranks = len(self.ranks[self.first])
        gradients = [g if g is None else tf.cast(g, tf.float32) for g in gradients]  # Horovod gathers no bfloat16
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
        return self._sums(tensors, self._own, f"{name}.own")  # zeros, but for the rank that has the sums

    def allgather(self, tensors, name=None):
        [tensor] = tensors
        if self.leads:
            tensor = self.hvd.allgather(tensor, name=f"{name}.hosts", process_set=self._leaders)
        else:
            tensor = tensor[:0]
        return self.hvd.allgather(tensor, name=f"{name}.own", process_set=self._own)

    def _sums(self, tensors, ranks, name):
        return self.hvd.grouped_allreduce(tensors, op=self.hvd.Sum, name=name, process_set=ranks)

    def _set_of(self, ranks):
        """Horovod's set of these ranks, as it was made before or new."""
        if ranks == list(range(self.hvd.size())):
            return self.hvd.global_process_set
        # Horovod makes no set twice, and has no public way to ask for those that it has.
        for number, members in self.hvd.mpi_ops._basics._get_process_set_ids_and_ranks().items():
            if list(members) == ranks:
                known = self.hvd.ProcessSet(ranks)
                known.process_set_id = number
                return known
        try:
            return self.hvd.add_process_set(ranks)
        except (ValueError, RuntimeError) as error:
            raise LabError(
                f"Horovod takes no new process sets ({error}): start it with hvd.init(process_sets='dynamic')"
            ) from error
