"""What the schemes of lesson 8 are made of: elements that pass, numbers in few bits, rounding by chance."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from numpy.typing import ArrayLike

from dgc_lab.common import Seed, check_whole
from dgc_lab.dgc.selection import select
from dgc_lab.dgc.thresholding import Ratio, sampled_threshold
from dgc_lab.dgc.wire_format import add_in_order, scatter_add
from dgc_lab.schemes.scheme import Mean, Scheme, Turn


def sent_alone(scheme: Scheme, gradient: ArrayLike, seed: int = 0, own_seed: int = 0):
    """What one worker's message stands for, float32, of a gradient of any shape and the scheme's first state.

    With nobody else there, the answer to each question is what was asked. ``seed`` and ``own_seed`` are numbers, for
    what all workers draw and for what this one does.

    Example:
        >>> from dgc_lab.schemes import int8
        >>> sent_alone(int8(), [127.0, 3.2]).numpy().tolist()
        [127.0, 3.0]
    """
    gradient, answer = tf.convert_to_tensor(gradient, tf.float32), None
    turn = Turn(tf.stack([seed, 0]), tf.stack([own_seed, 1]), workers=1)
    step = scheme.step(gradient, scheme.init(tf.zeros_like(gradient)), turn)
    try:
        while True:
            question = step.send(answer)
            answer = question.tensor if isinstance(question, Mean) else [question.tensors]
    except StopIteration as end:
        _, own, _ = end.value
        return own


def largest(x: tf.Tensor, ratio: Ratio, seed: Seed):
    """The share ``ratio`` of the elements of ``x`` that is largest in magnitude: int32 indices, and values.

    By a sampled threshold (`dgc_lab.dgc.sampled_threshold`), drawn with ``seed``, int32 (2,).

    Source: arXiv:1712.01887, section 5.

    Example:
        >>> indices, values = largest(tf.constant([0.25, -0.5, 0.0, 0.1]), 0.25, (0, 0))
        >>> indices.numpy().tolist(), values.numpy().tolist()
        ([1], [-0.5])
    """
    flat = tf.reshape(x, [-1])
    indices, values, _ = select(flat, sampled_threshold(flat, ratio, seed=seed))
    return indices, values


def in_places(indices: tf.Tensor, values: tf.Tensor, shape: tf.TensorShape):
    """Zeros of a shape, a ``tf.TensorShape``, with ``values`` at the flat int32 ``indices``, none of which is twice.

    Example:
        >>> in_places(tf.constant([2]), tf.constant([5.0]), tf.TensorShape([2, 2])).numpy().tolist()
        [[0.0, 0.0], [5.0, 0.0]]
    """
    return tf.reshape(tf.scatter_nd(indices[:, None], values, [shape.num_elements()]), shape)


def mean_of_entries(everyone: list[tuple], shape: tf.TensorShape):
    """The mean of what all workers sent, a tensor of that shape; ``everyone`` has (indices, values) of each.

    Example:
        >>> sent = [(tf.constant([0]), tf.constant([4.0])), (tf.constant([1]), tf.constant([2.0]))]
        >>> mean_of_entries(sent, tf.TensorShape([3])).numpy().tolist()
        [2.0, 1.0, 0.0]
    """
    entries = [(indices, values / len(everyone)) for indices, values in everyone]
    [total] = scatter_add(entries, [shape.num_elements()])
    return tf.reshape(total, shape)


def mean_of(tensors: list[tf.Tensor]):
    """The mean of a list of tensors, added up in the order of the workers.

    Example:
        >>> float(mean_of([tf.constant(1.0), tf.constant(2.0)]))
        1.5
    """
    return add_in_order(tensors) / len(tensors)


def chance(x: tf.Tensor, seed: Seed):
    """Uniform random numbers in [0, 1), one for each element of ``x``, drawn with ``seed``, int32 (2,).

    Example:
        >>> chance(tf.zeros([2, 3]), (0, 1)).shape
        TensorShape([2, 3])
    """
    return tf.random.stateless_uniform(x.shape, seed)


def round_by_chance(x: tf.Tensor, seed: Seed):
    """Each number of ``x`` rounded up or down to a whole one, the nearer one the likelier: right in the mean.

    ``seed`` is int32 (2,). Source: arXiv:1610.02132, section 3.1.

    Example:
        >>> round_by_chance(tf.constant([3.0, -2.0]), (0, 1)).numpy().tolist()
        [3.0, -2.0]
    """
    up = tf.floor(x + chance(x, seed))
    return tf.minimum(up, tf.math.ceil(x))  # 127 + 0.99999997 is 128 in float32


def pack_bits(numbers: tf.Tensor, bits: int):
    """Whole numbers from 0 to 2**bits - 1 as bytes, 8 / bits of them in each; uint8 (bytes,) from int tensor of n.

    A ValueError for other bits than 1 to 8.

    Example:
        >>> packed = pack_bits(tf.constant([1, 0, 3, 2, 3]), bits=2)
        >>> packed.numpy().tolist(), unpack_bits(packed, 2, [5]).numpy().tolist()
        ([177, 3], [1, 0, 3, 2, 3])
    """
    each = 8 // check_whole("bits", bits, 1, 8)
    flat = tf.reshape(tf.cast(numbers, tf.int32), [-1])
    rows = tf.reshape(tf.pad(flat, [[0, -flat.shape[0] % each]]), [-1, each])
    return tf.cast(tf.reduce_sum(rows * 2 ** (bits * tf.range(each)), 1), tf.uint8)


def unpack_bits(packed: tf.Tensor, bits: int, shape: Sequence[int] | tf.TensorShape):
    """The opposite of `pack_bits`: from ``packed``, with ``bits`` for each number, an int32 tensor of that shape.

    A ValueError for other bits than 1 to 8.

    Example:
        >>> unpack_bits(tf.constant([5], tf.uint8), 1, [3]).numpy().tolist()
        [1, 0, 1]
    """
    check_whole("bits", bits, 1, 8)
    shifted = tf.bitwise.right_shift(tf.cast(packed, tf.int32)[:, None], bits * tf.range(8 // bits))
    flat = tf.reshape(shifted & (2**bits - 1), [-1])
    return tf.reshape(flat[: tf.TensorShape(shape).num_elements()], shape)
