"""Optimizer for ``tf.compat.v1`` that compresses gradients, inside or around Horovod's optimizer.

Inside, it passes sparse gradients to Horovod, which exchanges them by allgather. Around it, this optimizer compresses
and exchanges by itself, because Horovod's ``compute_gradients`` would exchange the gradients uncompressed.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from dgc_lab.common import LabError, check_instance
from dgc_lab.compression.break_even import dense_is_shorter
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.gradients import check_finite, flatten, sum_duplicate_rows
from dgc_lab.compression.scheme import SparseVector
from dgc_lab.compression.updates import Outcome
from dgc_lab.compression.wire_format import nbytes
from dgc_lab.distributed.communicators import (
    Communicator,
    HorovodWorkers,
    check_communicator,
    communicator_here,
    default_communicator,
)

v1 = tf.compat.v1.train


class GradientCompressionOptimizer(v1.Optimizer):
    """Deep Gradient Compression around a ``tf.compat.v1.train.Optimizer``: eager, in ``tf.function``, in a session.

    Args:
        optimizer: optimizer that applies the update: ``GradientDescentOptimizer``, or Horovod's
            ``DistributedOptimizer`` around one. This class then does Horovod's exchange, and the config's ``reduction``
            and ``values`` replace Horovod's ``op`` and ``compression``. ``MomentumOptimizer`` is accepted if the
            config's momentum is 0. If Horovod's optimizer is around this one, ``reduction="sum"`` needs ``op=Sum``.
            Its ``backward_passes_per_step`` must be 1 in either order: it would add up gradients after compression.
        config: a `dgc_lab.compression.config.DGCConfig`; if None, the paper's algorithm at 0.1 %.
        communicator: the participants (`dgc_lab.distributed.communicators`), to exchange without Horovod's optimizer.

    Attributes:
        compressor: the `dgc_lab.compression.compressor.Compressor`; None before the first ``compute_gradients``.

    Raises:
        ValueError: `optimizer` is none of these; it and the config both have momentum, which would be applied twice; or
            Horovod's optimizer has options that are not supported.

    Example:
        >>> weight = tf.Variable([[1.0, 2.0]])
        >>> inner = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        >>> optimizer = GradientCompressionOptimizer(inner, DGCConfig(ratio=0.5, momentum=0.0, dense_below=0))
        >>> _ = optimizer.minimize(lambda: tf.reduce_sum(weight * [[0.25, -0.5]]), var_list=[weight])
        >>> weight.numpy().tolist(), optimizer.get_slot(weight, "residual").numpy().tolist()
        ([[1.0, 2.5]], [[0.25, 0.0]])

    References:
        arXiv:1712.01887; ``horovod.tensorflow.DistributedOptimizer``.
    """

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer,
        config: DGCConfig | None = None,
        communicator: Communicator | None = None,
    ):
        super().__init__(use_locking=False, name="GradientCompression")
        self.config = DGCConfig() if config is None else check_instance("config", config, DGCConfig)
        around_horovod = is_horovod_optimizer(optimizer)
        if around_horovod:
            check_horovod_options(optimizer)
        self.inner = optimizer._optimizer if around_horovod else optimizer  # Horovod has no public attribute for it
        check_inner_optimizer(self.inner, self.config)
        self.communicator = check_communicator(communicator) or (HorovodWorkers() if around_horovod else None)
        self.compressor = None
        self._pending_step = None

    def compute_gradients(self, loss, var_list=None, **options):
        """Return pairs of compressed gradient and variable, combined over all workers if this optimizer exchanges.

        The arguments are those of ``tf.compat.v1.train.Optimizer``. Inside Horovod's optimizer, a sparse gradient is a
        flat ``tf.IndexedSlices`` with one row per element; `apply_gradients` restores its shape.
        """
        gradients, variables = zip(*self.inner.compute_gradients(loss, var_list, **options), strict=True)
        if self.compressor is None:
            with tf.init_scope():
                self.compressor = Compressor(self.config, variables, communicator_here(self.communicator))
        if [id(variable) for variable in variables] != [id(variable) for variable in self.compressor.trained]:
            raise ValueError(
                f"var_list must hold the variables of the first call in the same order, {self.compressor.names}, got "
                f"{[variable.name for variable in variables]}: use a separate optimizer for each list"
            )
        if self.communicator is None:
            self._pending_step = PendingStep(self.compressor, list(gradients))
            updates = self._pending_step.updates
        else:
            updates, _ = self.compressor([list(gradients)])
        return list(zip(updates, variables, strict=True))

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Apply the gradients from `compute_gradients`, in the same order, unchanged or combined by Horovod.

        Raises:
            LabError: several ranks train without exchanging gradients, or `compute_gradients` was not called.
            tf.errors.InvalidArgumentError: on all ranks, if some rank's gradient holds NaN or infinity.
        """
        updates, variables = map(list, zip(*grads_and_vars, strict=True))
        if self.communicator is None:
            if self._pending_step is None:
                raise LabError("compute_gradients must be called before apply_gradients: it compresses the gradients")
            ranks, pairs = default_communicator().size, zip(updates, self._pending_step.updates, strict=False)
            if ranks > 1 and any(update is not None and update is given for update, given in pairs):
                raise LabError(
                    f"gradients must be exchanged between the {ranks} ranks, but were not: put "
                    "horovod.tensorflow.DistributedOptimizer around this optimizer, or this optimizer around it"
                )
            updates = self._pending_step.finish(updates)
        return self.inner.apply_gradients(list(zip(updates, variables, strict=True)), global_step, name)

    def get_slot(self, var, name):
        """Return a variable's ``"velocity"``, ``"residual"`` or slot of the inner optimizer; None if there is none."""
        own = self._own_slots()
        if name not in own:
            return self.inner.get_slot(var, name)
        positions = [i for i, trained in enumerate(self.compressor.trained) if trained is var]
        return own[name][positions[0]] if positions else None

    def get_slot_names(self):
        return sorted({*self.inner.get_slot_names(), *self._own_slots()})

    def variables(self):
        """Return all state: the inner optimizer's variables, the step, velocities and residuals."""
        return [*self.inner.variables(), *(self.compressor.state if self.compressor else [])]

    def _own_slots(self):
        if self.compressor is None:
            return {}
        return {"velocity": self.compressor.velocities(), "residual": self.compressor.residuals()}


