"""One step's messages between all workers: values and indices by allgather, or all elements by allreduce.

Either way takes one collective for all tensors. By allgather it takes a second one where dense tensors are long and the
workers are many, by allreduce where there are rows. Nothing here knows a weight, a learning rate or what a worker
keeps: what `dgc_lab.dgc.algorithm` has taken goes in, and the mean over all workers comes out, the division done here
alone.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import tensorflow as tf

from dgc_lab.dgc.algorithm import Selection
from dgc_lab.dgc.break_even import break_even_ratio, one_message_is_shorter
from dgc_lab.dgc.config import DGCConfig
from dgc_lab.dgc.wire_format import (
    Content,
    Layout,
    add_in_order,
    flatten,
    global_indices,
    nbytes,
    pack,
    unflatten,
    unpack,
)


class Kinds(NamedTuple):
    """Numbers of the variables whose gradients are sent in part, whole, and as the rows that were used (embeddings)."""

    sparse: list[int]
    dense: list[int]
    rows: list[int]


class WorkerPayload(NamedTuple):
    """What one worker sends: of the sparse tensors, what `local_step` took; the dense ones whole, float32.

    Of each gradient of rows the values, float32 (r, width), and row numbers, int32 (r,); metadata is float32.
    """

    selection: Selection
    dense: list
    rows: list
    metadata: tf.Tensor


class ExchangeResult(NamedTuple):
    """What all workers have in common afterwards; of the first two fields one is empty.

    ``entries`` of each worker: int32 indices (k,), sparse tensors numbered through, and values (k,), each entry's part
    in the mean. ``masked`` are flat means of sparse tensors. Each gradient of rows has
    means (r, width) and int32 row numbers (r,), each row once. ``metadata`` is (workers, numbers). ``handed``, int64
    (2,): bytes that the workers here handed to allreduce and to allgather. Where no type is named, it is float32.
    """

    entries: list
    masked: list
    dense: list
    rows: list
    metadata: tf.Tensor
    handed: tf.Tensor


class Report(NamedTuple):
    """What one step handed to the collectives; mean over the workers in this process, so per rank under Horovod.

    Attributes:
        allreduce_bytes: int64 scalar, what was handed to allreduce.
        allgather_bytes: int64 scalar, what was handed to allgather.
        kept: float64 (variables,), elements that were sent of each gradient.
        metadata: float32 (workers, numbers), what each worker told all others.
    """

    allreduce_bytes: tf.Tensor
    allgather_bytes: tf.Tensor
    kept: tf.Tensor
    metadata: tf.Tensor


class GradientExchange:
    """The exchange of gradients of all variables' shapes, the same in every step, with ``numbers`` of metadata each."""

    def __init__(self, config: DGCConfig, communicator, shapes, kinds: Kinds, numbers: int):
        self.communicator, self.kinds, self.numbers = communicator, kinds, numbers
        self.sizes = [shapes[i].num_elements() for i in kinds.sparse]
        self.shapes = [shapes[i] for i in kinds.dense]
        self.widths = [shapes[i][1:].num_elements() for i in kinds.rows]
        self.divisor = communicator.size if config.reduction == "average" else 1
        whole = sum(shape.num_elements() for shape in self.shapes)
        # Whether dense tensors go with the sparse ones.
        self.joins = bool(self.shapes) and one_message_is_shorter(4 * whole, communicator.size)
        layout = functools.partial(Layout, config.values, config.indices, numbers, rows=tuple(self.widths))
        self.layout, self.rows_layout = layout(whole if self.joins else 0), layout(0)
        self.break_even = break_even_ratio(communicator.size, self.layout.entry_bytes)
        self.switches = config.switch_to_dense

    def prefers_allreduce(self, ratio):
        """Whether sparse tensors had better travel with their zeros at this ratio; bool, or tensor for a tensor."""
        return (self.switches and ratio >= self.break_even) if self.sizes else True

    def send(self, payloads: list[WorkerPayload], by_allreduce) -> ExchangeResult:
        """Exchange what the workers in this process send; ``by_allreduce`` as their selections were made."""
        ways = (lambda: self._allreduce(payloads), lambda: self._allgather(payloads))
        return tf.cond(by_allreduce, *ways) if tf.is_tensor(by_allreduce) else ways[0 if by_allreduce else 1]()

    def _allgather(self, payloads):
        contents = []
        for own in payloads:
            dense = flatten(own.dense) if self.joins else tf.zeros([0])
            indices = global_indices(own.selection.indices, self.sizes)
            contents.append(Content(own.metadata, dense, own.rows, indices, tf.concat(own.selection.values, 0)))
        contents, allgathered = self._gather(contents, self.layout)
        # The mean here, and not when they stand among zeros: a division less for every element that nobody sent.
        entries = [(content.indices, self._mean(tf.cast(content.values, tf.float32))) for content in contents]
        dense, allreduced = [], tf.constant(0, tf.int64)
        if self.joins:
            dense = unflatten(self._mean(add_in_order([content.dense for content in contents])), self.shapes)
        elif self.shapes:
            dense, allreduced = self._reduce([own.dense for own in payloads])
        metadata = tf.stack([content.metadata for content in contents])
        masked = [tf.zeros([0])] * len(self.sizes)
        handed = tf.stack([allreduced, allgathered])
        return ExchangeResult(entries, masked, dense, self._rows(contents), metadata, handed)

    def _allreduce(self, payloads):
        """What is sent in its place, with zeros for the rest; only rows need a message."""
        has_rows, groups = bool(self.widths), []
        for worker, own in enumerate(payloads, self.communicator.first):
            table = [] if has_rows else [row_in_table(own.metadata, worker, self.communicator.size)]
            groups.append([*own.selection.masked, *own.dense, *table])
        nothing = tf.zeros([0], tf.int32), tf.zeros([0], self.layout.values)
        rows, allgathered = [], tf.constant(0, tf.int64)
        if has_rows:
            contents = [Content(own.metadata, tf.zeros([0]), own.rows, *nothing) for own in payloads]
            contents, allgathered = self._gather(contents, self.rows_layout)
            rows, metadata = self._rows(contents), tf.stack([content.metadata for content in contents])
        means, allreduced = self._reduce(groups, summed=0 if has_rows else 1)
        if not has_rows:
            *means, metadata = means
        masked, dense = means[: len(self.sizes)], means[len(self.sizes) :]
        handed = tf.stack([allreduced, allgathered])
        entries = [(nothing[0], tf.zeros([0]))] * self.communicator.size
        return ExchangeResult(entries, masked, dense, rows, metadata, handed)

    def _mean(self, total):
        """What a sum over all workers comes to, by the config's reduction: the one place where it is divided."""
        return total if self.divisor == 1 else total / self.divisor

    def _gather(self, contents, layout):
        """Everybody's contents, and the bytes handed over here."""
        messages = [pack(content, layout) for content in contents]
        every = self.communicator.allgather(messages, "dgc_lab.messages")
        handed = tf.add_n([tf.size(message, tf.int64) for message in messages])
        return unpack(every, layout, self.communicator.size), handed

    def _reduce(self, groups, summed: int = 0):
        """Means over all workers (of the last ``summed`` tensors, the sums), and the bytes handed over here."""
        if not groups[0]:
            return [], tf.constant(0, tf.int64)
        sums = self.communicator.allreduce(groups, "dgc_lab.whole")
        means = len(sums) - summed
        return [*map(self._mean, sums[:means]), *sums[means:]], nbytes([tensor for group in groups for tensor in group])

    def _rows(self, contents):
        """Of each gradient of rows the mean, from the messages of all, a worker at a time as in `scatter_add`."""
        means = []
        for width, parts in zip(self.widths, zip(*(content.rows for content in contents), strict=True), strict=True):
            numbers, places = tf.unique(tf.concat([own for _, own in parts], 0))
            total = tf.zeros([tf.size(numbers), width])
            for (values, _), own in zip(parts, tf.split(places, [tf.size(own) for _, own in parts]), strict=True):
                total = tf.tensor_scatter_nd_add(total, own[:, None], values)
            means.append((self._mean(total), numbers))
        return means


