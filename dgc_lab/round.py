"""One step's exchange: what each worker sends of each gradient, and the update that comes back.

Called by `dgc_lab.compressor.Compressor`, which keeps the state from step to step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dgc_lab.compression import all_finite, keep_mask, thresholds
from dgc_lab.dgc import clear, correct_momentum, select
from dgc_lab.exchange import payload

NOTHING = np.int64(0)


class Report(NamedTuple):
    """What one step handed to the collectives; mean over the workers in this process, so per rank under Horovod.

    Attributes:
        allreduce_bytes: int64 scalar, payload of what was sent whole.
        allgather_bytes: int64 scalar, payload of values and indices (and 4 bytes that tell NaN to all workers).
        kept: int64 (variables,), elements that were sent of each gradient.
    """

    allreduce_bytes: tf.Tensor
    allgather_bytes: tf.Tensor
    kept: tf.Tensor


class Round:
    """One step's exchange for a `dgc_lab.compressor.Compressor`: what is sent, and what will change.

    State is changed at the end alone, when all gradients turn out to be finite.

    Args:
        compressor: whose recipe, state and exchange it is.
        ratio: share to send, number or scalar tensor.
    """

    def __init__(self, compressor, ratio):
        self.compressor, self.recipe, self.exchange = compressor, compressor.recipe, compressor.exchange
        self.ratio = ratio
        self.changes = []  # (variable, new value)
        self.sent = {}  # variable's number: (elements kept, bytes to allreduce, bytes to allgather), all workers here
        self.corrects = self.recipe.momentum_correction and self.recipe.momentum > 0

    def compressed(self, parted, gradients) -> dict:
        """Updates of the variables whose gradients are sent in part; ``gradients`` holds theirs for each worker."""
        workers = [self._accumulated(parted, worker, own) for worker, own in enumerate(gradients)]
        updates = {}
        for place, i in enumerate(parted):
            updates[i] = self._mean(self._send(i, [worker[place] for worker in workers]))
            if not self.corrects:
                updates[i] = self._momentum_unless_outside(i, updates[i])
        return updates

    def _accumulated(self, parted, worker, gradients):
        """(velocity, residual, threshold) of a worker's tensors, with this step's gradients in them."""
        recipe, velocities, residuals = self.recipe, [], []
        for i, gradient in zip(parted, gradients, strict=True):
            velocity, addend = None, gradient
            if self.corrects:
                velocity = tf.convert_to_tensor(self.compressor.velocities[worker][i])
                velocity, addend = correct_momentum(gradient, velocity, recipe.momentum, recipe.nesterov)
            velocities.append(velocity)
            residuals.append(self.compressor.residuals[worker][i] + addend if recipe.accumulate else addend)
        seed = tf.stack([recipe.seed, tf.cast(self.compressor.step, tf.int32)])
        limits = thresholds(residuals, self.ratio, recipe.rule, recipe.scope, recipe.sample, seed)
        return list(zip(velocities, residuals, limits, strict=True))

    def _send(self, i, workers):
        """Exchange what passes the thresholds of one tensor: the sum over all workers."""
        shape = self.compressor.trained[i].shape

        def flat(x):
            return None if x is None else tf.reshape(x, [-1])

        workers = [(flat(velocity), flat(residual), limit) for velocity, residual, limit in workers]
        # An element takes 8 bytes with its index, and an allgather grows with the workers: from ratio x workers = 1 on,
        # the same elements, with zeros between them, cost no more by allreduce.
        if tf.is_tensor(self.ratio) and not self.compressor.outside:
            ways = (lambda: self._send_masked(i, workers), lambda: self._send_sparse(i, workers))
            total, left, self.sent[i] = tf.cond(self.ratio * self.exchange.size >= 1, *ways)
        elif tf.is_tensor(self.ratio) or self.ratio * self.exchange.size < 1:
            total, left, self.sent[i] = self._send_sparse(i, workers)
        else:
            total, left, self.sent[i] = self._send_masked(i, workers)
        for worker, (velocity, residual) in enumerate(left):
            if self.corrects:
                self.changes.append((self.compressor.velocities[worker][i], tf.reshape(velocity, shape)))
            if self.recipe.accumulate:
                self.changes.append((self.compressor.residuals[worker][i], tf.reshape(residual, shape)))
        return total if is_rows(total) else tf.reshape(total, shape)

    def _send_sparse(self, i, workers):
        """Values and indices by allgather: (sum, what stays with each worker, what was sent)."""
        clears_velocity = self.corrects and self.recipe.factor_masking
        indices, values, left = [], [], []
        for velocity, residual, limit in workers:
            places, sent, error = select(residual, limit, self.recipe.values)
            indices.append(places)
            values.append(sent)
            left.append((clear(velocity, places) if clears_velocity else velocity, clear(residual, places, error)))
        sent = elements(indices), NOTHING, payload(indices) + payload(values)
        if self.compressor.outside:
            return tf.IndexedSlices(values[0], indices[0], tf.shape(workers[0][1])), left, sent
        # Elements that several workers sent have several entries here; scatter_nd adds them up.
        total = tf.scatter_nd(
            self.exchange.allgather(indices, f"dgc_lab.{i}.indices")[:, None],
            tf.cast(self.exchange.allgather(values, f"dgc_lab.{i}.values"), workers[0][1].dtype),
            tf.shape(workers[0][1]),
        )
        return total, left, sent

    def _send_masked(self, i, workers):
        """The same elements by allreduce, with zeros in place of the others."""
        clears_velocity = self.corrects and self.recipe.factor_masking
        masked, left, kept = [], [], NOTHING
        for velocity, residual, limit in workers:
            mask = keep_mask(residual, limit)
            masked.append(tf.where(mask, residual, 0.0))
            left.append((tf.where(mask, 0.0, velocity) if clears_velocity else velocity, tf.where(mask, 0.0, residual)))
            kept += tf.math.count_nonzero(mask)
        total = self.exchange.allreduce(masked, f"dgc_lab.{i}.masked")
        return total, left, (kept, payload(masked), NOTHING)

    def whole(self, i, gradients):
        """Update of a variable whose gradient is always sent whole."""
        self.sent[i] = elements(gradients), payload(gradients), NOTHING
        return self._momentum_unless_outside(i, self._mean(self.exchange.allreduce(gradients, f"dgc_lab.{i}.dense")))

    def rows(self, i, gradients):
        """Update of a variable whose gradients are rows, such as an embedding's; momentum moves the sent rows only."""
        values, indices = [g.values for g in gradients], [g.indices for g in gradients]
        self.sent[i] = elements(values), NOTHING, payload(values) + payload(indices)
        every = tf.IndexedSlices(
            self.exchange.allgather(values, f"dgc_lab.{i}.values"),
            self.exchange.allgather(indices, f"dgc_lab.{i}.indices"),
            gradients[0].dense_shape,
        )
        merged = merge_rows(every)
        return tf.IndexedSlices(
            self._momentum_unless_outside(i, self._mean(merged.values), merged.indices),
            merged.indices,
            merged.dense_shape,
        )

    def finish(self, gradients, updates):
        """Check all workers' gradients, then change the state and let the updates out."""
        here = self.exchange.local
        sent = [self.sent.get(i, (NOTHING,) * 3) for i in range(len(updates))]
        kept, allreduce, allgather = zip(*sent, strict=True)
        report = Report(tf.add_n(allreduce) // here, tf.add_n(allgather) // here + 4, tf.stack(kept) // here)
        if self.compressor.outside:
            finite = []
            all_are = tf.reduce_all([all_finite(getattr(g, "values", g)) for g in gradients[0] if g is not None])
            updates = [spoiled(update, all_are) for update in updates]
        else:
            finite = self._tell_all_what_is_not_finite(gradients)
        with tf.control_dependencies(finite):
            assigned = [variable.assign(value) for variable, value in self.changes]
            assigned.append(self.compressor.step.assign_add(1))
            assigned.append(self.compressor.bytes_sent.assign_add(tf.stack(report[:2])))
        with tf.control_dependencies([] if tf.executing_eagerly() else [*finite, *assigned]):
            updates = [identity(update) for update in updates]
        return updates, report

    def _mean(self, total):
        if self.compressor.outside or self.recipe.reduction == "sum" or self.exchange.size == 1:
            return total
        return total / self.exchange.size

    def _momentum_unless_outside(self, i, update, rows=None):
        return update if self.compressor.outside else self.momentum_after(i, update, rows)

    def momentum_after(self, i, update, rows=None):
        """Momentum on what all workers have in common already, for all of a variable or for some of its rows."""
        recipe, variable = self.recipe, self.compressor.velocities[0][i]
        if not recipe.momentum:
            return update
        velocity = tf.convert_to_tensor(variable)
        if rows is None:
            new, update = correct_momentum(update, velocity, recipe.momentum, recipe.nesterov)
        else:
            part, update = correct_momentum(update, tf.gather(velocity, rows), recipe.momentum, recipe.nesterov)
            new = tf.tensor_scatter_nd_update(velocity, rows[:, None], part)
        self.changes.append((variable, new))
        return update

    def _tell_all_what_is_not_finite(self, gradients):
        """Operations that fail on all workers when a gradient of one of them is not finite."""
        worst = []
        for own in gradients:
            there = [i for i, g in enumerate(own) if g is not None]
            finite = tf.stack([all_finite(getattr(own[i], "values", own[i])) for i in there])
            number = tf.gather(tf.constant(there), tf.argmin(tf.cast(finite, tf.int32)))
            worst.append(tf.where(tf.reduce_all(finite), -1, number)[None])
        every = self.exchange.allgather(worst, "dgc_lab.finite")
        worker = tf.argmax(every)
        name = tf.gather(tf.constant(self.compressor.names), tf.maximum(every[worker], 0))
        told = tf.strings.format("gradient of {} on worker {} holds NaN or infinity", (name, worker))
        check = tf.debugging.Assert(tf.reduce_all(every < 0), [told])
        return [] if check is None else [check]  # eagerly it has raised already


def is_rows(gradient) -> bool:
    """Whether a gradient holds some rows of its variable; ``tf.is_tensor`` says True of these as well."""
    return isinstance(gradient, tf.IndexedSlices)


def merge_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient with every row named once: rows that were named several times are added up.

    Example:
        >>> rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 0, 3]), tf.constant([5, 1]))
        >>> merged = merge_rows(rows)
        >>> merged.indices.numpy().tolist(), merged.values.numpy().tolist()
        ([3, 0], [[5.0], [2.0]])
    """
    indices, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def spoiled(update, finite):
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
