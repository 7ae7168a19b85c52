"""One step: what each worker has to send of each gradient, and the update that comes of what all have sent.

Called by `dgc_lab.dgc.compressor.Compressor`, which keeps the state from step to step; `dgc_lab.dgc.exchange` does the sending.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dgc_lab.dgc.algorithm import correct_momentum
from dgc_lab.dgc.exchange import GradientExchange, WorkerPayload
from dgc_lab.dgc.selection import block_maxima
from dgc_lab.dgc.thresholding import thresholds


class Report(NamedTuple):
    """What one step handed to the collectives; mean over the workers in this process, so per rank under Horovod.

    Attributes:
        allreduce_bytes: int64 scalar, what was handed to allreduce.
        allgather_bytes: int64 scalar, what was handed to allgather.
        kept: int64 (variables,), elements that were sent of each gradient.
        told: float32 (workers, numbers), what each worker told all others.
    """

    allreduce_bytes: tf.Tensor
    allgather_bytes: tf.Tensor
    kept: tf.Tensor
    told: tf.Tensor


class CompressionStep:
    """One step's exchange for a `dgc_lab.dgc.compressor.Compressor`: what is sent, and what will change.

    State is changed at the end alone, when all gradients turn out to be finite.

    Args:
        compressor: whose config, state and exchange it is.
        ratio: share to send, number or scalar tensor.
        kinds: numbers of the variables whose gradients are sent in part, whole, and by rows.
        rate: learning rate, to take updates off their variables here, where that spares making them; None for no.
    """

    def __init__(self, compressor, ratio=None, kinds=((), (), ()), rate=None):
        self.compressor, self.config, self.communicator = compressor, compressor.config, compressor.communicator
        self.ratio = ratio
        self.parted, self.whole, self.rows = kinds
        self.changes = []  # (variable, new value)
        self.corrects = self.config.momentum_correction and self.config.momentum > 0
        shapes = [variable.shape for variable in compressor.trained]
        # Momentum after the exchange wants the update itself.
        self.applies = rate is not None and (self.corrects or not self.config.momentum)
        self.applies &= all(compressor.trained[i].dtype == tf.float32 for i in self.parted)
        flat = [tf.reshape(compressor.trained[i], [-1]) for i in self.parted] if self.applies else None
        self.ways = GradientExchange(
            self.config,
            self.communicator,
            sizes=[shapes[i].num_elements() for i in self.parted],
            shapes=[shapes[i] for i in self.whole],
            widths=[shapes[i][1:].num_elements() for i in self.rows],
            clears_velocity=self.corrects and self.config.factor_masking,
            weights=flat,
            rate=rate,
        )

    def run(self, gradients, told, unclipped):
        """Updates and report of the step: gradients, what it tells all others, and unclipped ones, for each worker."""
        outside, first = self.compressor.outside, gradients[0]
        every = [self._own(worker, *own) for worker, own in enumerate(zip(gradients, told, unclipped, strict=True))]
        outcome = self.ways.by_others(every[0], self.ratio) if outside else self.ways.send(every, self.ratio)
        updates, kept = [None] * len(first), [np.int64(0)] * len(first)
        for place, i in enumerate(self.parted):
            updates[i] = outcome.parted[place] if outside else self._shaped(i, outcome.parted[place])
            if self.applies:
                self.changes.append((self.compressor.trained[i], updates[i]))
                updates[i] = None
            elif not outside and not self.corrects:
                updates[i] = self.momentum_after(i, updates[i])
            kept[i] = outcome.kept[place]
            self._keep(i, [left[place] for left in outcome.left])
        for i, total in zip(self.whole, outcome.whole, strict=True):
            updates[i] = total if outside else self.momentum_after(i, self._mean(i, total))
            kept[i] = elements([own[i] for own in gradients])
        for i, (values, numbers) in zip(self.rows, outcome.rows, strict=True):
            values = tf.reshape(values, [-1, *self.compressor.trained[i].shape[1:]])
            rows = tf.IndexedSlices(values, tf.cast(numbers, first[i].indices.dtype), first[i].dense_shape)
            updates[i] = rows if outside else self._row_update(i, sum_duplicate_rows(rows))
            kept[i] = elements([own[i].values for own in gradients])
        bad, handed = outcome.notes[:, 0], outcome.handed // self.communicator.local
        report = Report(handed[0], handed[1], tf.stack(kept) // self.communicator.local, outcome.notes[:, 1:])
        if outside:  # what exchanges them must tell all workers
            return self._finish([poison_with_nan(update, bad[0] < 0) for update in updates], report, [])
        return self._finish(updates, report, self._fail_if_bad(bad))

    def _own(self, worker, gradients, told, unclipped) -> WorkerPayload:
        """What a worker has to send; its first note is the number of a variable whose gradient is not finite, or -1."""
        parted = self._accumulated(worker, gradients)
        # What is not finite makes its block's peak, and any sum with it, not finite either.
        witnesses = [maxima for _, _, maxima, _ in parted]
        witnesses += [getattr(gradients[i], "values", gradients[i]) for i in (*self.whole, *self.rows)]
        bad = first_non_finite(unclipped, witnesses, gradients)
        whole = [tf.cast(gradients[i], tf.float32) for i in self.whole]
        rows = []
        for i, width in zip(self.rows, self.ways.widths, strict=True):
            values = tf.reshape(tf.cast(gradients[i].values, tf.float32), [-1, width])
            rows.append((values, tf.cast(gradients[i].indices, tf.int32)))
        return WorkerPayload(parted, whole, rows, tf.concat([bad[None], told], 0))

    def _accumulated(self, worker, gradients):
        """(velocity, residual, its block_maxima, threshold), flat, of what a worker sends in part, this step in them."""
        config, velocities, residuals, maxima = self.config, [], [], []
        for i in self.parted:
            velocity, addend = None, gradients[i]
            if self.corrects:
                velocity = tf.convert_to_tensor(self.compressor.velocities[worker][i])
                velocity, addend = correct_momentum(addend, velocity, config.momentum, config.nesterov)
            velocities.append(velocity)
            residuals.append(self.compressor.residuals[worker][i] + addend if config.accumulate else addend)
            maxima.append(block_maxima(tf.reshape(residuals[-1], [-1])))
        seed = tf.stack([config.seed, tf.cast(self.compressor.step, tf.int32)])
        limits = thresholds(residuals, self.ratio, config.rule, config.scope, config.sample, seed)
        flat = [[None if x is None else tf.reshape(x, [-1]) for x in tensors] for tensors in (velocities, residuals)]
        return list(zip(*flat, maxima, limits, strict=True))

    def _keep(self, i, left):
        """What stays with each worker here of one variable, as its state after this step."""
        compressor = self.compressor
        for worker, (velocity, residual) in enumerate(left):
            if self.corrects:
                own = compressor.velocities[worker][i]
                self.changes.append((own, tf.reshape(velocity, own.shape)))
            if self.config.accumulate:
                own = compressor.residuals[worker][i]
                self.changes.append((own, tf.reshape(residual, own.shape)))

    def _mean(self, i, total):
        """The update from a sum over all workers."""
        return self._shaped(i, self.ways.mean(total))

    def _shaped(self, i, total):
        """A combined gradient in the variable's shape and type; as rows, where it is of rows."""
        variable = self.compressor.trained[i]
        shape = [-1, *variable.shape[1:]] if i in self.rows else variable.shape
        return tf.cast(tf.reshape(total, shape), variable.dtype)

    def _row_update(self, i, rows):
        values = self.momentum_after(i, self._mean(i, rows.values), rows.indices)
        return tf.IndexedSlices(values, rows.indices, rows.dense_shape)

    def momentum_after(self, i, update, rows=None):
        """Momentum on what all workers have in common already, for all of a variable or for some of its rows."""
        config, variable = self.config, self.compressor.velocities[0][i]
        if not config.momentum:
            return update
        velocity = tf.convert_to_tensor(variable)
        if rows is None:
            new, update = correct_momentum(update, velocity, config.momentum, config.nesterov)
        else:
            part, update = correct_momentum(update, tf.gather(velocity, rows), config.momentum, config.nesterov)
            new = tf.tensor_scatter_nd_update(velocity, rows[:, None], part)
        self.changes.append((variable, new))
        return update

    def _fail_if_bad(self, bad):
        """Operations that fail on all workers when one of them has a gradient that is not finite."""
        worker = tf.argmax(bad)
        name = tf.gather(tf.constant(self.compressor.names), tf.maximum(tf.cast(bad[worker], tf.int32), 0))
        told = tf.strings.format("gradient of {} on worker {} holds NaN or infinity", (name, worker))
        check = tf.debugging.Assert(tf.reduce_all(bad < 0), [told])
        return [] if check is None else [check]  # eagerly it has raised already

    def _finish(self, updates, report, checks):
        """Change the state and let the updates out, after the checks."""
        with tf.control_dependencies(checks):
            assigned = [variable.assign(value) for variable, value in self.changes]
            assigned.append(self.compressor.step.assign_add(1))
            assigned.append(self.compressor.bytes_sent.assign_add(tf.stack(report[:2])))
            assigned.append(self.compressor.kept.assign_add(report.kept))
            assigned.append(self.compressor.counted.assign_add(1))
        with tf.control_dependencies([] if tf.executing_eagerly() else [*checks, *assigned]):
            return [identity(update) for update in updates], report


