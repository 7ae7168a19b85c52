"""Wire format of a worker's step: 16-bit run lengths of zeros, and one message for everything that is gathered.

Pure functions on tensors, of any length and inside ``tf.function``.

A message is bytes in this order, numbers as the processor stores them (little-endian on all that TensorFlow supports):

| part | type | how many |
|---|---|---|
| counts: entries of each sparse vector, elements of each other tensor | int32 | sparse vectors + tensors |
| numbers of fixed length: metadata, short dense tensors | float32 | ``Layout.fixed`` |
| of each sparse vector, the values of its entries | ``Layout.values`` | by the counts |
| and their positions | int32 or uint16 | by the counts |
| the other tensors | ``Layout.tensors`` | by the counts |

Sources: arXiv:1712.01887, section 3 (values of 32 bits, run lengths of zeros of 16); arXiv:1510.00149, section 2 (an
entry of value zero where the distance does not fit).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from dgc_lab.common import check_choice

#: Types that sparse values can travel as.
VALUE_TYPES = ("float32", "float16")
#: Encodings of positions, and the type of each number: positions, or the elements between one and the next.
INDEX_TYPES = {"int32": tf.int32, "run_lengths": tf.uint16}
LONGEST_RUN = 2**16 - 1  # zeros that one entry can skip


def run_lengths(indices: tf.Tensor, values: tf.Tensor):
    """Return positions as the number of elements between each and the one before it.

    A gap of more than 65 535 elements does not fit: an entry of value 0 is inserted, which represents 65 535 skipped
    elements and itself. There is one for every 65 536 elements skipped.

    Args:
        indices: int32 tensor (k,), ascending and distinct.
        values: tensor (k,) of any floating-point type.

    Returns:
        ``(runs, values)``: uint16 (m,) and the values' type (m,), with m - k inserted entries.

    Example:
        >>> runs, values = run_lengths(tf.constant([3, 4, 70_000]), tf.constant([1.0, 2.0, 3.0]))
        >>> runs.numpy().tolist(), values.numpy().tolist()
        ([3, 0, 65535, 4459], [1.0, 2.0, 0.0, 3.0])
    """
    skipped = indices - tf.concat([[-1], indices[:-1]], axis=0) - 1
    extra = skipped // (LONGEST_RUN + 1)

    def fill_in():
        at = (tf.range(tf.size(indices)) + tf.cumsum(extra))[:, None]
        entries = tf.size(indices) + tf.reduce_sum(extra)
        runs = tf.tensor_scatter_nd_update(tf.fill([entries], LONGEST_RUN), at, skipped % (LONGEST_RUN + 1))
        # An update, not a sum: adding to 0.0 would turn -0.0 into 0.0.
        spread = tf.tensor_scatter_nd_update(tf.zeros([entries], values.dtype), at, values)
        return tf.cast(runs, tf.uint16), spread

    return tf.cond(tf.reduce_any(extra > 0), fill_in, lambda: (tf.cast(skipped, tf.uint16), tf.identity(values)))


def positions(runs: tf.Tensor):
    """Return the positions of entries, int32 (m,), ascending, from the ``runs``, uint16 (m,), of `run_lengths`.

    Inserted entries are among them.

    Example:
        >>> positions(tf.constant([3, 0, 65535, 4459], tf.uint16)).numpy().tolist()
        [3, 4, 65540, 70000]
    """
    return tf.cumsum(tf.cast(runs, tf.int32) + 1) - 1


def add_in_order(tensors):
    """Return the sum of a list of tensors, added in their order: the same bits each time.

    TensorFlow's ``AddN``, to which a graph also converts chains of additions, begins with the tensor whose memory is
    free first; reductions of many tensors, or on a GPU, add in parts. ``Snapshot`` copies nothing and ends a chain.

    Example:
        >>> add_in_order([tf.constant(1e8), tf.constant(-1e8), tf.constant(1.0)]).numpy().item()
        1.0
    """
    return functools.reduce(lambda total, tensor: tf.raw_ops.Snapshot(input=total + tensor), tensors)


def nbytes(tensors):
    """Return the bytes of a list of tensors, int64 scalar."""
    return tf.add_n([tf.zeros([], tf.int64), *(tf.size(tensor, tf.int64) * tensor.dtype.size for tensor in tensors)])


class Message(NamedTuple):
    """One worker's message in a round: ``fixed`` is float32, ``entries`` are (indices, values) of sparse vectors."""

    fixed: tf.Tensor
    entries: list[tuple[tf.Tensor, tf.Tensor]]
    tensors: list[tf.Tensor]