def row_in_table(metadata, worker: int, workers: int):
    """A worker's metadata as its row of a table of all workers', zeros elsewhere: the sum of these is the table."""
    return tf.pad(metadata[None], [[worker, workers - worker - 1], [0, 0]])


def check_finite(gradient, name):
    """The gradient as it is; an InvalidArgumentError names its variable when it holds NaN or infinity."""
    # A sum is finite only if every addend is, and costs a tenth of looking at each; finite addends can overflow it.
    return tf.cond(
        tf.math.is_finite(tf.reduce_sum(gradient)),
        lambda: gradient,
        lambda: tf.debugging.check_numerics(gradient, f"gradient of {name}"),
    )


def first_non_finite(gradients, clipped, witnesses: dict):
    """The number of the first gradient that holds NaN or infinity, or -1; float32 scalar tensor.

    A gradient that is finite counts as bad, too, where it is not after clipping (its norm overflows), or where its
    witness is not: what came of it, by the gradient's number. A witness is also cheap to add up, and is looked at alone
    while all are finite: it holds NaN or infinity if the gradient does.
    """
    there = {i: gradient for i, gradient in enumerate(gradients) if gradient is not None}
    # Clipping spreads NaN over all gradients: the first bad one is looked for before it.
    looked_at = (there, {i: clipped[i] for i in there}, witnesses)

    def search():  # finite addends can overflow a sum
        values = [getattr(tensor, "values", tensor) for every in looked_at for tensor in every.values()]
        finite = tf.stack([tf.reduce_all(tf.math.is_finite(value)) for value in values])
        numbers = tf.constant([i for every in looked_at for i in every], tf.float32)
        return tf.where(tf.reduce_all(finite), -1.0, tf.gather(numbers, tf.argmin(tf.cast(finite, tf.int32))))

    sums = tf.stack([tf.cast(tf.reduce_sum(witness), tf.float32) for witness in witnesses.values()])
    return tf.cond(tf.reduce_all(tf.math.is_finite(sums)), lambda: tf.constant(-1.0), search)


def fail_if_bad(bad, names) -> list:
    """Operations that fail on all workers if ``bad``, what `first_non_finite` said on each, names a gradient."""
    worker = tf.argmax(bad)
    name = tf.gather(tf.constant(list(names)), tf.maximum(tf.cast(bad[worker], tf.int32), 0))
    told = tf.strings.format("gradient of {} on worker {} holds NaN or infinity, or is too large", (name, worker))
    check = tf.debugging.Assert(tf.reduce_all(bad < 0), [told])
    return [] if check is None else [check]  # eagerly it has raised already