def first_non_finite(gradients, witnesses, clipped=None):
    """The number of the first gradient that holds NaN or infinity, or -1.

    Args:
        gradients: list of tensors, ``tf.IndexedSlices`` and None.
        witnesses: tensors of which one holds NaN or infinity if one of the gradients does, cheaper to add up.
        clipped: the gradients after clipping, None if they are not clipped. A finite gradient whose norm overflows is
            NaN there, and counts as bad.

    Returns:
        float32 scalar tensor.

    Example:
        >>> gradients = [tf.constant([1.0]), None, tf.constant([1.0, float("inf")])]
        >>> float(first_non_finite(gradients, [gradients[0], gradients[2]]))
        2.0
    """
    there = [i for i, gradient in enumerate(gradients) if gradient is not None]

    def finite(every):
        tensors = [getattr(every[i], "values", every[i]) for i in there]
        return tf.stack([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])

    def search():
        # Clipping spreads NaN over all gradients: the first bad one is looked for before it.
        number = tf.gather(tf.constant(there, tf.float32), tf.argmin(tf.cast(finite(gradients), tf.int32)))
        fine = tf.reduce_all(finite(gradients if clipped is None else clipped))  # finite addends can overflow a sum
        return tf.where(fine, -1.0, number)

    sums = tf.stack([tf.cast(tf.reduce_sum(witness), tf.float32) for witness in witnesses])
    return tf.cond(tf.reduce_all(tf.math.is_finite(sums)), lambda: tf.constant(-1.0), search)


