"""The compat.v1 optimizer that compresses gradients, in both orders with Horovod's.

Inside, it hands Horovod sparse gradients, which Horovod exchanges by allgather. Outside, it takes the exchange over and
compresses first: Horovod's ``compute_gradients`` would reduce the dense gradients before anything could be saved.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from dgc_lab.common import LabError
from dgc_lab.dgc.algorithm import sum_duplicate_rows
from dgc_lab.dgc.break_even import dense_is_shorter
from dgc_lab.dgc.compressor import Compressor, after
from dgc_lab.dgc.config import DGCConfig
from dgc_lab.dgc.exchange import check_finite
from dgc_lab.dgc.wire_format import nbytes
from dgc_lab.distributed.communicators import Communicator, HorovodWorkers, communicator_here, default_communicator

v1 = tf.compat.v1.train


class GradientCompressionOptimizer(v1.Optimizer):
    """Deep Gradient Compression around a ``tf.compat.v1.train.Optimizer``: eager, in ``tf.function``, in a session.

    Args:
        optimizer: applies the update: ``GradientDescentOptimizer``, or Horovod's ``DistributedOptimizer`` around one,
            of which the exchange is taken over, with the config's ``reduction`` and ``values`` in place of Horovod's
            ``op`` and ``compression``. Inside Horovod's, ``reduction="sum"`` needs Horovod's ``op=Sum``.
            ``MomentumOptimizer`` is accepted where the config's momentum is 0.
        config: the switches (`dgc_lab.dgc.config.DGCConfig`); the paper's algorithm at 0.1 % if None.
        sparse_to_dense: make ``tf.IndexedSlices`` (embeddings) dense and compress them like the others. Otherwise
            they stay rows, duplicates merged.
        communicator: who takes part (`dgc_lab.distributed.communicators`), to exchange without Horovod's optimizer.

    Attributes:
        compressor: the `dgc_lab.dgc.compressor.Compressor`, from the first ``compute_gradients`` on.

    Raises:
        ValueError: optimizer is none of those, or has momentum while the config has (it would be applied twice).

    Example:
        >>> weight = tf.Variable([[1.0, 2.0]])
        >>> inner = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        >>> optimizer = GradientCompressionOptimizer(inner, DGCConfig(ratio=0.5, momentum=0.0, dense_below=0))
        >>> _ = optimizer.minimize(lambda: tf.reduce_sum(weight * [[0.25, -0.5]]), var_list=[weight])
        >>> weight.numpy().tolist(), optimizer.get_slot(weight, "residual").numpy().tolist()
        ([[1.0, 2.5]], [[0.25, 0.0]])

    Source: arXiv:1712.01887; ``horovod.tensorflow.DistributedOptimizer``.
    """

    def __init__(
        self,
        optimizer,
        config: DGCConfig | None = None,
        sparse_to_dense: bool = False,
        communicator: Communicator | None = None,
    ):
        super().__init__(use_locking=False, name="GradientCompression")
        self.config, self.sparse_to_dense = config or DGCConfig(), sparse_to_dense
        around_horovod = is_horovods(optimizer)
        if around_horovod:
            check_horovods_options(optimizer)
        self.inner = optimizer._optimizer if around_horovod else optimizer  # Horovod offers no public way to it
        check_inner_optimizer(self.inner, self.config)
        self.communicator = communicator or (HorovodWorkers() if around_horovod else None)
        self.compressor = None
        self._given_out = []

    def compute_gradients(self, loss, var_list=None, **options):
        """Pairs of gradient, compressed, and variable; where this optimizer exchanges, combined over all workers.

        Arguments are those of ``tf.compat.v1.train.Optimizer``. Inside Horovod's optimizer, a gradient that is sent in
        part is a flat ``tf.IndexedSlices``, one row an element, which `apply_gradients` brings back to its shape.
        """
        gradients, variables = zip(*self.inner.compute_gradients(loss, var_list, **options), strict=True)
        if self.sparse_to_dense:
            gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
        if self.compressor is None:
            kind = LocalCompressor if self.communicator is None else Compressor
            with tf.init_scope():
                self.compressor = kind(self.config, variables, communicator_here(self.communicator))
        if [id(variable) for variable in variables] != [id(variable) for variable in self.compressor.trained]:
            raise ValueError(
                f"var_list must hold the variables of the first call, {self.compressor.names}, in their order; got "
                f"{[variable.name for variable in variables]}. Use an optimizer for each list"
            )
        updates, _ = self.compressor([list(gradients)])
        self._given_out = updates if self.communicator is None else []
        return list(zip(updates, variables, strict=True))

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Apply what `compute_gradients` returned, in its order, as it is or combined by Horovod.

        Raises:
            LabError: several ranks train, and nobody has exchanged the gradients.
            tf.errors.InvalidArgumentError: a rank's gradient held NaN or infinity; on all ranks.
        """
        updates, variables = map(list, zip(*grads_and_vars, strict=True))
        if self.communicator is None:
            ranks, pairs = default_communicator().size, zip(updates, self._given_out, strict=False)
            if ranks > 1 and any(update is not None and update is given for update, given in pairs):
                raise LabError(
                    f"{ranks} ranks train, and nobody exchanged their gradients: put "
                    "horovod.tensorflow.DistributedOptimizer around this optimizer, or this optimizer around it"
                )
            updates = self.compressor.after_exchange(updates)
        return self.inner.apply_gradients(list(zip(updates, variables, strict=True)), global_step, name)

    def get_slot(self, var, name):
        """A variable's ``"velocity"`` or ``"residual"``, or the inner optimizer's slot; None where there is none."""
        own = self._own_slots()
        if name not in own:
            return self.inner.get_slot(var, name)
        places = [i for i, trained in enumerate(self.compressor.trained) if trained is var]
        return own[name][places[0]] if places else None

    def get_slot_names(self):
        return sorted({*self.inner.get_slot_names(), *self._own_slots()})

    def variables(self):
        """All state: the inner optimizer's, the step, velocities and residuals."""
        return [*self.inner.variables(), *(self.compressor.state if self.compressor else [])]

    def _own_slots(self):
        if self.compressor is None:
            return {}
        return {"velocity": self.compressor.velocities[0], "residual": self.compressor.residuals[0]}


