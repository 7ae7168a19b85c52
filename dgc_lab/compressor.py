"""From the workers' gradients to one update: compress, exchange, and keep each worker's state.

`Compressor` joins the pure functions of `dgc_lab.dgc` with an exchange (`dgc_lab.exchange`). The lab's training loop,
the compat.v1 optimizer and the Keras optimizer all train through it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dgc_lab.compression import all_finite, thresholds
from dgc_lab.dgc import Recipe, clear, clip_locally, correct_momentum, select

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


class Compressor(tf.Module):
    """Turns each worker's gradients into the update that all workers apply; plain SGD applies it.

    Args:
        recipe: the switches (`dgc_lab.dgc.Recipe`).
        variables: the trained variables (``tf.Variable``), for names, shapes and weight decay.
        exchange: who takes part (`dgc_lab.exchange`).
        names: names of the variables for messages; their own if None.

    Attributes:
        velocities, residuals: for each worker in this process, one ``tf.Variable`` of its shape per trained variable,
            or None where the recipe needs none.
        step: int64 ``tf.Variable``, the number of updates so far.

    Example:
        >>> from dgc_lab.exchange import OneWorker
        >>> weight = tf.Variable([[1.0, 2.0]])
        >>> compressor = Compressor(Recipe(ratio=0.5, momentum=0.0, dense_below=0), [weight], OneWorker())
        >>> [update], report = compressor([[tf.constant([[0.25, -0.5]])]])
        >>> update.numpy().tolist(), compressor.residuals[0][0].numpy().tolist()
        ([[0.0, -0.5]], [[0.25, 0.0]])
        >>> report.kept.numpy().tolist()
        [1]
    """

    def __init__(self, recipe: Recipe, variables, exchange, names=None):
        super().__init__(name="compressor")
        self.recipe, self.exchange, self.trained = recipe, exchange, list(variables)
        self.names = list(names or [variable.name.split(":")[0] for variable in self.trained])
        self.dense = [recipe.is_dense(variable.shape) for variable in self.trained]
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        workers = range(exchange.local)
        has_velocity = [recipe.momentum > 0] * len(self.trained)
        has_residual = [recipe.accumulate and not dense for dense in self.dense]
        self.velocities = [self._zeros("velocity", has_velocity) for _ in workers]
        self.residuals = [self._zeros("residual", has_residual) for _ in workers]
        self._agreed = False

    def _zeros(self, name, wanted):
        return [
            tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False, name=name) if wanted else None
            for variable, wanted in zip(self.trained, wanted, strict=True)
        ]

    @property
    def state(self) -> list[tf.Variable]:
        """Everything that a resumed run needs beside the weights: step, velocities and residuals."""
        return [self.step, *(v for v in tf.nest.flatten([self.velocities, self.residuals]) if v is not None)]

    def reset(self) -> None:
        """As before the first step."""
        for variable in self.state:
            variable.assign(tf.zeros_like(variable))

    def __call__(self, gradients, ratio=None):
        """One step: compress, exchange, and the update for plain SGD.

        Args:
            gradients: for each worker in this process, one gradient per variable: a tensor, ``tf.IndexedSlices``
                (exchanged row by row, duplicates merged, never dense) or None (on all workers).
            ratio: share to send in place of the recipe's ratio and warm-up, number or scalar tensor; the same on
                all workers.

        Returns:
            ``(updates, report)``: one update per variable (None where the gradient was None), to be multiplied by
            the learning rate and subtracted, and a `Report`.

        Raises:
            RanksDisagree: at the first call, on all ranks: they differ in recipe, variables, their order, or in which
                of them have gradients.
            tf.errors.InvalidArgumentError: a gradient of some worker holds NaN or infinity; on all workers, with
                the number of the worker and the name of the variable. No state has been changed by then.
        """
        self._agree(gradients[0])
        step = _Step(self, self._ratio() if ratio is None else ratio)
        gradients = [self._merged_decayed_clipped(worker) for worker in gradients]
        parted = [i for i, g in enumerate(gradients[0]) if tf.is_tensor(g) and not self.dense[i]]
        updates = step.compressed(parted, [[worker[i] for i in parted] for worker in gradients])
        for i, gradient in enumerate(gradients[0]):
            every = [worker[i] for worker in gradients]
            if isinstance(gradient, tf.IndexedSlices):
                updates[i] = step.rows(i, every)
            elif gradient is not None and i not in updates:
                updates[i] = step.whole(i, every)
        return step.finish(gradients, [updates.get(i) for i in range(len(self.trained))])

    def _agree(self, gradients):
        """Once, before anything is exchanged: ranks that differ would otherwise wait for each other for ever."""
        if not self._agreed:
            kinds = ["none" if g is None else type(g).__name__.replace("Symbolic", "Eager") for g in gradients]
            shapes = [tuple(variable.shape) for variable in self.trained]
            self.exchange.agree(f"{self.recipe}, variables {list(zip(self.names, shapes, kinds, strict=True))}")
            self._agreed = True

    def _ratio(self):
        """The ratio of the coming step: a number, or by the recipe's warm-up a float64 scalar tensor."""
        recipe = self.recipe
        if not recipe.warm_up:
            return recipe.ratio
        stage = tf.minimum(self.step // recipe.warm_up_steps, len(recipe.warm_up))
        return tf.gather(tf.constant([*recipe.warm_up, recipe.ratio], tf.float64), stage)

    def _merged_decayed_clipped(self, gradients):
        """A worker's gradients with rows merged, weights decayed, and clipped to its share of the global norm."""
        recipe, size = self.recipe, self.exchange.size
        gradients = [merge_rows(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        if recipe.weight_decay:
            # A gradient that holds 1 / workers gets its share of the decay, for the exchange adds up the shares.
            decay = recipe.weight_decay / (1 if recipe.reduction == "average" else size)
            pairs = zip(gradients, self.trained, strict=True)
            gradients = [g + decay * tf.convert_to_tensor(w) if tf.is_tensor(g) else g for g, w in pairs]
        if recipe.clip_norm is not None:
            there = [g for g in gradients if g is not None]
            clipped = iter(clip_locally(there, recipe.clip_norm, size, recipe.reduction))
            gradients = [None if g is None else next(clipped) for g in gradients]
        return gradients


class _Step:
    """One call of a Compressor: what it will change, applied at the end when all gradients turn out to be finite."""

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
                updates[i] = self._momentum_after(i, updates[i])
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
        # Without indices a whole tensor takes half the bytes, and an allreduce does not grow with the workers.
        if tf.is_tensor(self.ratio):
            ways = (lambda: self._send_whole(i, workers), lambda: self._send_sparse(i, workers))
            total, left, self.sent[i] = tf.cond(self.ratio >= 1, *ways)
        else:
            total, left, self.sent[i] = (self._send_whole if self.ratio >= 1 else self._send_sparse)(i, workers)
        for worker, (velocity, residual) in enumerate(left):
            if self.corrects:
                self.changes.append((self.compressor.velocities[worker][i], tf.reshape(velocity, shape)))
            if self.recipe.accumulate:
                self.changes.append((self.compressor.residuals[worker][i], tf.reshape(residual, shape)))
        return tf.reshape(total, shape)

    def _send_sparse(self, i, workers):
        """Values and indices by allgather: (sum, what stays with each worker, what was sent)."""
        clears_velocity = self.corrects and self.recipe.factor_masking
        indices, values, left = [], [], []
        for velocity, residual, limit in workers:
            places, sent, error = select(residual, limit, self.recipe.values)
            indices.append(places)
            values.append(sent)
            left.append((clear(velocity, places) if clears_velocity else velocity, clear(residual, places, error)))
        # Elements that several workers sent have several entries here; scatter_nd adds them up.
        total = tf.scatter_nd(
            self.exchange.allgather(indices, f"dgc_lab.{i}.indices")[:, None],
            tf.cast(self.exchange.allgather(values, f"dgc_lab.{i}.values"), workers[0][1].dtype),
            tf.shape(workers[0][1]),
        )
        return total, left, (elements(indices), NOTHING, payload(indices) + payload(values))

    def _send_whole(self, i, workers):
        """The same at ratio 1, by allreduce."""
        clears_velocity = self.corrects and self.recipe.factor_masking
        left = [
            (tf.zeros_like(velocity) if clears_velocity else velocity, tf.zeros_like(residual))
            for velocity, residual, _ in workers
        ]
        residuals = [residual for _, residual, _ in workers]
        total = self.exchange.allreduce(residuals, f"dgc_lab.{i}.whole")
        return total, left, (elements(residuals), payload(residuals), NOTHING)

    def whole(self, i, gradients):
        """Update of a variable whose gradient is always sent whole."""
        self.sent[i] = elements(gradients), payload(gradients), NOTHING
        return self._momentum_after(i, self._mean(self.exchange.allreduce(gradients, f"dgc_lab.{i}.dense")))

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
            self._momentum_after(i, self._mean(merged.values), merged.indices), merged.indices, merged.dense_shape
        )

    def finish(self, gradients, updates):
        """Check all workers' gradients, then change the state and let the updates out."""
        finite = self._tell_all_what_is_not_finite(gradients)
        with tf.control_dependencies(finite):
            assigned = [variable.assign(value) for variable, value in self.changes]
            assigned.append(self.compressor.step.assign_add(1))
        with tf.control_dependencies([] if tf.executing_eagerly() else [*finite, *assigned]):
            updates = [identity(update) for update in updates]
        sent = [self.sent.get(i, (NOTHING,) * 3) for i in range(len(updates))]
        kept, allreduce, allgather = zip(*sent, strict=True)
        here = self.exchange.local
        return updates, Report(tf.add_n(allreduce) // here, tf.add_n(allgather) // here + 4, tf.stack(kept) // here)

    def _mean(self, total):
        return total / self.exchange.size if self.recipe.reduction == "average" else total

    def _momentum_after(self, i, update, rows=None):
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


def identity(update):
    """The same update (tensor, rows or None) as a new node, which waits for the control dependencies around it."""
    if isinstance(update, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(update.values), update.indices, update.dense_shape)
    return update if update is None else tf.identity(update)


def elements(tensors):
    """Number of elements in a list of tensors, int64 scalar."""
    return tf.add_n([tf.size(tensor, tf.int64) for tensor in tensors])


def payload(tensors):
    """Bytes of a list of tensors, int64 scalar."""
    return tf.add_n([tf.size(tensor, tf.int64) * tensor.dtype.size for tensor in tensors])