def is_rows(gradient) -> bool:
    """Whether a gradient holds some rows of its variable; ``tf.is_tensor`` says True of these as well."""
    return isinstance(gradient, tf.IndexedSlices)


def sum_duplicate_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient with every row named once: rows that were named several times are added up.

    Example:
        >>> rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 0, 3]), tf.constant([5, 1]))
        >>> merged = sum_duplicate_rows(rows)
        >>> merged.indices.numpy().tolist(), merged.values.numpy().tolist()
        ([3, 0], [[5.0], [2.0]])
    """
    indices, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def poison_with_nan(update, finite):
    """The update; NaN in place of it unless all gradients are finite, for an exchange outside to tell all workers."""
    if update is None:
        return None
    if not is_rows(update):
        return tf.where(finite, update, np.nan)
    # NaN passes no threshold: where nothing was selected, the first element must carry it.
    first = tf.fill(tf.concat([[1], tf.shape(update.values)[1:]], axis=0), tf.constant(np.nan, update.values.dtype))
    values, indices = tf.cond(
        finite, lambda: (update.values, update.indices), lambda: (first, tf.zeros([1], update.indices.dtype))
    )
    return tf.IndexedSlices(values, indices, update.dense_shape)


def identity(update):
    """The same update (tensor, rows or None) as a new node, which waits for the control dependencies around it."""
    if is_rows(update):
        return tf.IndexedSlices(tf.identity(update.values), update.indices, update.dense_shape)
    return update if update is None else tf.identity(update)


def elements(tensors):
    """Number of elements in a list of tensors, int64 scalar."""
    return tf.add_n([tf.size(tensor, tf.int64) for tensor in tensors])
