"""Several tensors as one flat tensor, one after another, and back.

Pure functions. A step sends all tensors in one message; their elements are numbered through.
"""

from __future__ import annotations

import tensorflow as tf


def flatten(tensors, dtype=tf.float32):
    """Tensors of one dtype and any shapes as one flat tensor; an empty one of ``dtype`` when there are none.

    Example:
        >>> flatten([tf.constant([[1.0], [2.0]]), tf.constant(3.0)]).numpy().tolist()
        [1.0, 2.0, 3.0]
    """
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0) if tensors else tf.zeros([0], dtype)


def unflatten(flat, shapes) -> list:
    """The opposite of `flatten`: tensors of these shapes.

    Example:
        >>> [tensor.numpy().tolist() for tensor in unflatten(tf.constant([1.0, 2.0, 3.0]), [[2, 1], []])]
        [[[1.0], [2.0]], 3.0]
    """
    sizes = [tf.TensorShape(shape).num_elements() for shape in shapes]
    tensors = tf.split(flat, sizes) if sizes else []
    return [tf.reshape(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)]


def global_indices(indices, sizes):
    """Indices in several tensors as indices in all of them joined.

    Args:
        indices: int32 tensor of any length for each tensor.
        sizes: elements of each tensor.

    Returns:
        int32 tensor.

    Raises:
        ValueError: the tensors have 2**31 elements or more together, which int32 cannot number.

    Example:
        >>> global_indices([tf.constant([0, 2]), tf.constant([1])], [3, 5]).numpy().tolist()
        [0, 2, 4]
    """
    return flatten([own + start for own, start in zip(indices, _starts(sizes), strict=True)], tf.int32)


def scatter_add(indices, values, sizes, onto=None) -> list:
    """Each tensor, from what `global_indices` numbered: the sum of the values that name an element, zero elsewhere.

    Args:
        indices: int32 tensor (k,); an element may be named several times, and is then added up in this order.
        values: floating-point tensor (k,).
        sizes: elements of each tensor.
        onto: flat float32 tensors of these sizes that the sums are added to, in place of zeros.

    Returns:
        A flat float32 tensor for each size.

    Raises:
        ValueError: as `global_indices`.

    Example:
        >>> first, second = scatter_add(tf.constant([0, 4, 0]), tf.constant([1.0, 2.0, 4.0]), [3, 5])
        >>> first.numpy().tolist(), second.numpy().tolist()
        ([5.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0, 0.0])
        >>> scatter_add(tf.constant([1]), tf.constant([4.0]), [2], onto=[tf.constant([1.0, 2.0])])[0].numpy().tolist()
        [1.0, 6.0]
    """
    starts = tf.constant(_starts(sizes), tf.int32)
    owner = tf.searchsorted(starts, indices, side="right") - 1
    places = tf.dynamic_partition(indices - tf.gather(starts, owner), owner, len(sizes))
    values = tf.dynamic_partition(tf.cast(values, tf.float32), owner, len(sizes))
    if onto is None:
        return [tf.scatter_nd(p[:, None], v, [size]) for p, v, size in zip(places, values, sizes, strict=True)]
    # A copy and the few additions: a tensor of zeros, filled and then added, would be written and read once more.
    return [
        tf.raw_ops.ScatterNdNonAliasingAdd(input=x, indices=p[:, None], updates=v)
        for x, p, v in zip(onto, places, values, strict=True)
    ]


def _starts(sizes):
    if sum(sizes) >= 2**31:
        raise ValueError(f"sizes must add up to less than 2**31 elements, got {sum(sizes)}")
    return [sum(sizes[:i]) for i in range(len(sizes))]


def nbytes(tensors):
    """Bytes of a list of tensors, int64 scalar."""
    return tf.add_n([tf.zeros([], tf.int64), *(tf.size(tensor, tf.int64) * tensor.dtype.size for tensor in tensors)])
