"""Ranks of one host as one worker: whole gradients are averaged on the host, what goes to other hosts is compressed.

Links within a host are fast, and compression does not pay there; between hosts they are slow. All ranks of a host get
the host's mean gradient, so that they hold the same residuals and select the same elements; the host's first rank
exchanges them with the other hosts' first ranks and hands round what came. The network then carries one message a host
in place of one a rank, an allgather grows with the hosts alone, and no gradient waits in several residuals of one host.

What a step sends between hosts is what a worker of its own would send that had the whole host's batch.

Source: arXiv:1712.01887, section 4 (its nodes of 4 GPUs); process sets:
https://horovod.readthedocs.io/en/stable/process_set.html
"""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf

from dgc_lab.errors import LabError
from dgc_lab.exchange import HorovodWorkers

NEEDED = "HOROVOD_DYNAMIC_PROCESS_SETS"


class HostAwareWorkers(HorovodWorkers):
    """The hosts of a running Horovod job, one worker each; every rank takes part.

    To be made on all ranks at once. ``size`` is the number of hosts and ``first`` the number of this one; which
    examples a rank trains on is to be told by ``hvd.rank()`` and ``hvd.size()``, for each rank has its own.

    Raises:
        LabError: Horovod has not been started here, or was without ``HOROVOD_DYNAMIC_PROCESS_SETS=1``, or hosts have
            different numbers of ranks.

    Example:
        >>> compressor = Compressor(Recipe(), weights, HostAwareWorkers())  # doctest: +SKIP
    """

    def __init__(self):
        super().__init__()
        hvd = self.hvd
        if os.environ.get(NEEDED) != "1":
            raise LabError(f"set {NEEDED}=1 in every rank's environment before Horovod is started")
        if not hvd.is_homogeneous():
            raise LabError("every host must have the same number of ranks, or some would count more than others")
        places = np.array([[hvd.cross_rank(), hvd.local_rank(), hvd.rank()]])
        places = self._now(lambda: hvd.allgather(tf.constant(places), name="dgc_lab.hosts"))
        hosts = [sorted(places[places[:, 0] == host], key=lambda place: place[1]) for host in range(hvd.cross_size())]
        members = [[int(rank) for *_, rank in host] for host in hosts]
        self.leads = hvd.local_rank() == 0
        self.size, self.first = hvd.cross_size(), hvd.cross_rank()
        self.leader = members[self.first][0]
        # All ranks must name all sets, in one order; a set of all ranks, or of one, Horovod has already or needs not.
        self.hosts = [self._set(ranks) for ranks in members]
        self.leaders = self._set([ranks[0] for ranks in members])
        self.host, self.ranks_here = self.hosts[self.first], hvd.local_size()

    def _set(self, ranks):
        """Horovod's process set of these ranks, as it was made before or new; None for a rank alone."""
        if len(ranks) == self.hvd.size():
            return self.hvd.global_process_set
        if len(ranks) == 1:
            return None
        # Horovod makes no set twice, and has no public way to ask for the sets that it has.
        for number, members in self.hvd.mpi_ops._basics._get_process_set_ids_and_ranks().items():
            if list(members) == ranks:
                found = self.hvd.ProcessSet(ranks)
                found.process_set_id = number
                return found
        return self.hvd.add_process_set(ranks)

    def within(self, gradients, told, average=True):
        """One worker's gradients and what it tells the others, of all ranks of this host together.

        Args:
            gradients: of this rank, as a compressor takes them: tensors, ``tf.IndexedSlices`` or None.
            told: float32 tensor of this rank.
            average: the mean of the gradients, else their sum; what is told is averaged always.

        Returns:
            ``(gradients, told)``, the same bits on all ranks of the host.
        """
        if self.host is None:
            return gradients, told
        share = 1 / self.ranks_here if average else 1.0
        rows = {i: gradient for i, gradient in enumerate(gradients) if isinstance(gradient, tf.IndexedSlices)}
        whole = [i for i, gradient in enumerate(gradients) if gradient is not None and i not in rows]
        tensors = [*(gradients[i] for i in whole), told]
        *sums, told = self.hvd.grouped_allreduce(tensors, op=self.hvd.Sum, name="dgc_lab.host", process_set=self.host)
        together = list(gradients)
        for i, total in zip(whole, sums, strict=True):
            together[i] = share * total
        for i, gradient in rows.items():
            values, indices = (
                self.hvd.allgather(part, name=f"dgc_lab.host.{i}.{name}", process_set=self.host)
                for name, part in (("values", gradient.values), ("indices", gradient.indices))
            )
            together[i] = tf.IndexedSlices(share * values, indices, gradient.dense_shape)
        return together, told / self.ranks_here

    def allreduce(self, tensors, name=None):
        """Sum over all hosts, the same bits on every rank."""
        return self.allreduce_group([tensors], name)[0]

    def allreduce_group(self, groups, name=None):
        """Sums over all hosts of a list of tensors; every rank of a host must have the same."""
        [tensors] = groups
        if self.leads and self.leaders is not None:
            tensors = self.hvd.grouped_allreduce(tensors, op=self.hvd.Sum, name=name, process_set=self.leaders)
        return self._from_leader(tensors, name)

    def allgather(self, tensors, name=None):
        """The hosts' tensors one after another, by host; every rank of a host must have the same."""
        [tensor] = tensors
        if self.leads and self.leaders is not None:
            tensor = self.hvd.allgather(tensor, name=name, process_set=self.leaders)
        if self.host is None:
            return tensor
        # The others hand over nothing: so nobody has to know beforehand how much comes.
        mine = tensor if self.leads else tensor[:0]
        return self.hvd.allgather(mine, name=f"{name or 'dgc_lab'}.on_host", process_set=self.host)

    def _from_leader(self, tensors, name):
        if self.host is None:
            return tensors
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        flat = self.hvd.broadcast(flat, self.leader, name=f"{name or 'dgc_lab'}.on_host", process_set=self.host)
        parts = tf.split(flat, [tf.size(tensor) for tensor in tensors])
        return [tf.reshape(part, tf.shape(tensor)) for part, tensor in zip(parts, tensors, strict=True)]