class PendingStep:
    """Step of a compressor in two halves, between which Horovod's optimizer exchanges the updates.

    Attributes:
        updates: this worker's updates, one per variable, for Horovod to exchange. All are NaN if any gradient is not
            finite, so that every worker notices. A compressed gradient is a flat ``tf.IndexedSlices``. At the
            break-even ratio and above, it is a dense tensor with zeros, unless the ratio is a tensor: the format must
            be known in advance.
    """

    def __init__(self, compressor: Compressor, gradients: list):
        self.compressor = compressor
        [own], ratio = compressor.prepared([gradients]), compressor.ratio_of_step()
        self.own, self.steps, self.updates = own, compressor.started(0, own, ratio), [None] * len(gradients)
        asked, gathered, parts = [next(step) for step in self.steps], [], compressor.parts
        entry_bytes = tf.as_dtype(compressor.config.values).size + tf.int32.size  # never run lengths
        dense = not tf.is_tensor(ratio) and dense_is_shorter(ratio, compressor.communicator.size, entry_bytes)
        dense &= compressor.config.switch_to_dense
        reduced = [own.vector]
        for question in asked:
            vector = SparseVector([(question.indices, question.values)], question.size)
            if dense:
                reduced.append(tf.convert_to_tensor(vector))
                found = dict(zip(own.compressed, tf.split(reduced[-1], own.sizes), strict=True))
            else:
                values = tf.cast(question.values, compressor.config.values)
                found = dict(zip(own.compressed, split_by_tensor(question.indices, values, own.sizes), strict=True))
                gathered += [question.indices, values]
            for i, update in found.items():
                self.updates[i] = update
        for i, tensor in parts.by_variable(own.vector, own.uncompressed).items():
            self.updates[i] = tensor
        for i, (values, rows) in zip(own.rows, own.slices, strict=True):
            like = gradients[i]
            values = tf.reshape(values, [-1, *compressor.trained[i].shape[1:]])
            self.updates[i] = tf.IndexedSlices(values, tf.cast(rows, like.indices.dtype), like.dense_shape)
            gathered += [values, rows]
        self.bytes_sent, self.num_sent = tf.stack([nbytes(reduced), nbytes(gathered)]), parts.num_sent(own, asked)
        finite = parts.non_finite([own], [asked])[0] < 0
        self.updates = [poison_with_nan(update, finite) for update in self.updates]

    def finish(self, updates: list) -> list:
        """Return the updates for plain SGD from the exchanged updates, and store the new state with them."""
        own, compressor, done = self.own, self.compressor, {}
        for i, (update, name) in enumerate(zip(updates, compressor.names, strict=True)):
            if i in own.rows:
                width = compressor.parts.shapes[i][1:].num_elements()
                if isinstance(update, tf.IndexedSlices):
                    update = sum_duplicate_rows(update)
                else:  # Horovod converted it to a dense tensor
                    update = tf.IndexedSlices(update, tf.range(compressor.trained[i].shape[0]))
                values = tf.cast(check_finite(update.values, name), tf.float32)
                done[i] = tf.reshape(values, [-1, width]), update.indices
            elif isinstance(update, tf.IndexedSlices):
                values = check_finite(tf.cast(update.values, tf.float32), name)
                done[i] = tf.scatter_nd(update.indices[:, None], values, [compressor.parts.sizes[i]])
            elif update is not None:
                done[i] = check_finite(tf.cast(update, tf.float32), name)
        results = []
        for step in self.steps:
            mean = flatten([done[i] for i in own.compressed])
            try:
                step.send(SparseVector([], mean.shape[0], mean))
            except StopIteration as end:
                results.append(end.value)
        with tf.control_dependencies(tf.nest.flatten(done)):  # store state only after all values were checked
            checked = tf.identity([[-1.0]])
        mean, velocity = compressor.apply_momentum(flatten([done[i] for i in own.uncompressed]), own)
        outcome = Outcome(
            [update for update, _, _ in results],
            mean,
            velocity,
            [done[i] for i in own.rows],
            [[state for _, _, state in results]],
            checked,
            self.bytes_sent,
            self.num_sent,
        )
        return compressor.commit(own, outcome, None, [])[0]


