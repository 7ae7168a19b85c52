"""What a worker's gradient looks like on the wire: run lengths of zeros in 16 bits, and one message for all tensors.

Pure functions on tensors, of any length and inside ``tf.function``. All tensors that are sent in part are numbered
through as one: the elements of the second follow those of the first. Of these numbers either the numbers themselves
travel (int32), or how many elements lie between one that is sent and the next (uint16), the encoding of the paper's
published sizes.

A message is bytes, in this order, numbers as the processor stores them (little-endian on all that TensorFlow supports):

| part | type | how many |
|---|---|---|
| counts: entries sent, and rows of each gradient of rows | int32 | 1 + gradients of rows |
| metadata: what else every worker tells all others | float32 | ``Layout.metadata`` |
| tensors that are sent whole | float32 | ``Layout.dense`` |
| values and numbers of the rows | float32, int32 | by the counts |
| values of the entries | ``Layout.values`` | entries |
| where they stand | int32 or uint16 | entries |

Sources: arXiv:1712.01887, section 3 (values of 32 bits, run lengths of zeros of 16); arXiv:1510.00149, section 2 (an
entry of value zero where the distance does not fit).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from dgc_lab.common import check_choice

#: What sparse values can travel as.
VALUE_TYPES = ("float32", "float16")
#: How their positions can be encoded, and the type of each number: places, or the elements between one and the next.
INDEX_TYPES = {"int32": tf.int32, "run_lengths": tf.uint16}
LONGEST_RUN = 2**16 - 1  # zeros that one entry can skip


def run_lengths(indices: tf.Tensor, values: tf.Tensor):
    """Where elements stand, as the number of elements between each and the one before it.

    More than 65 535 of them do not fit: an entry of value 0 is put in, which stands for 65 535 skipped elements and
    for itself. There is one for every 65 536 elements skipped.

    Args:
        indices: int32 tensor (k,), ascending, none twice.
        values: tensor (k,) of any floating-point type.

    Returns:
        ``(runs, values)``: uint16 (m,) and the values' type (m,), with m - k entries put in.

    Example:
        >>> runs, values = run_lengths(tf.constant([3, 4, 70_000]), tf.constant([1.0, 2.0, 3.0]))
        >>> runs.numpy().tolist(), values.numpy().tolist()
        ([3, 0, 65535, 4459], [1.0, 2.0, 0.0, 3.0])
    """
    skipped = indices - tf.concat([[-1], indices[:-1]], axis=0) - 1
    extra = skipped // (LONGEST_RUN + 1)

    def fill_in():
        places = (tf.range(tf.size(indices)) + tf.cumsum(extra))[:, None]
        entries = tf.size(indices) + tf.reduce_sum(extra)
        runs = tf.tensor_scatter_nd_update(tf.fill([entries], LONGEST_RUN), places, skipped % (LONGEST_RUN + 1))
        # An update, not a sum: adding to 0.0 would turn -0.0 into 0.0.
        spread = tf.tensor_scatter_nd_update(tf.zeros([entries], values.dtype), places, values)
        return tf.cast(runs, tf.uint16), spread

    return tf.cond(tf.reduce_any(extra > 0), fill_in, lambda: (tf.cast(skipped, tf.uint16), tf.identity(values)))


def places(runs: tf.Tensor):
    """Where entries stand, from their ``runs``, uint16 (m,), as of `run_lengths`: int32 (m,), ascending.

    Those that were put in are among them.

    Example:
        >>> places(tf.constant([3, 0, 65535, 4459], tf.uint16)).numpy().tolist()
        [3, 4, 65540, 70000]
    """
    return tf.cumsum(tf.cast(runs, tf.int32) + 1) - 1


def flatten(tensors, dtype=tf.float32):
    """Tensors of one dtype and any shapes as one flat tensor; an empty one of ``dtype`` when there are none."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0) if tensors else tf.zeros([0], dtype)


