"""Update of each variable, computed from the common result of an exchange."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from dgc_lab.compression import native
from dgc_lab.compression.gradients import flatten, unflatten
from dgc_lab.compression.parts import GradientVectors, Parts
from dgc_lab.compression.scheme import SparseVector
from dgc_lab.compression.wrappers import momentum_step


class Report(NamedTuple):
    """Amounts that one step sent: means over the workers in this process, so per rank under Horovod.

    Attributes:
        allreduce_bytes, allgather_bytes: int64 scalars, bytes sent by these collectives.
        num_sent: float64 (variables,), elements of each gradient that were sent; all of a tensor's elements if the
            scheme sends them in another form than `SparseMean`.
        metadata: float32 (workers, numbers), each worker's metadata.
    """

    allreduce_bytes: tf.Tensor
    allgather_bytes: tf.Tensor
    num_sent: tf.Tensor
    metadata: tf.Tensor


class Outcome(NamedTuple):
    """Result of an exchange, the same on all workers, and each worker's new state.

    Attributes:
        updates: updates of the compressed tensors: one vector, or one tensor each if the scheme works per tensor.
        mean: float32 vector, the update of the uncompressed variables.
        velocity: their new velocity, a list of one vector; empty without momentum.
        rows: (values, row numbers) of each gradient of rows.
        states: for each worker in this process, its state, like an element of ``Compressor.states``.
        table: float32 (workers, 1 + numbers): number of a non-finite gradient or -1, and metadata.
        bytes_sent: int64 (2,), bytes that the workers in this process sent by allreduce and by allgather.
        num_sent: float64 (variables,), elements sent, mean over the workers in this process.
    """

    updates: list
    mean: tf.Tensor
    velocity: list
    rows: list
    states: list
    table: tf.Tensor
    bytes_sent: tf.Tensor
    num_sent: tf.Tensor


class Update(NamedTuple):
    """The update of a step for plain SGD, before the learning rate.

    Attributes:
        parts, trained: the model's variables.
        partition: a worker's `GradientVectors`, which group the variables by the way they are exchanged.
        compressed: the update of the compressed ones: one vector, or one tensor each if the scheme works per tensor.
        uncompressed: float32 vector, the update of the uncompressed ones.
        rows: values and row numbers of each gradient of rows.
    """

    parts: Parts
    trained: list
    partition: GradientVectors
    compressed: list
    uncompressed: tf.Tensor
    rows: list

    def by_variable(self) -> list:
        """Return one update per variable, in its dtype; None if it has no gradient."""
        found = self.parts.by_variable(self.uncompressed, self.partition.uncompressed)
        if self.parts.per_tensor:
            found |= dict(zip(self.partition.compressed, self.compressed, strict=True))
        elif self.compressed:
            found |= self.parts.by_variable(tf.convert_to_tensor(self.compressed[0]), self.partition.compressed)
        found = {i: tf.cast(update, self.trained[i].dtype) for i, update in found.items()} | self._slices()
        return [found.get(i) for i in range(len(self.trained))]

    def subtract(self, learning_rate: tf.Tensor) -> list:
        """Subtract the learning rate times the update from the variables, and return the operations that do so."""
        compressed = flatten(self.compressed) if self.parts.per_tensor else next(iter(self.compressed), None)
        done = subtract([self.trained[i] for i in self.partition.compressed], compressed, learning_rate)
        done += subtract([self.trained[i] for i in self.partition.uncompressed], self.uncompressed, learning_rate)
        for i, update in self._slices().items():
            values = tf.cast(learning_rate, update.dtype) * update.values
            done.append(self.trained[i].scatter_sub(tf.IndexedSlices(values, update.indices)))
        return done

    def _slices(self) -> dict:
        slices = {}
        for i, (values, numbers) in zip(self.partition.rows, self.rows, strict=True):
            shape = self.parts.shapes[i]
            values = tf.reshape(tf.cast(values, self.trained[i].dtype), [-1, *shape[1:]])
            slices[i] = tf.IndexedSlices(values, numbers, tf.constant(shape.as_list()))
        return slices


def rows_with_momentum(parts: Parts, i: int, values, numbers, velocities: list, changes: list, momentum, nesterov):
    """Return the update of some rows of variable ``i`` with momentum, and the changes with their new velocity.

    Their velocity lies in each of ``velocities``, flat vectors of the compressed or of the uncompressed variables.
    """
    among = parts.compressed if i in parts.compressed else parts.uncompressed
    positions = parts.positions(i, numbers, among)
    new = {id(variable): value for variable, value in changes}
    for variable in velocities:
        vector = tf.convert_to_tensor(new.get(id(variable), variable))
        velocity, update = momentum_step(tf.gather(vector, positions), values, momentum, nesterov)
        vector = tf.tensor_scatter_nd_update(vector, positions[..., None], velocity)
        changes = [pair for pair in changes if pair[0] is not variable] + [(variable, vector)]
    return update, changes


def subtract(variables: list, update, learning_rate: tf.Tensor) -> list:
    """Subtract the learning rate times a flat update from variables, and return the operations that do so.

    The entries of a `SparseVector` change only the weights that they belong to.
    """
    if not variables:
        return []
    operations = native.operations()
    if operations and all(variable.dtype == tf.float32 for variable in variables):
        entries, mean = (update.entries, update.dense) if isinstance(update, SparseVector) else ([], update)
        indices, values = [pair[0] for pair in entries], [pair[1] for pair in entries]
        handles = [variable.handle for variable in variables]
        return [operations.dgc_subtract(handles, indices, values, mean, learning_rate)]
    changes = unflatten(learning_rate * tf.convert_to_tensor(update), [variable.shape for variable in variables])
    return [
        variable.assign_sub(tf.cast(change, variable.dtype))
        for variable, change in zip(variables, changes, strict=True)
    ]


def wait_for(updates: list, operations: list) -> list:
    """Return the same updates (tensors, rows or None) as new nodes, which wait for the operations."""
    with tf.control_dependencies(operations):
        return [u if u is None else tf.nest.map_structure(tf.identity, u, expand_composites=True) for u in updates]
