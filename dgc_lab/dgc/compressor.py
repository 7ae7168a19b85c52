"""From the workers' gradients to one update: compress, exchange, and keep each worker's state.

`Compressor` joins the pure functions of `dgc_lab.dgc.algorithm` with an exchange (`dgc_lab.distributed.communicators`). The lab's training loop,
the compat.v1 optimizer and the Keras optimizer all train through it.
"""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.dgc.algorithm import clip_locally
from dgc_lab.dgc.config import DGCConfig
from dgc_lab.dgc.step import CompressionStep, identity, is_rows, sum_duplicate_rows
from dgc_lab.dgc.thresholding import check_finite


class Compressor(tf.Module):
    """Turns each worker's gradients into the update that all workers apply; plain SGD applies it.

    Args:
        config: the switches (`dgc_lab.dgc.config.DGCConfig`).
        variables: the trained variables (``tf.Variable``), for names, shapes and weight decay.
        communicator: who takes part (`dgc_lab.distributed.communicators`).
        names: names of the variables for messages; their own if None.
        outside: somebody else exchanges what comes out. Updates are then this worker's own: flat ``tf.IndexedSlices``
            (one row an element) where a gradient is sent in part, and `after_exchange` makes updates of them.

    Attributes:
        velocities, residuals: for each worker in this process, one ``tf.Variable`` of its shape per trained variable,
            or None where the config needs none.
        step: int64 ``tf.Variable``, the number of updates so far.
        bytes_sent: int64 ``tf.Variable`` (2,): what was handed to allreduce and to allgather since it was made.
        kept: int64 ``tf.Variable`` (variables,): elements of each gradient that were sent since it was made; a mean
            over the workers in this process, like ``bytes_sent``.
        counted: int64 ``tf.Variable``, the number of updates that these two count: no loaded state changes it.

    Example:
        >>> from dgc_lab.distributed.communicators import OneWorker
        >>> weight = tf.Variable([[1.0, 2.0]])
        >>> compressor = Compressor(DGCConfig(ratio=0.5, momentum=0.0, dense_below=0), [weight], OneWorker())
        >>> [update], report = compressor([[tf.constant([[0.25, -0.5]])]])
        >>> update.numpy().tolist(), compressor.residuals[0][0].numpy().tolist()
        ([[0.0, -0.5]], [[0.25, 0.0]])
        >>> report.kept.numpy().tolist()
        [1]
    """

    def __init__(self, config: DGCConfig, variables, communicator, names=None, outside=False):
        super().__init__(name="compressor")
        self.config, self.communicator, self.trained, self.outside = config, communicator, list(variables), outside
        self.names = list(names or [variable.name.split(":")[0] for variable in self.trained])
        self.dense = [config.is_dense(variable.shape) for variable in self.trained]
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.bytes_sent = tf.Variable([0, 0], dtype=tf.int64, trainable=False, name="bytes_sent")
        self.kept = tf.Variable(tf.zeros([len(self.trained)], tf.int64), trainable=False, name="kept")
        self.counted = tf.Variable(0, dtype=tf.int64, trainable=False, name="counted")
        workers = range(communicator.local)
        has_velocity = [config.momentum > 0] * len(self.trained)
        has_residual = [config.accumulate and not dense for dense in self.dense]
        self.velocities = [self._zeros("velocity", has_velocity) for _ in workers]
        self.residuals = [self._zeros("residual", has_residual) for _ in workers]
        self.parted = set()  # numbers of the variables whose gradients were sent in part at the last call
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

    def train(self, gradients, rate, ratio=None, told=None):
        """One step of plain SGD: compress, exchange, and change the trained variables.

        The entries that came are taken off the weights as they are, which spares the update as long as the model that
        `__call__` makes of them. The result is the same, up to rounding where several workers sent the same element.

        Args:
            gradients, ratio, told: as in `__call__`.
            rate: learning rate, number or scalar tensor.

        Returns:
            A `dgc_lab.dgc.step.Report`.

        Raises:
            RanksDisagree, tf.errors.InvalidArgumentError: as `__call__`; no weight has been changed by then.

        Example:
            >>> from dgc_lab.distributed.communicators import OneWorker
            >>> weight = tf.Variable([[1.0, 2.0]])
            >>> compressor = Compressor(DGCConfig(ratio=0.5, momentum=0.0, dense_below=0), [weight], OneWorker())
            >>> _ = compressor.train([[tf.constant([[0.25, -0.5]])]], rate=0.5)
            >>> weight.numpy().tolist()
            [[1.0, 2.25]]
        """
        updates, report = self._step(gradients, ratio, told, rate)
        for variable, update in zip(self.trained, updates, strict=True):
            if is_rows(update):
                values = tf.cast(rate, variable.dtype) * update.values
                variable.scatter_sub(tf.IndexedSlices(values, update.indices))
            elif update is not None:
                variable.assign_sub(tf.cast(rate, variable.dtype) * update)
        return report

    def __call__(self, gradients, ratio=None, told=None):
        """One step: compress, exchange, and the update for plain SGD.

        Args:
            gradients: for each worker in this process, one gradient per variable: a tensor, ``tf.IndexedSlices``
                (exchanged row by row, duplicates merged, never dense) or None (on all workers).
            ratio: share to send in place of the config's ratio and warm-up, number or scalar tensor; the same on
                all workers.
            told: for each worker in this process, a float32 tensor of one length for all, which goes to all workers
                with the gradients; not where the exchange is outside.

        Returns:
            ``(updates, report)``: one update per variable (None where the gradient was None), to be multiplied by
            the learning rate and subtracted, and a `dgc_lab.dgc.step.Report`.

        Raises:
            RanksDisagree: at the first call, on all ranks: they differ in config, variables, their order, or in which
                of them have gradients.
            tf.errors.InvalidArgumentError: a gradient of some worker holds NaN or infinity; on all workers, with
                the number of the worker and the name of the variable. No state has been changed by then.
        """
        return self._step(gradients, ratio, told)

    def _step(self, gradients, ratio, told, rate=None):
        """`__call__`; with a learning rate, updates that were taken off their variables already are None."""
        self._agree(gradients[0])
        told = told or [tf.zeros([0])] * len(gradients)
        gradients, told = self.communicator.reduce_within_host(gradients, told, self.config.reduction == "average")
        gradients = [self._merged_and_decayed(worker) for worker in gradients]
        clipped = [self._clipped(worker) for worker in gradients]
        parted, whole, rows = [], [], []
        for i, gradient in enumerate(gradients[0]):
            if gradient is not None:
                (rows if is_rows(gradient) else whole if self.dense[i] else parted).append(i)
        self.parted = set(parted)
        this = CompressionStep(self, self._ratio() if ratio is None else ratio, (parted, whole, rows), rate)
        return this.run(clipped, told, gradients)

    def after_exchange(self, updates):
        """The rest of a step whose exchange was outside: back to the variables' shapes, and momentum where it is due.

        Args:
            updates: what this object gave out, combined over the workers by somebody else.

        Returns:
            One update per variable for plain SGD, None where the gradient was None.

        Raises:
            tf.errors.InvalidArgumentError: some worker's gradient held NaN or infinity; the message names the variable.
        """
        this, done = CompressionStep(self), []
        for i, update in enumerate(updates):
            shape = self.trained[i].shape
            if update is None:
                done.append(None)
            elif is_rows(update) and i in self.parted:
                values = check_finite(tf.cast(update.values, self.trained[i].dtype), self.names[i])
                flat = tf.scatter_nd(update.indices[:, None], values, [shape.num_elements()])
                whole = tf.reshape(flat, shape)
                done.append(whole if this.corrects else this.momentum_after(i, whole))
            elif is_rows(update):
                rows = sum_duplicate_rows(update)
                values = this.momentum_after(i, check_finite(rows.values, self.names[i]), rows.indices)
                done.append(tf.IndexedSlices(values, rows.indices, rows.dense_shape))
            else:
                update = tf.reshape(check_finite(update, self.names[i]), shape)
                done.append(update if this.corrects and not self.dense[i] else this.momentum_after(i, update))
        assigned = [variable.assign(value) for variable, value in this.changes]
        with tf.control_dependencies([] if tf.executing_eagerly() else assigned):
            return [identity(update) for update in done]

    def _agree(self, gradients):
        """Once, before anything is exchanged: ranks that differ would otherwise wait for each other for ever."""
        if not self._agreed:
            kinds = ["none" if g is None else type(g).__name__.replace("Symbolic", "Eager") for g in gradients]
            shapes = [tuple(variable.shape) for variable in self.trained]
            self.communicator.assert_same_on_all_ranks(
                f"{self.config}, variables {list(zip(self.names, shapes, kinds, strict=True))}"
            )
            self._agreed = True

    def _ratio(self):
        """The ratio of the coming step: a number, or by the config's warm-up a float64 scalar tensor."""
        config = self.config
        if not config.warm_up:
            return config.ratio
        stage = tf.minimum(self.step // config.warm_up_steps, len(config.warm_up))
        return tf.gather(tf.constant([*config.warm_up, config.ratio], tf.float64), stage)

    def _merged_and_decayed(self, gradients):
        """A worker's gradients with rows merged and weights decayed."""
        config, size = self.config, self.communicator.size
        gradients = [sum_duplicate_rows(g) if is_rows(g) else g for g in gradients]
        if config.weight_decay:
            # A gradient that holds 1 / workers gets its share of the decay, for the exchange adds up the shares.
            decay = config.weight_decay / (1 if config.reduction == "average" else size)
            pairs = zip(gradients, self.trained, strict=True)
            gradients = [g if g is None or is_rows(g) else g + decay * tf.convert_to_tensor(w) for g, w in pairs]
        return gradients

    def _clipped(self, gradients):
        """A worker's gradients, clipped to its share of the global norm."""
        config = self.config
        if config.clip_norm is None:
            return gradients
        there = [g for g in gradients if g is not None]
        clipped = iter(clip_locally(there, config.clip_norm, self.communicator.size, config.reduction))
        return [None if g is None else next(clipped) for g in gradients]
