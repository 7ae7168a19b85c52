"""From the workers' gradients to one update: the algorithm on each worker here, the exchange, and the state kept.

`Compressor` is the only place that stores velocities and residuals. Trainers and optimizers all train through it.
"""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_number
from dgc_lab.dgc.algorithm import State, correct_momentum, local_gradients, local_step
from dgc_lab.dgc.config import Collectives, DGCConfig
from dgc_lab.dgc.exchange import GradientExchange, Kinds, Report, WorkerPayload, fail_if_bad, first_non_finite
from dgc_lab.dgc.fused import FusedStep, Weights, suits
from dgc_lab.dgc.wire_format import scatter_add


class Compressor(tf.Module):
    """Turns each worker's gradients into the update that all workers apply; plain SGD applies it.

    Args:
        config: the switches (`dgc_lab.dgc.config.DGCConfig`).
        variables: the trained variables (``tf.Variable``), for names, shapes and weight decay.
        communicator: who takes part (`dgc_lab.distributed.communicators`).
        names: of the variables, for messages; their own if None.

    Attributes:
        velocities, residuals: for each worker here, float32 variables like the trained ones; None without momentum, or
            where nothing is kept back. Momentum after the exchange uses the first worker's alone.
        fused: each worker's step in one pass (`dgc_lab.dgc.fused`); emptied, the algorithm runs as it is written.
        step: int64 ``tf.Variable``, the number of updates so far.
        seed: int32 ``tf.Variable``, from which samples are drawn: first the config's.
        bytes_sent: int64 ``tf.Variable`` (2,): what was handed to allreduce and to allgather since it was made.
        kept: float64 ``tf.Variable`` (variables,): elements of each gradient that were sent; both are means of workers.
        counted: int64 ``tf.Variable``, the number of updates that these two count: no loaded state changes it.

    Example:
        >>> from dgc_lab.distributed import OneWorker
        >>> weight = tf.Variable([[1.0, 2.0]])
        >>> compressor = Compressor(DGCConfig(ratio=0.5, momentum=0.0, dense_below=0), [weight], OneWorker())
        >>> [update], report = compressor([[tf.constant([[0.25, -0.5]])]])
        >>> update.numpy().tolist(), compressor.residuals[0][0].numpy().tolist()
        ([[0.0, -0.5]], [[0.25, 0.0]])
        >>> report.kept.numpy().tolist()
        [1.0]

    Source: arXiv:1712.01887, Algorithm 1; `dgc_lab.dgc.algorithm` has it line by line.
    """

    def __init__(
        self, config: DGCConfig, variables: list[tf.Variable], communicator: Collectives, names: list[str] | None = None
    ):
        super().__init__(name="compressor")
        self.config, self.communicator, self.trained = config, communicator, list(variables)
        self.names = list(names or (variable.name.split(":")[0] for variable in self.trained))
        self.dense = [config.is_dense(variable.shape) for variable in self.trained]
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.seed = tf.Variable(config.seed, trainable=False, name="seed")
        self.bytes_sent = tf.Variable([0, 0], dtype=tf.int64, trainable=False, name="bytes_sent")
        self.kept = tf.Variable(tf.zeros([len(self.trained)], tf.float64), trainable=False, name="kept")
        self.counted = tf.Variable(0, dtype=tf.int64, trainable=False, name="counted")
        workers = range(communicator.local)
        has_residual = [config.accumulate and not dense for dense in self.dense]
        self.velocities = [self._zeros("velocity", [config.momentum > 0] * len(self.trained)) for _ in workers]
        self.residuals = [self._zeros("residual", has_residual) for _ in workers]
        self.fused = ()
        if suits(config, self.trained):
            self.fused = tuple(FusedStep(self.holders_of(worker)) for worker in workers)
        self._exchange = None  # that of the last step; those of one training are all the same
        self._agreed = set()  # what all ranks were found to have in common

    def _zeros(self, name, wanted):
        return [
            tf.Variable(tf.zeros(variable.shape), trainable=False, name=name) if wanted else None
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

    def __call__(self, gradients, ratio=None, metadata=None):
        """One step: compress, exchange, and the update for plain SGD.

        Args:
            gradients: for each worker in this process, one gradient per variable: a tensor, ``tf.IndexedSlices``
                (exchanged row by row, duplicates merged, never dense) or None (on all workers).
            ratio: share to send in place of the config's ratio and warm-up, number or scalar tensor; the same on
                all workers.
            metadata: for each worker in this process, a float32 tensor of one length for all, which goes to all
                workers with the gradients.

        Returns:
            ``(updates, report)``: one update per variable (None where the gradient was None), to be multiplied by
            the learning rate and subtracted, and a `Report`.

        Raises:
            RanksDisagree: at the first call, on all ranks: they differ in config, variables, their order, or in which
                of them have gradients.
            tf.errors.InvalidArgumentError: a gradient of some worker holds NaN or infinity; on all workers, with
                the number of the worker and the name of the variable. No state has been changed by then.
        """
        return self._step(gradients, ratio, metadata)

    def train(self, gradients, learning_rate, ratio=None, metadata=None) -> Report:
        """One step of plain SGD: compress, exchange, and change the trained variables.

        The entries that came are taken off the weights as they are, which saves building an update of the model's size,
        as `__call__` does. The result is the same, up to rounding where several workers sent the same element.

        Args, Raises: as `__call__`; learning_rate is a number or a scalar tensor.
        """
        updates, report = self._step(gradients, ratio, metadata, tf.cast(learning_rate, tf.float32))
        for variable, update in zip(self.trained, updates, strict=True):
            if isinstance(update, tf.IndexedSlices):
                values = tf.cast(learning_rate, variable.dtype) * update.values
                variable.scatter_sub(tf.IndexedSlices(values, update.indices))
            elif update is not None:
                variable.assign_sub(tf.cast(learning_rate, variable.dtype) * update)
        return report

    @tf.autograph.experimental.do_not_convert  # nothing here needs it, and converting takes seconds and warns
    def _step(self, gradients, ratio, metadata, learning_rate=None):
        """`__call__`; with a learning rate, updates that were taken off their variables already are None."""
        gradients, clipped, metadata = self.prepared(gradients, metadata)
        ratio = self._ratio(ratio)
        exchange = self.exchange_of(gradients[0], 1 + metadata[0].shape[0])
        kinds, by_allreduce = exchange.kinds, exchange.prefers_allreduce(ratio)
        every = enumerate(zip(gradients, clipped, metadata, strict=True))
        stepped = [self.local_step(worker, *own, kinds, ratio, by_allreduce) for worker, own in every]
        payloads, states = zip(*stepped, strict=True)
        received = exchange.send(payloads, by_allreduce)
        changes, updates = self.state_changes(kinds.sparse, states), [None] * len(self.trained)
        # Momentum after the exchange wants the update itself.
        applies = learning_rate is not None and (self.config.corrects_momentum or not self.config.momentum)
        applies &= all(self.trained[i].dtype == tf.float32 for i in kinds.sparse)
        if applies and kinds.sparse and self.fused:
            weights = Weights([self.trained[i] for i in kinds.sparse], by_allreduce, learning_rate)
            changes.append((weights, received))
        else:
            flat = self._sparse(received, exchange, by_allreduce, learning_rate if applies else None)
            for i, new in zip(kinds.sparse, flat, strict=True):
                new = self._shaped(i, new)
                if applies:
                    changes.append((self.trained[i], new))
                else:
                    updates[i] = new if self.config.corrects_momentum else self.momentum_after(i, new, changes)
        for i, mean in zip(kinds.dense, received.dense, strict=True):
            updates[i] = self.momentum_after(i, mean, changes)
        for i, (values, rows) in zip(kinds.rows, received.rows, strict=True):
            values = tf.reshape(values, [-1, *self.trained[i].shape[1:]])
            like = gradients[0][i]
            rows = tf.cast(rows, like.indices.dtype)
            updates[i] = tf.IndexedSlices(self.momentum_after(i, values, changes, rows), rows, like.dense_shape)
        # State is float32 whatever the weights are, and only what changes them takes their type.
        updates = [u if u is None else tf.cast(u, v.dtype) for u, v in zip(updates, self.trained, strict=True)]
        report = self.report(payloads, kinds, received.handed, received.metadata[:, 1:])
        return self.commit(updates, changes, report, fail_if_bad(received.metadata[:, 0], self.names)), report

    def prepared(self, gradients, metadata=None):
        """Each worker's gradients, pooled, merged and decayed; the same clipped; and what it tells all others."""
        metadata = metadata or [tf.zeros([0])] * len(gradients)
        kinds = ["none" if g is None else type(g).__name__.replace("Symbolic", "Eager") for g in gradients[0]]
        variables = list(zip(self.names, [tuple(v.shape) for v in self.trained], kinds, strict=True))
        self.agree(f"{self.config}, variables {variables}")
        average = self.config.reduction == "average"
        gradients, metadata = self.communicator.reduce_within_host(gradients, metadata, average)
        workers = self.communicator.size
        both = [local_gradients(own, self.weights_of(i), self.config, workers) for i, own in enumerate(gradients)]
        return *zip(*both, strict=True), metadata

    def weights_of(self, worker):
        """The weights for which a worker in this process has its gradients."""
        return self.trained

    def agree(self, what: str) -> None:
        """RanksDisagree unless all ranks say the same; else they would wait for each other for ever."""
        if what not in self._agreed:
            self.communicator.assert_same_on_all_ranks(what)
            self._agreed.add(what)

    def exchange_of(self, gradients, numbers: int) -> GradientExchange:
        """The exchange for gradients of these kinds and as many numbers of metadata."""
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        rows = [i for i in there if isinstance(gradients[i], tf.IndexedSlices)]
        dense = [i for i in there if self.dense[i] and i not in rows]
        kinds = Kinds([i for i in there if i not in rows and i not in dense], dense, rows)
        if self._exchange is None or (self._exchange.kinds, self._exchange.numbers) != (kinds, numbers):
            shapes = [variable.shape for variable in self.trained]
            self._exchange = GradientExchange(self.config, self.communicator, shapes, kinds, numbers)
        return self._exchange

    def local_step(self, worker, gradients, clipped, metadata, kinds: Kinds, ratio, by_allreduce):
        """What a worker here sends, first in its metadata the number of a bad gradient; and its state."""
        seed = tf.stack([self.seed, tf.cast(self.step, tf.int32)])
        flat = [tf.reshape(clipped[i], [self.trained[i].shape.num_elements()]) for i in kinds.sparse]
        state = State(*([own[i] for i in kinds.sparse] for own in self.holders_of(worker)))
        step = self.fused[worker].local_step if self.fused and kinds.sparse else local_step
        if step is local_step:
            state = State(*map(self._flat, state))
        selection, state, maxima = step(flat, state, ratio, self.config, seed, by_allreduce)
        # What is not finite makes its block's maximum, and any sum with it, not finite either.
        witnesses = {i: getattr(clipped[i], "values", clipped[i]) for i in (*kinds.dense, *kinds.rows)}
        bad = first_non_finite(gradients, clipped, dict(zip(kinds.sparse, maxima, strict=True)) | witnesses)
        rows = []
        for i in kinds.rows:
            values = tf.reshape(clipped[i].values, [-1, self.trained[i].shape[1:].num_elements()])
            rows.append((values, tf.cast(clipped[i].indices, tf.int32)))
        dense = [clipped[i] for i in kinds.dense]
        return WorkerPayload(selection, dense, rows, tf.concat([bad[None], metadata], 0)), state

    @staticmethod
    def _flat(variables):
        return [None if variable is None else tf.reshape(variable, [-1]) for variable in variables]

    def holders_of(self, worker) -> State:
        """What holds a worker's velocities and residuals: variables, or where its step is fused those with spares."""
        if self.fused:
            return self.fused[worker].holders
        velocities = self.velocities[worker] if self.config.corrects_momentum else [None] * len(self.trained)
        return State(velocities, self.residuals[worker])

    def state_changes(self, sparse, states) -> list:
        """Pairs of what holds a value and the new one: what stays with each worker here."""
        pairs = []
        for worker, state in enumerate(states):
            for own, new in zip(self.holders_of(worker), state, strict=True):
                pairs += [(own[i], self._shaped(i, v)) for i, v in zip(sparse, new, strict=True) if own[i] is not None]
        return pairs

    def _sparse(self, received, exchange: GradientExchange, by_allreduce, learning_rate):
        """Flat updates of the sparse tensors; with a learning rate, their new weights."""
        if learning_rate is None:
            ways = (lambda: received.masked, lambda: scatter_add(received.entries, exchange.sizes))
        else:
            weights = self._flat([self.trained[i] for i in exchange.kinds.sparse])
            ways = (
                lambda: [old - learning_rate * mean for old, mean in zip(weights, received.masked, strict=True)],
                lambda: scatter_add([(i, -learning_rate * v) for i, v in received.entries], exchange.sizes, weights),
            )
        return tf.cond(by_allreduce, *ways) if tf.is_tensor(by_allreduce) else ways[0 if by_allreduce else 1]()

    def _shaped(self, i, flat):
        """A flat tensor in the variable's shape."""
        return tf.reshape(flat, self.trained[i].shape)

    def momentum_after(self, i, update, changes: list, rows=None):
        """Momentum on what all workers have in common already, for all of a variable or for some of its rows."""
        config, variable = self.config, self.velocities[0][i]
        if not config.momentum:
            return update
        velocity = tf.convert_to_tensor(variable)
        if rows is None:
            new, update = correct_momentum(update, velocity, config.momentum, config.nesterov)
        else:
            part, update = correct_momentum(update, tf.gather(velocity, rows), config.momentum, config.nesterov)
            new = tf.tensor_scatter_nd_update(velocity, rows[:, None], part)
        changes.append((variable, new))
        return update

    def report(self, payloads, kinds: Kinds, handed, metadata) -> Report:
        """The report of a step in which the workers here sent this."""
        local, kept = self.communicator.local, [tf.zeros([], tf.int64)] * len(self.trained)
        selected = tf.add_n([own.selection.kept for own in payloads])
        for place, i in enumerate(kinds.sparse):
            kept[i] = selected[place]
        whole = zip(*([*own.dense, *(values for values, _ in own.rows)] for own in payloads), strict=True)
        for i, tensors in zip((*kinds.dense, *kinds.rows), whole, strict=True):
            kept[i] = tf.add_n([tf.size(tensor, tf.int64) for tensor in tensors])
        return Report(handed[0] // local, handed[1] // local, tf.stack(kept) / local, metadata)

    def commit(self, updates, changes, report: Report, checks=()):
        """Change the state and let the updates out, after the checks."""
        counts = {"step": 1, "bytes_sent": tf.stack(report[:2]), "kept": report.kept, "counted": 1}
        with tf.control_dependencies(checks):
            assigned = [done for holder, value in changes if (done := holder.assign(value)) is not None]
            assigned += [getattr(self, name).assign_add(more) for name, more in counts.items()]
        return after(updates, [] if tf.executing_eagerly() else [*checks, *assigned])

    def _ratio(self, given):
        """The ratio of the coming step: what was given, or a number, or by the warm-up a float64 scalar tensor."""
        config = self.config
        if given is not None:
            return tf.cast(given, tf.float64) if tf.is_tensor(given) else check_number("ratio", given, "in [0, 1]")
        if not config.warm_up:
            return config.ratio
        stage = tf.minimum(self.step // config.warm_up_steps, len(config.warm_up))
        return tf.gather(tf.constant([*config.warm_up, config.ratio], tf.float64), stage)


def after(updates, operations):
    """The same updates (tensors, rows or None) as new nodes, which wait for the operations."""
    with tf.control_dependencies(operations):
        return [u if u is None else tf.nest.map_structure(tf.identity, u, expand_composites=True) for u in updates]
