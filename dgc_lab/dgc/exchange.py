"""The ways to send one step's gradients: values and indices by allgather, or all elements by allreduce.

Either way takes one collective for all tensors; two, where what is sent whole is long and the workers are many, or
where rows and whole tensors are sent. State is `dgc_lab.dgc.step`'s business: what an exchange leaves behind is returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from dgc_lab.dgc.algorithm import select, zero_at
from dgc_lab.dgc.break_even import dense_is_shorter, one_message_is_shorter
from dgc_lab.dgc.config import DGCConfig
from dgc_lab.dgc.flat_index import flatten, global_indices, nbytes, scatter_add, unflatten
from dgc_lab.dgc.thresholding import keep_mask
from dgc_lab.dgc.wire_format import Content, Layout, pack, unpack


class WorkerPayload(NamedTuple):
    """What one worker has to send.

    Attributes:
        parted: (velocity or None, residual, its block_maxima, threshold) of each gradient that is sent in part, flat.
        whole: float32 tensors that are sent whole.
        rows: float32 values (r, width) and int32 row numbers (r,) of each gradient of rows.
        notes: float32 (notes,), what it tells all others.
    """

    parted: list
    whole: list
    rows: list
    notes: tf.Tensor


class ExchangeResult(NamedTuple):
    """What came to all workers, and what is left of what those in this process had.

    Attributes:
        parted: flat float32 sums over all workers; means, where the config's reduction is one; or the new weights,
            where `GradientExchange` has the old ones.
        whole: float32 sums over all workers.
        rows: values and row numbers of all workers, one after another.
        notes: float32 (workers, notes).
        left: for each worker here, (velocity or None, residual) of each gradient that is sent in part.
        kept: int64 (gradients sent in part,), elements that the workers here sent.
        handed: int64 (2,), bytes that the workers here handed to allreduce and to allgather.
    """

    parted: list
    whole: list
    rows: list
    notes: tf.Tensor
    left: list
    kept: tf.Tensor
    handed: tf.Tensor


@dataclass(frozen=True)
class GradientExchange:
    """The exchange of one step's gradients.

    Args:
        config: the switches.
        communicator: who takes part (`dgc_lab.distributed.communicators`).
        sizes: elements of each gradient that is sent in part.
        shapes: shapes of those that are sent whole.
        widths: elements of a row, of each gradient of rows.
        clears_velocity: sending an element clears its velocity, too.
        weights: flat float32 tensors, the weights whose gradients are sent in part, to take the update off; or None.
        rate: what the update is multiplied by before that.
    """

    config: DGCConfig
    communicator: object
    sizes: list[int]
    shapes: list
    widths: list[int]
    clears_velocity: bool
    weights: list | None = None
    rate: tf.Tensor | float = 1.0

    def mean(self, total):
        """What a sum over all workers comes to, by the config's reduction."""
        size = self.communicator.size
        return total / size if self.config.reduction == "average" and size > 1 else total

    def send(self, every: list[WorkerPayload], ratio) -> ExchangeResult:
        """What is shorter at this ratio, a number or a scalar tensor; ``every``: the workers in this process."""
        entry = Layout(self.config.values, self.config.indices).element_bytes
        dense = self.config.switch_to_dense and dense_is_shorter(ratio, self.communicator.size, entry)
        dense = dense if self.sizes else True
        ways = (lambda: self.by_allreduce(every), lambda: self.by_allgather(every))
        return tf.cond(dense, *ways) if tf.is_tensor(dense) else ways[0 if dense else 1]()

    def by_allgather(self, every: list[WorkerPayload]) -> ExchangeResult:
        """Values and indices of what passes the thresholds; short tensors that are sent whole go with them."""
        whole = sum(tf.TensorShape(shape).num_elements() for shape in self.shapes)
        joins = one_message_is_shorter(4 * whole, self.communicator.size)
        messages, left, kept = [], [], []
        for own in every:
            places, values, stays = self.selected(own)
            entries = global_indices(places, self.sizes), flatten(values)
            messages.append(Content(own.notes, flatten(own.whole if joins else []), own.rows, *entries))
            left.append(stays)
            kept.append(counted([tf.size(where, tf.int64) for where in places]))
        contents, allgathered = self._gather(messages, whole if joins else 0)
        indices, values = flatten([c.indices for c in contents]), flatten([c.values for c in contents])
        # Here, and not when they stand among zeros: a division less for every element that nobody sent.
        values = self.mean(tf.cast(values, tf.float32))
        sums, allreduced = [], tf.constant(0, tf.int64)
        if joins:
            sums = unflatten(tf.add_n([content.whole for content in contents]), self.shapes)
        elif self.shapes:
            sums, allreduced = self._reduce([own.whole for own in every])
        handed = tf.stack([allreduced, allgathered])
        values = values if self.weights is None else -self.rate * values
        parted = scatter_add(indices, values, self.sizes, self.weights)
        return ExchangeResult(parted, sums, rows_of(contents), notes_of(contents), left, tf.add_n(kept), handed)

    def by_allreduce(self, every: list[WorkerPayload]) -> ExchangeResult:
        """The same elements in their places, with zeros for the others; only rows need a message."""
        groups, left, kept = [], [], []
        for worker, own in enumerate(every, self.communicator.first):
            masked, stays, counts = self.masked(own)
            table = [] if self.widths else [row_in_table(own.notes, worker, self.communicator.size)]
            groups.append([*masked, *own.whole, *table])
            left.append(stays)
            kept.append(counts)
        rows, allgathered = [], tf.constant(0, tf.int64)
        if self.widths:
            nothing = tf.zeros([0]), tf.zeros([0], tf.int32), tf.zeros([0], self.config.values)
            messages = [Content(own.notes, nothing[0], own.rows, *nothing[1:]) for own in every]
            contents, allgathered = self._gather(messages, 0)
            rows, notes = rows_of(contents), notes_of(contents)
        sums, allreduced = self._reduce(groups)
        if not self.widths:
            *sums, notes = sums
        parted, whole = [self.mean(total) for total in sums[: len(self.sizes)]], sums[len(self.sizes) :]
        if self.weights is not None:
            parted = [old - self.rate * mean for old, mean in zip(self.weights, parted, strict=True)]
        return ExchangeResult(parted, whole, rows, notes, left, tf.add_n(kept), tf.stack([allreduced, allgathered]))

    def by_others(self, own: WorkerPayload, ratio) -> ExchangeResult:
        """Nothing is sent: one worker's own, for somebody else to exchange.

        A gradient that is sent in part is flat ``tf.IndexedSlices`` with int32 indices; or, from the break-even of
        these on, a tensor with zeros, unless the ratio is a tensor: whether indices come has to be known beforehand.
        """
        entry = Layout(self.config.values).element_bytes
        sparse = tf.is_tensor(ratio) or not dense_is_shorter(ratio, self.communicator.size, entry)
        if sparse or not self.config.switch_to_dense:
            places, values, left = self.selected(own)
            sizes = zip(values, places, self.sizes, strict=True)
            parted = [tf.IndexedSlices(v, p, tf.constant([size])) for v, p, size in sizes]
            kept, gathered, dense = counted([tf.size(p, tf.int64) for p in places]), [*places, *values], []
        else:
            parted, left, kept = self.masked(own)
            gathered, dense = [], parted
        rows = [tensor for pair in own.rows for tensor in pair]
        handed = tf.stack([nbytes([*dense, *own.whole]), nbytes([*gathered, *rows])])
        return ExchangeResult(parted, own.whole, own.rows, own.notes[None], [left], kept, handed)

    def selected(self, own: WorkerPayload):
        """Of one worker, per gradient that is sent in part: indices, values, and (velocity, residual) that stay."""
        places, values, left = [], [], []
        for velocity, residual, maxima, limit in own.parted:
            where, sent, error = select(residual, limit, self.config.values, maxima)
            places.append(where)
            values.append(sent)
            velocity = zero_at(velocity, where) if self.clears_velocity else velocity
            left.append((velocity, zero_at(residual, where, error)))
        return places, values, left

    def masked(self, own: WorkerPayload):
        """Of one worker, per gradient that is sent in part: tensors with zeros, (velocity, residual) left, counts."""
        sent, left, kept = [], [], []
        for velocity, residual, _, limit in own.parted:
            mask, zero = keep_mask(residual, limit), tf.zeros([], residual.dtype)
            sent.append(tf.cast(tf.where(mask, residual, zero), tf.float32))
            velocity = tf.where(mask, zero, velocity) if self.clears_velocity else velocity
            left.append((velocity, tf.where(mask, zero, residual)))
            kept.append(tf.math.count_nonzero(mask))
        return sent, left, counted(kept)

    def _gather(self, contents, whole):
        """Everybody's contents, and the bytes handed over here."""
        notes = contents[0].notes.shape[0]
        layout = Layout(self.config.values, self.config.indices, notes, whole, tuple(self.widths))
        messages = [pack(content, layout) for content in contents]
        every = self.communicator.allgather(messages, "dgc_lab.messages")
        return unpack(every, layout, self.communicator.size), nbytes(messages)

    def _reduce(self, groups):
        """Sums over all workers, and the bytes handed over here."""
        return self.communicator.allreduce_group(groups, "dgc_lab.whole"), tf.add_n([nbytes(group) for group in groups])


def row_in_table(notes, worker: int, workers: int):
    """A worker's notes as its row of a table of all workers' notes, zeros elsewhere: the sum of these is the table.

    Example:
        >>> row_in_table(tf.constant([7.0]), worker=1, workers=3).numpy().tolist()
        [[0.0], [7.0], [0.0]]
    """
    return tf.pad(notes[None], [[worker, workers - worker - 1], [0, 0]])


def counted(counts):
    """Numbers of elements as one int64 tensor, empty for no gradients."""
    return tf.stack(counts) if counts else tf.zeros([0], tf.int64)


def notes_of(contents):
    """The notes of all messages, one row each."""
    return tf.stack([content.notes for content in contents])


def rows_of(contents):
    """Of each gradient of rows, the values and row numbers of all messages, one after another."""
    every = zip(*(content.rows for content in contents), strict=True)
    return [tuple(tf.concat(parts, 0) for parts in zip(*pairs, strict=True)) for pairs in every]