def unflatten(flat, shapes) -> list:
    """The opposite of `flatten`: tensors of these shapes, at least one."""
    tensors = tf.split(flat, [shape.num_elements() for shape in shapes])
    return [tf.reshape(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)]


def global_indices(indices, sizes):
    """Indices in several tensors as int32 indices in all of them joined; ``sizes`` are the tensors' elements.

    A ValueError where these are 2**31 or more together, which int32 cannot number.
    """
    return flatten([own + start for own, start in zip(indices, _starts(sizes), strict=True)], tf.int32)


def add_in_order(tensors):
    """The sum of a list of tensors, added up in their order, to the same bits each time.

    TensorFlow's ``AddN``, and the chains of additions that a graph makes one of, begin with whichever tensor's memory
    is free first; a reduction of many, or on a GPU, adds parts of them. ``Snapshot`` copies nothing and ends a chain.

    Example:
        >>> add_in_order([tf.constant(1e8), tf.constant(-1e8), tf.constant(1.0)]).numpy().item()
        1.0
    """
    return functools.reduce(lambda total, tensor: tf.raw_ops.Snapshot(input=total + tensor), tensors)


def scatter_add(entries, sizes, onto=None) -> list:
    """Each tensor, from what `global_indices` numbered: the sum of the values that name an element, zero elsewhere.

    The workers' ``entries``, each (indices, values) with the indices ascending and none twice, are added in the order
    of the workers. A worker at a time: a GPU adds the values of one scatter in any order, and the bits of a sum of
    three would differ from rank to rank. ``onto`` are flat float32 tensors of these sizes to add to, in place of zeros.

    Example:
        >>> entries = [(tf.constant([0, 4]), tf.constant([1.0, 2.0])), (tf.constant([0]), tf.constant([4.0]))]
        >>> first, second = scatter_add(entries, [3, 5])
        >>> first.numpy().tolist(), second.numpy().tolist()
        ([5.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0, 0.0])
    """
    starts, tensors = _starts(sizes), onto
    for indices, values in entries:
        ends = tf.unstack(tf.searchsorted(indices, [*starts[1:], sum(sizes)])) if sizes else []
        slices = list(zip([0, *ends[:-1]], ends, starts, strict=True))
        parts = [(indices[a:b, None] - start, values[a:b]) for a, b, start in slices]
        if tensors is None:
            tensors = [tf.scatter_nd(*part, [size]) for part, size in zip(parts, sizes, strict=True)]
        else:  # a copy and the few additions: a tensor of zeros, filled and then added, would be one pass more
            scatter = tf.raw_ops.ScatterNdNonAliasingAdd
            tensors = [scatter(input=x, indices=i, updates=v) for x, (i, v) in zip(tensors, parts, strict=True)]
    return tensors


def nbytes(tensors):
    """Bytes of a list of tensors, int64 scalar."""
    return tf.add_n([tf.zeros([], tf.int64), *(tf.size(tensor, tf.int64) * tensor.dtype.size for tensor in tensors)])


class Content(NamedTuple):
    """What one worker tells all others in a step; ``metadata`` and ``dense`` are flat float32.

    Of each gradient of rows ``rows`` has the values, float32 (r, width), and row numbers, int32 (r,). ``indices``,
    int32 (k,), say where the entries' ``values`` (k,) stand: ascending, all tensors numbered through.
    """

    metadata: tf.Tensor
    dense: tf.Tensor
    rows: list[tuple[tf.Tensor, tf.Tensor]]
    indices: tf.Tensor
    values: tf.Tensor


