"""From the workers' gradients to one update: compress, exchange, and keep each worker's state.

`Compressor` joins the pure functions of `dgc_lab.dgc` with an exchange (`dgc_lab.exchange`). The lab's training loop,
the compat.v1 optimizer and the Keras optimizer all train through it.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from dgc_lab.compression import all_finite, thresholds
from dgc_lab.dgc import Recipe, clear, clip_locally, correct_momentum, select


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
        velocities, residuals: for each worker in this process, one float32 ``tf.Variable`` per trained variable.
        step: int64 ``tf.Variable``, the number of updates so far.

    Raises:
        RanksDisagree: another rank has another recipe, other variables or another order of them.

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
        shapes = [tuple(variable.shape) for variable in self.trained]
        exchange.agree(f"{recipe}, variables {list(zip(self.names, shapes, strict=True))}")
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.velocities = [self._zeros("velocity") for _ in range(exchange.local)]
        self.residuals = [self._zeros("residual") for _ in range(exchange.local)]

    def _zeros(self, name):
        return [tf.Variable(tf.zeros(variable.shape), trainable=False, name=name) for variable in self.trained]

    @property
    def state(self) -> list[tf.Variable]:
        """Everything that a resumed run needs beside the weights: step, velocities and residuals."""
        return [self.step, *tf.nest.flatten([self.velocities, self.residuals])]

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
            tf.errors.InvalidArgumentError: a gradient of some worker holds NaN or infinity; on all workers, with
                the number of the worker and the name of the variable. No state has been changed by then.
        """
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

    def _ratio(self):
        """The ratio of the coming step: a number, or by the recipe's warm-up a float64 scalar tensor."""
        recipe = self.recipe
        if not recipe.warm_up:
            return recipe.ratio
        stage = tf.minimum(self.step // recipe.warm_up_steps, len(recipe.warm_up))
        return tf.gather(tf.constant([*recipe.warm_up, recipe.ratio], tf.float64), stage)

    def _merged_decayed_clipped(self, gradients):
        """A worker's gradients with rows merged, weights decayed, and clipped to its share of the global norm."""
        recipe = self.recipe
        gradients = [merge_rows(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        if recipe.weight_decay:
            # A gradient that holds 1 / workers gets its share of the decay, for the exchange adds up the shares.
            decay = recipe.weight_decay / (1 if recipe.reduction == "average" else self.exchange.size)
            pairs = zip(gradients, self.trained, strict=True)
            gradients = [g + decay * tf.convert_to_tensor(w) if tf.is_tensor(g) else g for g, w in pairs]
        if recipe.clip_norm is not None:
            there = [g for g in gradients if g is not None]
            clipped = iter(clip_locally(there, recipe.clip_norm, self.exchange.size, recipe.reduction))
            gradients = [None if g is None else next(clipped) for g in gradients]
        return gradients


class _Step:
    """One call of a Compressor: what it will change, applied at the end when all gradients turn out to be finite."""

    def __init__(self, compressor, ratio):
        self.compressor, self.recipe, self.exchange = compressor, compressor.recipe, compressor.exchange
        self.ratio = ratio
        self.changes = []  # (variable, new value)
        self.sent = {}  # variable's number: (elements kept, bytes to allreduce, bytes to allgather), all workers here

    def compressed(self, parted, gradients) -> dict:
        """Updates of the variables whose gradients are sent in part; ``gradients`` holds theirs for each worker."""
        recipe, states = self.recipe, []
        for worker, own in enumerate(gradients):
            velocities, residuals = [], []
            for i, gradient in zip(parted, own, strict=True):
                velocity, addend = tf.convert_to_tensor(self.compressor.velocities[worker][i]), gradient
                if recipe.momentum_correction and recipe.momentum:
                    velocity, addend = correct_momentum(gradient, velocity, recipe.momentum, recipe.nesterov)
                velocities.append(velocity)
                residuals.append(self.compressor.residuals[worker][i] + addend if recipe.accumulate else addend)
            seed = tf.stack([recipe.seed, tf.cast(self.compressor.step, tf.int32)])
            limits = thresholds(residuals, self.ratio, recipe.rule, recipe.scope, recipe.sample, seed)
            states.append(list(zip(velocities, residuals, limits, strict=True)))
        updates = {}
        for place, i in enumerate(parted):
            updates[i] = self._mean(self._send(i, [worker[place] for worker in states]))
            if not recipe.momentum_correction:
                updates[i] = self._momentum_after(i, updates[i])
        return updates

    def _send(self, i, states):
        """Exchange what passes the thresholds of one tensor: the sum over all workers, dense and in its own shape."""
        recipe, exchange, name = self.recipe, self.exchange, f"dgc_lab.{i}"
        shape = self.compressor.trained[i].shape
        flat = [[tf.reshape(velocity, [-1]), tf.reshape(residual, [-1]), limit] for velocity, residual, limit in states]

        def sparse():
            parts = [select(residual, limit, recipe.values) for _, residual, limit in flat]
            indices, values = [part[0] for part in parts], [part[1] for part in parts]
            # Elements that several workers sent have several entries here; scatter_nd adds them up.
            total = tf.scatter_nd(
                exchange.allgather(indices, f"{name}.indices")[:, None],
                tf.cast(exchange.allgather(values, f"{name}.values"), tf.float32),
                [shape.num_elements()],
            )
            cleared = [
                (clear(velocity, places) if recipe.factor_masking else velocity, clear(residual, places, left))
                for (velocity, residual, _), (places, _, left) in zip(flat, parts, strict=True)
            ]
            kept = tf.add_n([tf.size(places, tf.int64) for places in indices])
            return total, cleared, kept, tf.constant(0, tf.int64), payload(indices) + payload(values)

        def whole():
            residuals = [residual for _, residual, _ in flat]
            cleared = [
                (tf.zeros_like(velocity) if recipe.factor_masking else velocity, tf.zeros_like(residual))
                for velocity, residual, _ in flat
            ]
            kept = tf.constant(len(flat) * shape.num_elements(), tf.int64)
            total = exchange.allreduce(residuals, f"{name}.whole")
            return total, cleared, kept, payload(residuals), tf.constant(0, tf.int64)

        # Without indices a whole tensor takes half the bytes, and an allreduce does not grow with the workers.
        if tf.is_tensor(self.ratio):
            total, cleared, *sent = tf.cond(self.ratio >= 1, whole, sparse)
        else:
            total, cleared, *sent = whole() if self.ratio >= 1 else sparse()
        self.sent[i] = sent
        for worker, (velocity, residual) in enumerate(cleared):
            if recipe.momentum_correction and recipe.momentum:
                self.changes.append((self.compressor.velocities[worker][i], tf.reshape(velocity, shape)))
            if recipe.accumulate:
                self.changes.append((self.compressor.residuals[worker][i], tf.reshape(residual, shape)))
        return tf.reshape(total, shape)

    def whole(self, i, gradients):
        """Update of a variable whose gradient is always sent whole."""
        nothing = tf.constant(0, tf.int64)
        self.sent[i] = len(gradients) * tf.size(gradients[0], tf.int64), payload(gradients), nothing
        return self._momentum_after(i, self._mean(self.exchange.allreduce(gradients, f"dgc_lab.{i}.dense")))

    def rows(self, i, gradients):
        """Update of a variable whose gradients are rows, such as an embedding's; momentum moves the sent rows only."""
        values, indices = [g.values for g in gradients], [g.indices for g in gradients]
        kept = tf.add_n([tf.size(part, tf.int64) for part in values])
        self.sent[i] = kept, tf.constant(0, tf.int64), payload(values) + payload(indices)
        merged = merge_rows(
            tf.IndexedSlices(
                self.exchange.allgather(values, f"dgc_lab.{i}.values"),
                self.exchange.allgather(indices, f"dgc_lab.{i}.indices"),
                gradients[0].dense_shape,
            )
        )
        update = self._mean(merged.values)
        if self.recipe.momentum:
            state = tf.convert_to_tensor(self.compressor.velocities[0][i])
            velocity, update = correct_momentum(
                update, tf.gather(state, merged.indices), self.recipe.momentum, self.recipe.nesterov
            )
            new = tf.tensor_scatter_nd_update(state, merged.indices[:, None], velocity)
            self.changes.append((self.compressor.velocities[0][i], new))
        return tf.IndexedSlices(update, merged.indices, merged.dense_shape)

    def finish(self, gradients, updates):
        """Check all workers' gradients, then change the state and let the updates out."""
        finite = self._tell_all_what_is_not_finite(gradients)
        with tf.control_dependencies([finite]):
            assigned = [variable.assign(value) for variable, value in self.changes]
            assigned.append(self.compressor.step.assign_add(1))
        with tf.control_dependencies([finite] if tf.executing_eagerly() else [finite, *assigned]):
            updates = [
                u if u is None else tf.nest.map_structure(tf.identity, u, expand_composites=True) for u in updates
            ]
        unsent = (tf.constant(0, tf.int64),) * 3
        kept, allreduce, allgather = zip(*[self.sent.get(i, unsent) for i in range(len(updates))], strict=True)
        here = self.exchange.local
        return updates, Report(tf.add_n(allreduce) // here, tf.add_n(allgather) // here + 4, tf.stack(kept) // here)

    def _mean(self, total):
        return total / self.exchange.size if self.recipe.reduction == "average" else total

    def _momentum_after(self, i, update):
        """Momentum on what all workers have in common already."""
        if not self.recipe.momentum:
            return update
        variable = self.compressor.velocities[0][i]
        velocity, update = correct_momentum(
            update, tf.convert_to_tensor(variable), self.recipe.momentum, self.recipe.nesterov
        )
        self.changes.append((variable, velocity))
        return update

    def _tell_all_what_is_not_finite(self, gradients):
        """An operation that fails on all workers when a gradient of one of them is not finite."""
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
        return tf.no_op() if check is None else check


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


def payload(tensors):
    """Bytes of a list of tensors, int64 scalar."""
    return tf.add_n([tf.size(tensor, tf.int64) * tensor.dtype.size for tensor in tensors])