@dataclass(frozen=True)
class Layout:
    """Layout of a round's messages, known before it runs and the same for all workers.

    Attributes:
        values, indices: types of sparse entries, from `VALUE_TYPES` and `INDEX_TYPES`.
        fixed: number of elements of fixed length.
        sparse: number of sparse vectors.
        tensors: dtype and inner shape of each other tensor; the shape of a scalar is None.

    Raises:
        ValueError: values or indices is not one of those types.

    Example:
        >>> Layout("float16", "run_lengths").entry_bytes, Layout(fixed=1, sparse=1).header_bytes
        (4, 8)
    """

    values: str = "float32"
    indices: str = "int32"
    fixed: int = 0
    sparse: int = 0
    tensors: tuple = ()

    def __post_init__(self):
        check_choice("values", self.values, VALUE_TYPES)
        check_choice("indices", self.indices, INDEX_TYPES)

    @property
    def index_type(self) -> tf.DType:
        """Type of the numbers that encode positions."""
        return INDEX_TYPES[self.indices]

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry."""
        return tf.as_dtype(self.values).size + self.index_type.size

    @property
    def header_bytes(self) -> int:
        """Bytes of counts and numbers of fixed length."""
        return 4 * (self.sparse + len(self.tensors) + self.fixed)


def pack(message: Message, layout: Layout):
    """Return one worker's message as a uint8 tensor (bytes,); the values of entries are float32, or already rounded."""
    counts, parts = [], []
    for indices, values in message.entries:
        values = tf.cast(values, layout.values)
        if layout.indices == "run_lengths":
            indices, values = run_lengths(indices, values)
        counts.append(tf.size(values))
        parts += [values, indices]
    counts += [tf.size(tensor) for tensor in message.tensors]
    head = [as_bytes(tf.stack(counts))] if counts else []
    return tf.concat([*head, *map(as_bytes, (message.fixed, *parts, *message.tensors))], 0)


def unpack(messages, layout: Layout, workers: int) -> list[Message]:
    """Return the contents of all workers' messages, uint8 (bytes,), concatenated as by an allgather.

    Returns:
        A `Message` for each worker, with float32 values. With run lengths, entries of value 0 may be among the others
        (`run_lengths`); adding them changes nothing.

    Raises:
        tf.errors.InvalidArgumentError: the bytes are not messages of this layout, because they are too few or too many.

    Example:
        >>> layout, values = Layout("float16", "run_lengths", fixed=1, sparse=1), tf.constant([0.5, 2.0])
        >>> message = pack(Message(tf.constant([7.0]), [(tf.constant([5, 9]), values)], []), layout)
        >>> first, second = unpack(tf.concat([message, message], 0), layout, workers=2)
        >>> [[indices, values]] = second.entries
        >>> len(message), indices.numpy().tolist(), values.numpy().tolist()
        (16, [5, 9], [0.5, 2.0])
    """
    # Of each part after the counts: its dtype, and the index of its count.
    kinds = [(tf.as_dtype(kind), i) for i in range(layout.sparse) for kind in (layout.values, layout.index_type)]
    kinds += [(tf.as_dtype(dtype), layout.sparse + i) for i, (dtype, _) in enumerate(layout.tensors)]
    number, widths = layout.sparse + len(layout.tensors), tf.constant([kind.size for kind, _ in kinds], tf.int64)
    start = tf.constant(0, tf.int64)  # all messages together can be longer than int32 reaches
    heads, lengths = [tf.zeros([0], tf.int32)], []
    for _ in range(workers):
        heads.append(numbers_in(messages[start : start + 4 * number], tf.int32, number))
        each = widths * tf.cast(tf.gather(heads[-1], tf.constant([i for _, i in kinds], tf.int32)), tf.int64)
        lengths.append(tf.concat([tf.constant([4 * number, 4 * layout.fixed], tf.int64), each], 0))
        start += tf.reduce_sum(lengths[-1])
    right = tf.equal(start, tf.size(messages, tf.int64)) & tf.reduce_all(tf.concat(heads, 0) >= 0)
    check = tf.debugging.Assert(right, ["messages must end where their counts say, and no count may be negative"])
    # A session would not run the check by itself; run eagerly it has raised already.
    with tf.control_dependencies([check] if check is not None else []):
        parts = tf.split(tf.identity(messages), tf.concat(lengths, 0), num=workers * (2 + len(kinds)))
    each = 2 + len(kinds)
    return [read(parts[each * worker : each * (worker + 1)], kinds, layout) for worker in range(workers)]


def read(parts: list, kinds: list, layout: Layout) -> Message:
    """Return the message decoded from its parts' bytes: counts, numbers of fixed length, and parts of these kinds."""
    _, fixed, *rest = parts
    rest = [numbers_in(part, dtype) for part, (dtype, _) in zip(rest, kinds, strict=True)]
    entries, tensors = [], rest[2 * layout.sparse :]
    for values, where in zip(rest[: 2 * layout.sparse : 2], rest[1 : 2 * layout.sparse : 2], strict=True):
        entries.append((positions(where) if layout.indices == "run_lengths" else where, tf.cast(values, tf.float32)))
    shapes = [[] if inner is None else [-1, *inner] for _, inner in layout.tensors]
    tensors = [tf.reshape(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)]
    return Message(numbers_in(fixed, tf.float32, layout.fixed), entries, tensors)


def numbers_in(part, dtype, count: int = -1) -> tf.Tensor:
    """Return bytes as numbers of a dtype, ``(count,)``."""
    size = tf.as_dtype(dtype).size
    return tf.bitcast(tf.reshape(part, [count, size] if size > 1 else [count]), dtype)


def as_bytes(tensor):
    """Return the tensor's bytes, uint8 (bytes,)."""
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])