class LocalCompressor(Compressor):
    """A `Compressor` whose updates Horovod's optimizer exchanges; `after_exchange` makes updates of what comes back.

    A worker learns only then that another one's gradient was not finite: of its own, what it sent in that step is lost.
    """

    def __call__(self, gradients, ratio=None, metadata=None):
        """As the compressor's, but nothing is sent: this worker's own updates, NaN where a gradient is not finite.

        From the break-even on, a gradient that is sent in part is a tensor with zeros, unless the ratio is a tensor:
        whether indices come has to be known beforehand.
        """
        gradients, clipped, metadata = self.prepared(gradients)
        ratio = self._ratio(ratio)
        kinds = self.exchange_of(gradients[0], 1).kinds
        entry = tf.as_dtype(self.config.values).size + tf.int32.size  # Horovod knows no run lengths
        dense = not tf.is_tensor(ratio) and dense_is_shorter(ratio, self.communicator.size, entry)
        masked = self.config.switch_to_dense and dense
        own, state = self.local_step(0, gradients[0], clipped[0], metadata[0], kinds, ratio, masked)
        updates, gathered, reduced = [None] * len(self.trained), [], [*own.dense]
        for place, i in enumerate(kinds.sparse):
            if masked:
                updates[i] = own.selection.masked[place]
                reduced.append(updates[i])
            else:
                values, indices = own.selection.values[place], own.selection.indices[place]
                updates[i] = tf.IndexedSlices(values, indices, tf.constant([self.trained[i].shape.num_elements()]))
                gathered += [values, indices]
        for i, tensor in zip(kinds.dense, own.dense, strict=True):
            updates[i] = tensor
        for i, (values, rows) in zip(kinds.rows, own.rows, strict=True):
            like = gradients[0][i]
            values = tf.reshape(values, [-1, *self.trained[i].shape[1:]])
            updates[i] = tf.IndexedSlices(values, tf.cast(rows, like.indices.dtype), like.dense_shape)
            gathered += [values, rows]
        report = self.report([own], kinds, tf.stack([nbytes(reduced), nbytes(gathered)]), tf.zeros([1, 0]))
        finite = own.metadata[0] < 0
        changes = [(If(finite, holder), value) for holder, value in self.state_changes(kinds.sparse, [state])]
        return self.commit([poison_with_nan(update, finite) for update in updates], changes, report), report

    def after_exchange(self, updates):
        """The rest of the step: back to the variables' shapes, and momentum where it is due."""
        changes, done, corrects = [], [None] * len(updates), self.config.corrects_momentum
        sparse = self._exchange.kinds.sparse
        for i, (update, name) in enumerate(zip(updates, self.names, strict=True)):
            if isinstance(update, tf.IndexedSlices) and i not in sparse:
                rows = sum_duplicate_rows(update)
                values = self.momentum_after(i, check_finite(rows.values, name), changes, rows.indices)
                done[i] = tf.IndexedSlices(values, rows.indices, rows.dense_shape)
            elif update is not None:
                if isinstance(update, tf.IndexedSlices):
                    values = check_finite(tf.cast(update.values, tf.float32), name)
                    update = tf.scatter_nd(update.indices[:, None], values, [self.trained[i].shape.num_elements()])
                else:
                    update = check_finite(update, name)
                update = tf.reshape(update, self.trained[i].shape)
                done[i] = update if corrects and i in sparse else self.momentum_after(i, update, changes)
        assigned = [variable.assign(value) for variable, value in changes]
        done = [cast_to(variable.dtype.base_dtype, update) for variable, update in zip(self.trained, done, strict=True)]
        return after(done, [] if tf.executing_eagerly() else assigned)


