"""What the schemes of the gallery are made of: elements that pass, numbers in few bits, rounding by chance."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.dgc.selection import select
from dgc_lab.dgc.thresholding import sampled_threshold
from dgc_lab.dgc.wire_format import scatter_add
from dgc_lab.schemes.scheme import Mean, Scheme, Turn


def sent_alone(scheme: Scheme, gradient, seed=0, own_seed=0):
    """What one worker's message stands for, of a gradient of any shape and the scheme's first state; float32.

    With nobody else there, the answer to each question is what was asked.

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


def largest(x, ratio, seed):
    """The share ``ratio`` of the elements that is largest in magnitude, by a sampled threshold: indices and values."""
    flat = tf.reshape(x, [-1])
    indices, values, _ = select(flat, sampled_threshold(flat, ratio, seed=seed))
    return indices, values


def in_places(indices, values, shape):
    """Zeros of a shape, with the values at the flat int32 indices, none of which comes twice."""
    return tf.reshape(tf.scatter_nd(indices[:, None], values, [shape.num_elements()]), shape)


def mean_of_entries(everyone, shape):
    """The mean of what all workers sent, each as (indices, values)."""
    entries = [(indices, values / len(everyone)) for indices, values in everyone]
    [total] = scatter_add(entries, [shape.num_elements()])
    return tf.reshape(total, shape)


def mean_of(tensors):
    """The mean of a list of tensors, added up in the order of the workers."""
    return tf.add_n(tensors) / len(tensors)


def chance(x, seed):
    """Uniform random numbers in [0, 1), one for each element."""
    return tf.random.stateless_uniform(x.shape, seed)


def round_by_chance(x, seed):
    """Each number rounded up or down to a whole one, the nearer one the likelier: right in the mean."""
    return tf.floor(x + chance(x, seed))


def pack_bits(numbers, bits: int):
    """Whole numbers from 0 to 2**bits - 1 as bytes, 8 / bits of them in each; uint8 (bytes,) from int tensor of n.

    Example:
        >>> packed = pack_bits(tf.constant([1, 0, 3, 2, 3]), bits=2)
        >>> packed.numpy().tolist(), unpack_bits(packed, 2, [5]).numpy().tolist()
        ([177, 3], [1, 0, 3, 2, 3])
    """
    each = 8 // bits
    flat = tf.reshape(tf.cast(numbers, tf.int32), [-1])
    rows = tf.reshape(tf.pad(flat, [[0, -flat.shape[0] % each]]), [-1, each])
    return tf.cast(tf.reduce_sum(rows * 2 ** (bits * tf.range(each)), 1), tf.uint8)


def unpack_bits(packed, bits: int, shape):
    """The opposite: an int32 tensor of that shape."""
    shifted = tf.bitwise.right_shift(tf.cast(packed, tf.int32)[:, None], bits * tf.range(8 // bits))
    flat = tf.reshape(shifted & (2**bits - 1), [-1])
    return tf.reshape(flat[: tf.TensorShape(shape).num_elements()], shape)
