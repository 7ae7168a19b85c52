"""The ways to send one step's gradients: values and indices by allgather, or all elements by allreduce.

Either way takes one collective for all tensors; two, where what is sent whole is long and the workers are many, or
where rows and whole tensors are sent. State is `dgc_lab.dgc.step`'s business: what an exchange leaves behind is returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from dgc_lab.dgc.algorithm import Recipe, clear, select
from dgc_lab.dgc.break_even import dense_is_shorter, one_message_is_shorter
from dgc_lab.dgc.flat_index import add_up, join, number_through, part
from dgc_lab.dgc.thresholds import keep_mask
from dgc_lab.dgc.wire_format import Content, Layout, pack, unpack
from dgc_lab.distributed.communicators import payload


class Own(NamedTuple):
    """What one worker has to send.

    Attributes:
        parted: (velocity or None, residual, its peaks, threshold) of each gradient that is sent in part, flat.
        whole: float32 tensors that are sent whole.
        rows: float32 values (r, width) and int32 row numbers (r,) of each gradient of rows.
        notes: float32 (notes,), what it tells all others.
    """

    parted: list
    whole: list
    rows: list
    notes: tf.Tensor


class Outcome(NamedTuple):
    """What came to all workers, and what is left of what those in this process had.

    Attributes:
        parted: flat float32 sums over all workers; means, where the recipe's reduction is one; or the new weights,
            where `Ways` has the old ones.
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
class Ways:
    """The exchange of one step's gradients.

    Args:
        recipe: the switches.
        exchange: who takes part (`dgc_lab.distributed.communicators`).
        sizes: elements of each gradient that is sent in part.
        shapes: shapes of those that are sent whole.
        widths: elements of a row, of each gradient of rows.
        clears_velocity: sending an element clears its velocity, too.
        weights: flat float32 tensors, the weights whose gradients are sent in part, to take the update off; or None.
        rate: what the update is multiplied by before that.
    """

    recipe: Recipe
    exchange: object
    sizes: list[int]
    shapes: list
    widths: list[int]
    clears_velocity: bool
    weights: list | None = None
    rate: tf.Tensor | float = 1.0

    def mean(self, total):
        """What a sum over all workers comes to, by the recipe's reduction."""
        size = self.exchange.size
        return total / size if self.recipe.reduction == "average" and size > 1 else total

    def send(self, every: list[Own], ratio) -> Outcome:
        """What is shorter at this ratio, a number or a scalar tensor; ``every``: the workers in this process."""
        entry = Layout(self.recipe.values, self.recipe.indices).element_bytes
        dense = self.recipe.switch_to_dense and dense_is_shorter(ratio, self.exchange.size, entry)
        dense = dense if self.sizes else True
        ways = (lambda: self.by_allreduce(every), lambda: self.by_allgather(every))
        return tf.cond(dense, *ways) if tf.is_tensor(dense) else ways[0 if dense else 1]()

    def by_allgather(self, every: list[Own]) -> Outcome:
        """Values and indices of what passes the thresholds; short tensors that are sent whole go with them."""
        whole = sum(tf.TensorShape(shape).num_elements() for shape in self.shapes)
        joins = one_message_is_shorter(4 * whole, self.exchange.size)
        messages, left, kept = [], [], []
        for own in every:
            places, values, stays = self.selected(own)
            entries = number_through(places, self.sizes), join(values)
            messages.append(Content(own.notes, join(own.whole if joins else []), own.rows, *entries))
            left.append(stays)
            kept.append(counted([tf.size(where, tf.int64) for where in places]))
        contents, allgathered = self._gather(messages, whole if joins else 0)
        indices, values = join([c.indices for c in contents]), join([c.values for c in contents])
        # Here, and not when they stand among zeros: a division less for every element that nobody sent.
        values = self.mean(tf.cast(values, tf.float32))
        sums, allreduced = [], tf.constant(0, tf.int64)
        if joins:
            sums = part(tf.add_n([content.whole for content in contents]), self.shapes)
        elif self.shapes:
            sums, allreduced = self._reduce([own.whole for own in every])
        handed = tf.stack([allreduced, allgathered])
        values = values if self.weights is None else -self.rate * values
        parted = add_up(indices, values, self.sizes, self.weights)
        return Outcome(parted, sums, rows_of(contents), notes_of(contents), left, tf.add_n(kept), handed)

    def by_allreduce(self, every: list[Own]) -> Outcome:
        """The same elements in their places, with zeros for the others; only rows need a message."""
        groups, left, kept = [], [], []
        for worker, own in enumerate(every, self.exchange.first):
            masked, stays, counts = self.masked(own)
            table = [] if self.widths else [row_in_table(own.notes, worker, self.exchange.size)]
            groups.append([*masked, *own.whole, *table])
            left.append(stays)
            kept.append(counts)
        rows, allgathered = [], tf.constant(0, tf.int64)
        if self.widths:
            nothing = tf.zeros([0]), tf.zeros([0], tf.int32), tf.zeros([0], self.recipe.values)
            messages = [Content(own.notes, nothing[0], own.rows, *nothing[1:]) for own in every]
            contents, allgathered = self._gather(messages, 0)
            rows, notes = rows_of(contents), notes_of(contents)
        sums, allreduced = self._reduce(groups)
        if not self.widths:
            *sums, notes = sums
        parted, whole = [self.mean(total) for total in sums[: len(self.sizes)]], sums[len(self.sizes) :]
        if self.weights is not None:
            parted = [old - self.rate * mean for old, mean in zip(self.weights, parted, strict=True)]
        return Outcome(parted, whole, rows, notes, left, tf.add_n(kept), tf.stack([allreduced, allgathered]))

    def by_others(self, own: Own, ratio) -> Outcome:
        """Nothing is sent: one worker's own, for somebody else to exchange.

        A gradient that is sent in part is flat ``tf.IndexedSlices`` with int32 indices; or, from the break-even of
        these on, a tensor with zeros, unless the ratio is a tensor: whether indices come has to be known beforehand.
        """
        entry = Layout(self.recipe.values).element_bytes
        sparse = tf.is_tensor(ratio) or not dense_is_shorter(ratio, self.exchange.size, entry)
        if sparse or not self.recipe.switch_to_dense:
            places, values, left = self.selected(own)
            sizes = zip(values, places, self.sizes, strict=True)
            parted = [tf.IndexedSlices(v, p, tf.constant([size])) for v, p, size in sizes]
            kept, gathered, dense = counted([tf.size(p, tf.int64) for p in places]), [*places, *values], []
        else:
            parted, left, kept = self.masked(own)
            gathered, dense = [], parted
        rows = [tensor for pair in own.rows for tensor in pair]
        handed = tf.stack([payload([*dense, *own.whole]), payload([*gathered, *rows])])
        return Outcome(parted, own.whole, own.rows, own.notes[None], [left], kept, handed)

    def selected(self, own: Own):
        """Of one worker, per gradient that is sent in part: indices, values, and (velocity, residual) that stay."""
        places, values, left = [], [], []
        for velocity, residual, tops, limit in own.parted:
            where, sent, error = select(residual, limit, self.recipe.values, tops)
            places.append(where)
            values.append(sent)
            velocity = clear(velocity, where) if self.clears_velocity else velocity
            left.append((velocity, clear(residual, where, error)))
        return places, values, left

    def masked(self, own: Own):
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
        layout = Layout(self.recipe.values, self.recipe.indices, notes, whole, tuple(self.widths))
        messages = [pack(content, layout) for content in contents]
        every = self.exchange.allgather(messages, "dgc_lab.messages")
        return unpack(every, layout, self.exchange.size), payload(messages)

    def _reduce(self, groups):
        """Sums over all workers, and the bytes handed over here."""
        return self.exchange.allreduce_group(groups, "dgc_lab.whole"), tf.add_n([payload(group) for group in groups])


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
