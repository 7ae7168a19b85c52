"""The compat.v1 optimizer that compresses gradients, in both orders with Horovod's.

Inside, it hands Horovod sparse gradients, which Horovod exchanges by allgather. Outside, it takes the exchange over and
compresses first: Horovod's ``compute_gradients`` would reduce the dense gradients before anything could be saved.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from dgc_lab.common import LabError, check_flag
from dgc_lab.compression.break_even import dense_is_shorter
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.gradients import check_finite, flatten, sum_duplicate_rows
from dgc_lab.compression.scheme import SparseVector
from dgc_lab.compression.updates import Outcome
from dgc_lab.compression.wire_format import nbytes
from dgc_lab.distributed.communicators import Communicator, HorovodWorkers, communicator_here, default_communicator

v1 = tf.compat.v1.train


class GradientCompressionOptimizer(v1.Optimizer):
    """Deep Gradient Compression around a ``tf.compat.v1.train.Optimizer``: eager, in ``tf.function``, in a session.

    Args:
        optimizer: applies the update: ``GradientDescentOptimizer``, or Horovod's ``DistributedOptimizer`` around one,
            of which the exchange is taken over, with the config's ``reduction`` and ``values`` in place of Horovod's
            ``op`` and ``compression``. Inside Horovod's, ``reduction="sum"`` needs Horovod's ``op=Sum``.
            ``MomentumOptimizer`` is accepted where the config's momentum is 0.
        config: the switches (`dgc_lab.compression.config.DGCConfig`); the paper's algorithm at 0.1 % if None.
        sparse_to_dense: make ``tf.IndexedSlices`` (embeddings) dense and compress them like the others. Otherwise
            they stay rows, duplicates merged.
        communicator: who takes part (`dgc_lab.distributed.communicators`), to exchange without Horovod's optimizer.

    Attributes:
        compressor: the `dgc_lab.compression.compressor.Compressor`, from the first ``compute_gradients`` on.

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
        optimizer: tf.compat.v1.train.Optimizer,
        config: DGCConfig | None = None,
        sparse_to_dense: bool = False,
        communicator: Communicator | None = None,
    ):
        super().__init__(use_locking=False, name="GradientCompression")
        self.config, self.sparse_to_dense = config or DGCConfig(), check_flag("sparse_to_dense", sparse_to_dense)
        around_horovod = is_horovods(optimizer)
        if around_horovod:
            check_horovods_options(optimizer)
        self.inner = optimizer._optimizer if around_horovod else optimizer  # Horovod offers no public way to it
        check_inner_optimizer(self.inner, self.config)
        self.communicator = communicator or (HorovodWorkers() if around_horovod else None)
        self.compressor = None
        self._open_step = None

    def compute_gradients(self, loss, var_list=None, **options):
        """Pairs of gradient, compressed, and variable; where this optimizer exchanges, combined over all workers.

        Arguments are those of ``tf.compat.v1.train.Optimizer``. Inside Horovod's optimizer, a gradient that is sent in
        part is a flat ``tf.IndexedSlices``, one row an element, which `apply_gradients` brings back to its shape.
        """
        gradients, variables = zip(*self.inner.compute_gradients(loss, var_list, **options), strict=True)
        if self.sparse_to_dense:
            gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
        if self.compressor is None:
            with tf.init_scope():
                self.compressor = Compressor(self.config, variables, communicator_here(self.communicator))
        if [id(variable) for variable in variables] != [id(variable) for variable in self.compressor.trained]:
            raise ValueError(
                f"var_list must hold the variables of the first call, {self.compressor.names}, in their order; got "
                f"{[variable.name for variable in variables]}. Use an optimizer for each list"
            )
        if self.communicator is None:
            self._open_step = OpenStep(self.compressor, list(gradients))
            updates = self._open_step.updates
        else:
            updates, _ = self.compressor([list(gradients)])
        return list(zip(updates, variables, strict=True))

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Apply what `compute_gradients` returned, in its order, as it is or combined by Horovod.

        Raises:
            LabError: several ranks train, and nobody has exchanged the gradients.
            tf.errors.InvalidArgumentError: a rank's gradient held NaN or infinity; on all ranks.
        """
        updates, variables = map(list, zip(*grads_and_vars, strict=True))
        if self.communicator is None:
            if self._open_step is None:
                raise LabError("compute_gradients must come before apply_gradients: it compresses them")
            ranks, pairs = default_communicator().size, zip(updates, self._open_step.updates, strict=False)
            if ranks > 1 and any(update is not None and update is given for update, given in pairs):
                raise LabError(
                    f"{ranks} ranks train, and nobody exchanged their gradients: put "
                    "horovod.tensorflow.DistributedOptimizer around this optimizer, or this optimizer around it"
                )
            updates = self._open_step.finish(updates)
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
        return {"velocity": self.compressor.velocities(), "residual": self.compressor.residuals()}


class OpenStep:
    """A compressor's step whose exchange Horovod's optimizer makes between its two halves.

    Attributes:
        updates: this worker's own, one per variable, for Horovod to exchange; NaN where a gradient is not finite, which
            tells all other workers. A compressed gradient is a flat ``tf.IndexedSlices``; from the break-even ratio on
            it is a tensor with zeros, unless the ratio is a tensor: whether indices are sent must be known beforehand.
    """

    def __init__(self, compressor: Compressor, gradients: list):
        self.compressor = compressor
        [own], ratio = compressor.prepared([gradients]), compressor.ratio_of_step()
        self.own, self.steps, self.updates = own, compressor.started(0, own, ratio), [None] * len(gradients)
        asked, gathered, parts = [next(step) for step in self.steps], [], compressor.parts
        entry_bytes = tf.as_dtype(compressor.config.values).size + tf.int32.size  # Horovod sends no run lengths
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
                found = dict(zip(own.compressed, slices_of(question.indices, values, own.sizes), strict=True))
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
        finite = parts.non_finite(own, asked) < 0
        self.updates = [poison_with_nan(update, finite) for update in self.updates]

    def finish(self, updates: list) -> list:
        """Return the updates for plain SGD, from the ones that were exchanged; the state is stored with them."""
        own, compressor, done = self.own, self.compressor, {}
        for i, (update, name) in enumerate(zip(updates, compressor.names, strict=True)):
            if i in own.rows:
                width = compressor.parts.shapes[i][1:].num_elements()
                if isinstance(update, tf.IndexedSlices):
                    update = sum_duplicate_rows(update)
                else:  # Horovod has made it dense
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
        with tf.control_dependencies(tf.nest.flatten(done)):  # nothing is stored before everything is finite
            checked = tf.identity([[-1.0]])
        outcome = Outcome(
            [update for update, _, _ in results],
            flatten([done[i] for i in own.uncompressed]),
            [done[i] for i in own.rows],
            [[state for _, _, state in results]],
            checked,
            self.bytes_sent,
            self.num_sent,
        )
        return compressor.commit(own, outcome, None, [])[0]


def slices_of(indices, values, sizes) -> list[tf.IndexedSlices]:
    """Return the entries of a flat vector as those of each of its tensors."""
    ends = tf.searchsorted(indices, np.cumsum(sizes).astype(np.int32))
    counts, start, slices = ends - tf.concat([[0], ends[:-1]], 0), 0, []
    pairs = zip(tf.split(indices, counts, num=len(sizes)), tf.split(values, counts, num=len(sizes)), strict=True)
    for (own, numbers), size in zip(pairs, sizes, strict=True):
        slices.append(tf.IndexedSlices(numbers, own - start, tf.constant([size])))
        start += size
    return slices


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