@dataclass(frozen=True)
class Layout:
    """What the messages of a step hold, known before it runs and the same for all workers.

    ``values`` and ``indices`` are one of `VALUE_TYPES` and of `INDEX_TYPES`, else a ValueError. ``metadata`` is how
    many numbers a worker tells, ``dense`` how many elements are sent whole, ``rows`` how many are in one row of each
    gradient of rows.

    Example:
        >>> Layout("float16", "run_lengths").entry_bytes, Layout(rows=(3,)).header_bytes
        (4, 8)
    """

    values: str = "float32"
    indices: str = "int32"
    metadata: int = 0
    dense: int = 0
    rows: tuple[int, ...] = ()

    def __post_init__(self):
        check_choice("values", self.values, VALUE_TYPES)
        check_choice("indices", self.indices, INDEX_TYPES)

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry."""
        return tf.as_dtype(self.values).size + INDEX_TYPES[self.indices].size

    @property
    def header_bytes(self) -> int:
        """Bytes of counts and metadata."""
        return 4 * (1 + len(self.rows) + self.metadata)


def pack(content: Content, layout: Layout):
    """One worker's message, a uint8 tensor (bytes,); the content's values are of ``layout.values``."""
    positions, values = content.indices, content.values
    if layout.indices == "run_lengths":
        positions, values = run_lengths(positions, values)
    rows = [part for pair in content.rows for part in pair]
    counts = tf.stack([tf.size(values), *(tf.size(numbers) for numbers in rows[1::2])])
    return tf.concat(
        [as_bytes(part) for part in (counts, content.metadata, content.dense, *rows, values, positions)], 0
    )


class Reader:
    """Takes tensors off the front of messages, uint8 (bytes,); ``take`` wants their type and shape."""

    def __init__(self, messages):
        self.messages, self.start = messages, tf.constant(0, tf.int64)  # all of them can be longer than int32 reaches

    def take(self, dtype, *shape):
        dtype = tf.as_dtype(dtype)
        end = self.start + math.prod(tf.cast(side, tf.int64) for side in shape) * dtype.size
        part = tf.bitcast(tf.reshape(self.messages[self.start : end], [-1, dtype.size]), dtype)
        self.start = end
        return tf.reshape(part, shape)


def unpack(messages, layout: Layout, workers: int) -> list[Content]:
    """What is in the messages of all workers, uint8 (bytes,), one after another as an allgather gives them.

    Returns:
        A `Content` for each worker. Where run lengths travelled, entries of value 0 may be among the others
        (`run_lengths`); adding them up changes nothing.

    Raises:
        tf.errors.InvalidArgumentError: the bytes are no messages of this layout: too few, or too many.

    Example:
        >>> nothing, layout = tf.zeros([0]), Layout("float16", "run_lengths", metadata=1)
        >>> values = tf.constant([0.5, 2.0], tf.float16)
        >>> message = pack(Content(tf.constant([7.0]), nothing, [], tf.constant([5, 9]), values), layout)
        >>> first, second = unpack(tf.concat([message, message], 0), layout, workers=2)
        >>> len(message), second.indices.numpy().tolist(), second.values.numpy().tolist()
        (16, [5, 9], [0.5, 2.0])
    """
    reader, contents = Reader(messages), []
    for _ in range(workers):
        entries, *rows = tf.unstack(reader.take(tf.int32, 1 + len(layout.rows)))
        metadata, dense = (reader.take(tf.float32, size) for size in (layout.metadata, layout.dense))
        rows = [
            (reader.take(tf.float32, r, width), reader.take(tf.int32, r))
            for r, width in zip(rows, layout.rows, strict=True)
        ]
        values, positions = (reader.take(dtype, entries) for dtype in (layout.values, INDEX_TYPES[layout.indices]))
        indices = places(positions) if layout.indices == "run_lengths" else positions
        contents.append(Content(metadata, dense, rows, indices, values))
    ends = tf.debugging.assert_equal(reader.start, tf.size(messages, tf.int64), "messages must end where counts say")
    with tf.control_dependencies([] if ends is None else [ends]):  # which a session would not run by itself
        contents[0] = contents[0]._replace(indices=tf.identity(contents[0].indices))
    return contents


def as_bytes(tensor):
    """The tensor's bytes, uint8 (bytes,)."""
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])


def _starts(sizes):
    if sum(sizes) >= 2**31:
        raise ValueError(f"sizes must add up to less than 2**31 elements, got {sum(sizes)}")
    return [sum(sizes[:i]) for i in range(len(sizes))]