def split_by_tensor(indices, values, sizes) -> list[tf.IndexedSlices]:
    """Split the entries of a flat vector into those of each of its tensors."""
    ends = tf.searchsorted(indices, np.cumsum(sizes).astype(np.int32))
    counts, start, slices = ends - tf.concat([[0], ends[:-1]], 0), 0, []
    pairs = zip(tf.split(indices, counts, num=len(sizes)), tf.split(values, counts, num=len(sizes)), strict=True)
    for (own, numbers), size in zip(pairs, sizes, strict=True):
        slices.append(tf.IndexedSlices(numbers, own - start, tf.constant([size])))
        start += size
    return slices


def poison_with_nan(update, finite):
    """Return the update, or NaN if some gradient is not finite, so that Horovod's exchange informs all workers."""
    if update is None:
        return None
    if not isinstance(update, tf.IndexedSlices):
        return tf.where(finite, update, np.nan)
    # NaN exceeds no threshold, so nothing may be selected: the first element must carry the NaN.
    first = tf.fill(tf.concat([[1], tf.shape(update.values)[1:]], axis=0), tf.constant(np.nan, update.values.dtype))
    values, indices = tf.cond(
        finite, lambda: (update.values, update.indices), lambda: (first, tf.zeros([1], update.indices.dtype))
    )
    return tf.IndexedSlices(values, indices, update.dense_shape)


def is_horovod_optimizer(optimizer) -> bool:
    """Return whether ``horovod.tensorflow.DistributedOptimizer`` wraps this compat.v1 optimizer."""
    return type(optimizer).__module__.startswith("horovod.") and hasattr(optimizer, "_optimizer")


def check_horovod_options(optimizer) -> None:
    """Raise ValueError for options of Horovod's optimizer that apply only to its own exchange."""
    wrapped = "if GradientCompressionOptimizer wraps Horovod's optimizer"
    if optimizer._agg_helper is not None:
        raise ValueError(f"backward_passes_per_step must be 1 {wrapped}")
    if optimizer._local_vars:
        raise ValueError(f"Horovod's optimizer must have no local variables {wrapped}")
    if optimizer.process_set.process_set_id:
        raise ValueError(f"process_set must be the global process set {wrapped}")


def check_inner_optimizer(optimizer, config: DGCConfig) -> None:
    """Raise ValueError if `optimizer` must not apply the compressed update."""
    if type(optimizer) not in (v1.GradientDescentOptimizer, v1.MomentumOptimizer):
        raise ValueError(
            "optimizer must be a tf.compat.v1.train.GradientDescentOptimizer (or MomentumOptimizer, if the config's "
            f"momentum is 0), got {type(optimizer).__name__}: Deep Gradient Compression is defined for SGD only"
        )
    if type(optimizer) is v1.MomentumOptimizer and config.momentum:
        raise ValueError(
            f"momentum must be 0 in the config when MomentumOptimizer applies the update, got {config.momentum}: "
            "it would be applied twice"
        )