class If:
    """What keeps a value, and takes a new one only where something is so."""

    def __init__(self, so, kept):
        self.so, self.kept = so, kept

    def assign(self, value):
        def take():
            with tf.control_dependencies([self.kept.assign(value)]):
                return tf.constant(True)

        return tf.cond(self.so, take, lambda: tf.constant(False))


def cast_to(dtype, update):
    """The update in the variable's own type; it is float32 on its way."""
    if isinstance(update, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(update.values, dtype), update.indices, update.dense_shape)
    return update if update is None else tf.cast(update, dtype)


def poison_with_nan(update, finite):
    """The update; NaN in place of it unless all gradients are finite, for an exchange outside to tell all workers."""
    if update is None:
        return None
    if not isinstance(update, tf.IndexedSlices):
        return tf.where(finite, update, np.nan)
    # NaN passes no threshold: where nothing was selected, the first element must carry it.
    first = tf.fill(tf.concat([[1], tf.shape(update.values)[1:]], axis=0), tf.constant(np.nan, update.values.dtype))
    values, indices = tf.cond(
        finite, lambda: (update.values, update.indices), lambda: (first, tf.zeros([1], update.indices.dtype))
    )
    return tf.IndexedSlices(values, indices, update.dense_shape)


def is_horovods(optimizer) -> bool:
    """Whether it is what ``horovod.tensorflow.DistributedOptimizer`` makes of a compat.v1 optimizer."""
    return type(optimizer).__module__.startswith("horovod.") and hasattr(optimizer, "_optimizer")


def check_horovods_options(optimizer) -> None:
    """A ValueError for options of Horovod's optimizer that would be lost when its exchange is taken over."""
    if optimizer._agg_helper is not None:
        raise ValueError("backward_passes_per_step must be 1 where GradientCompressionOptimizer wraps Horovod's")
    if optimizer._local_vars:
        raise ValueError("Horovod's optimizer must have no local variables where GradientCompressionOptimizer wraps it")
    if optimizer.process_set.process_set_id:
        raise ValueError("process_set must be the global one where GradientCompressionOptimizer wraps Horovod's")


def check_inner_optimizer(optimizer, config: DGCConfig) -> None:
    """A ValueError for an optimizer that must not apply the compressed update."""
    if type(optimizer) not in (v1.GradientDescentOptimizer, v1.MomentumOptimizer):
        raise ValueError(
            "optimizer must be a tf.compat.v1.train.GradientDescentOptimizer (or MomentumOptimizer, where the config's "
            f"momentum is 0), got {type(optimizer).__name__}: Deep Gradient Compression is defined for SGD alone"
        )
    if type(optimizer) is v1.MomentumOptimizer and config.momentum:
        raise ValueError(
            f"momentum must be 0 in the config when MomentumOptimizer applies the update, got {config.momentum}: "
            "it would be applied twice"
        )
