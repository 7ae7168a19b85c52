"""Selection of the tensors to compress, and the layout of their gradients and states in flat vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.driver import Wire
from dgc_lab.compression.gradients import ends_of, first_non_finite, flatten, unflatten
from dgc_lab.compression.scheme import AllGather, AllReduceMean, SparseMean


class GradientVectors(NamedTuple):
    """One worker's gradients in a step, grouped by the way they are exchanged.

    Attributes:
        compressed, uncompressed, rows: numbers of the variables whose gradients are compressed, sent uncompressed, and
            sent as the rows that were used (embeddings).
        tensors: gradients of the compressed variables.
        vector: float32 (u,), gradients of the uncompressed variables one after another.
        slices: gradients of rows, float32 (r, width) and int32 (r,) each.
        sizes: elements of each compressed tensor.
        metadata: float32 vector for all workers.
        unclipped: the same gradients before clipping; None if nothing is clipped.
    """

    compressed: list[int]
    uncompressed: list[int]
    rows: list[int]
    tensors: list[tf.Tensor]
    vector: tf.Tensor
    slices: list[tuple[tf.Tensor, tf.Tensor]]
    sizes: tuple[int, ...]
    metadata: tf.Tensor
    unclipped: GradientVectors | None = None

    def each(self, shapes: list) -> list[tf.Tensor]:
        """Return the gradients of compressed, then of uncompressed variables."""
        return [*self.tensors, *unflatten(self.vector, [shapes[i] for i in self.uncompressed])]

    def with_each(self, gradients: list[tf.Tensor]) -> GradientVectors:
        """Return a copy with other gradients, in the order of `each`."""
        count = len(self.compressed)
        return self._replace(tensors=gradients[:count], vector=flatten(gradients[count:]))


class Parts:
    """The partition of a model's variables into compressed and uncompressed ones.

    With ``per_tensor`` a scheme gets each compressed tensor in its own shape, otherwise one flat vector of all of them.
    """

    def __init__(self, variables: Sequence, config: DGCConfig, per_tensor: bool):
        for variable in variables:
            if not variable.dtype.is_floating:
                raise ValueError(
                    f"variables must hold floating-point numbers, got {variable.dtype.name} in {variable.name}: train "
                    "real and imaginary parts of complex numbers as two variables"
                )
        self.per_tensor = per_tensor
        self.shapes = [tf.TensorShape(variable.shape) for variable in variables]
        self.sizes = [shape.num_elements() for shape in self.shapes]
        every = range(len(self.shapes))
        self.compressed = [i for i in every if self.sizes[i] and not config.is_dense(self.shapes[i])]
        self.uncompressed = [i for i in every if i not in self.compressed]
        if (elements := sum(self.sizes[i] for i in self.compressed)) >= 2**31:
            raise ValueError(
                f"variables must have less than 2**31 elements to compress, which int32 numbers, got {elements}"
            )

    def zeros(self, numbers: list[int]) -> tf.Tensor:
        """Return zeros of the length of the flat vector of these variables."""
        return tf.zeros([sum(self.sizes[i] for i in numbers)])

    def first_state(self, init: Callable) -> list:
        """Return a worker's first state, which ``init`` makes for the flat vector or for each compressed tensor."""
        if self.per_tensor:
            return [init(tf.zeros(self.shapes[i])) for i in self.compressed]
        return [init(self.zeros(self.compressed))] if self.compressed else []

    def vectors(self, unclipped: Sequence, gradients: Sequence, metadata: tf.Tensor) -> GradientVectors:
        """Return a worker's gradients, float32, grouped by the way they are exchanged."""
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        rows = [i for i in there if isinstance(gradients[i], tf.IndexedSlices)]
        compressed = [i for i in self.compressed if i in there and i not in rows]
        uncompressed = [i for i in self.uncompressed if i in there and i not in rows]
        slices = []
        for i in rows:
            values = tf.reshape(gradients[i].values, [-1, self.shapes[i][1:].num_elements()])
            slices.append((values, tf.cast(gradients[i].indices, tf.int32)))
        vector, tensors = flatten([gradients[i] for i in uncompressed]), [gradients[i] for i in compressed]
        before = None if unclipped is gradients else self.vectors(unclipped, unclipped, metadata)
        sizes = tuple(self.sizes[i] for i in compressed)
        return GradientVectors(compressed, uncompressed, rows, tensors, vector, slices, sizes, metadata, before)

    def pick(self, vector, chosen: list[int], among: list[int]) -> tf.Tensor:
        """Return the part of a flat vector of the variables ``among`` that belongs to those ``chosen``."""
        if chosen == among:
            return tf.convert_to_tensor(vector)
        parts = dict(zip(among, tf.split(vector, [self.sizes[i] for i in among]), strict=True))
        return tf.concat([parts[i] for i in chosen], 0) if chosen else tf.zeros([0])

    def put(self, vector, part, chosen: list[int], among: list[int]) -> tf.Tensor:
        """Return a flat vector of the variables ``among`` in which the part of those ``chosen`` is replaced."""
        if chosen == among:
            return part
        parts = dict(zip(among, tf.split(vector, [self.sizes[i] for i in among]), strict=True))
        parts |= dict(zip(chosen, tf.split(part, [self.sizes[i] for i in chosen]), strict=True))
        return tf.concat(list(parts.values()), 0)

    def pick_state(self, state: list, own: GradientVectors) -> list:
        """Return a worker's state for the compressed tensors that have gradients in this step."""
        if self.per_tensor:
            return tf.nest.map_structure(
                tf.convert_to_tensor, [state[self.compressed.index(i)] for i in own.compressed]
            )

        def pick(part):
            whole = part.shape == [sum(self.sizes[i] for i in self.compressed)]
            return self.pick(part, own.compressed, self.compressed) if whole else tf.convert_to_tensor(part)

        return tf.nest.map_structure(pick, state) if own.compressed else []

    def put_state(self, state: list, new: list, own: GradientVectors) -> list:
        """Return pairs of a variable of a worker's state and its new value."""
        if self.per_tensor:
            state = [state[self.compressed.index(i)] for i in own.compressed]
        pairs = zip(tf.nest.flatten(state), tf.nest.flatten(new), strict=True) if own.compressed else []
        if self.per_tensor or own.compressed == self.compressed:
            return list(pairs)
        whole = [sum(self.sizes[i] for i in self.compressed)]
        put = lambda old, part: self.put(old, part, own.compressed, self.compressed)  # noqa: E731
        return [(old, put(old, part) if old.shape == whole else part) for old, part in pairs]

    def pick_velocity(self, velocity, own: GradientVectors) -> list:
        """Return the velocity of the uncompressed tensors with gradients in this step; nothing if there is none."""
        has = velocity is not None and own.uncompressed
        return [self.pick(velocity, own.uncompressed, self.uncompressed)] if has else []

    def num_sent(self, own: GradientVectors, asked: Sequence) -> tf.Tensor:
        """Return how many elements of each variable's gradient a worker sends: float64 (variables,)."""
        whole = {*own.compressed, *own.uncompressed}
        counts = tf.constant([size if i in whole else 0 for i, size in enumerate(self.sizes)], tf.float64)

        def updated(counts, chosen, some):
            return tf.tensor_scatter_nd_update(counts, [[i] for i in chosen], tf.cast(some, tf.float64))

        for place, question in enumerate(asked):
            if isinstance(question, SparseMean):
                chosen = own.compressed[place : place + 1] if self.per_tensor else own.compressed
                ends = tf.constant([0, *ends_of([self.sizes[i] for i in chosen])], tf.int32)
                before = tf.searchsorted(question.indices, ends)
                counts = updated(counts, chosen, before[1:] - before[:-1])
        for i, (values, _) in zip(own.rows, own.slices, strict=True):
            counts = updated(counts, [i], tf.size(values)[None])
        return counts

    def by_variable(self, vector, numbers: list[int]) -> dict:
        """Split a flat vector of these variables into tensors of their shapes, by number."""
        return dict(zip(numbers, unflatten(vector, [self.shapes[i] for i in numbers]), strict=True))

    def positions(self, i: int, rows: tf.Tensor, among: list[int]) -> tf.Tensor:
        """Return the positions of rows of variable ``i`` in the flat vector of ``among``: int32 (rows, width)."""
        start, width = sum(self.sizes[j] for j in among[: among.index(i)]), self.shapes[i][1:].num_elements()
        return start + rows[:, None] * width + tf.range(width)

    def non_finite(self, workers: list[GradientVectors], asked: list) -> tf.Tensor:
        """Return the number of each worker's first variable with NaN or infinity, or -1: float32 (workers,).

        Args:
            workers: each worker's gradients.
            asked: each worker's first questions if they include all such elements; otherwise empty lists.
        """
        partition = workers[0]
        numbers = [*partition.compressed, *partition.uncompressed, *partition.rows]
        if not numbers:
            return tf.fill([len(workers)], -1.0)
        sizes = [*partition.sizes, *(self.sizes[i] for i in partition.uncompressed), *[1] * len(partition.rows)]
        ends = ends_of(sizes)
        pairs = [self._checked_values(own, questions, ends) for own, questions in zip(workers, asked, strict=True)]
        return first_non_finite(pairs, numbers, ends)

    def _checked_values(self, own: GradientVectors, asked: Sequence, ends: list[int]) -> list:
        """Return pairs of values and positions that show whether a worker's gradients are finite."""
        # Clipping spreads NaN over all gradients, so those before it come first.
        pairs = self._checked_values(own.unclipped, [], ends) if own.unclipped else []
        if asked and isinstance(asked[0], SparseMean) and not self.per_tensor:
            pairs.append((asked[0].values, asked[0].indices))
        elif own.tensors:  # a norm that overflows is of no use to a scheme either
            norms = tf.stack([tf.norm(tensor) for tensor in own.tensors])
            pairs.append((norms, tf.constant([end - 1 for end in ends[: len(own.tensors)]], tf.int32)))
        if own.uncompressed:
            pairs.append((own.vector, sum(own.sizes)))
        if own.slices:
            sums = tf.stack([tf.reduce_sum(values) for values, _ in own.slices])
            pairs.append((sums, ends[-1] - len(own.slices)))
        return pairs


def uncompressed_mean(vector: tf.Tensor):
    """Ask for the mean of a vector that is sent uncompressed: a step that runs alongside the scheme's."""
    return (yield AllReduceMean(vector))


def row_mean(rows: tuple, wire: Wire):
    """Ask for all workers' rows; return the mean and the number of each distinct row."""
    values, numbers = rows
    width = values.shape[1]
    # As one tensor, which has one length.
    everyone = yield AllGather((tf.concat([tf.bitcast(values, tf.int32), numbers[:, None]], 1),))
    parts = [(tf.bitcast(rows[:, :width], tf.float32), rows[:, width]) for (rows,) in everyone]
    every, positions = tf.unique(tf.concat([own for _, own in parts], 0))
    total = tf.zeros([tf.size(every), width])
    # A worker at a time, as in `SparseVector`.
    for (values, _), own in zip(parts, tf.split(positions, [tf.size(own) for _, own in parts]), strict=True):
        total = tf.tensor_scatter_nd_add(total, own[:, None], values)
    return wire.mean(total, len(parts)), every
