"""Building blocks of schemes: numbers in few bits, stochastic rounding, and the decoded message of a single worker."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from dgc_lab.common import check_instance, check_whole
from dgc_lab.compression.scheme import AllReduceMean, Scheme, SparseMean, SparseVector, StepContext
from dgc_lab.compression.thresholding import checked_seed
from dgc_lab.compression.wire_format import add_in_order


def sent_alone(scheme: Scheme, gradient: tf.Tensor, seed: int = 0, worker_seed: int = 0):
    """Return one worker's decoded message in the scheme's initial state: float32, of the gradient's shape.

    Without other workers, the answer to each question is its own tensor. Lesson 8 examines schemes in this way.

    Args:
        scheme: any scheme.
        gradient: numbers of any shape.
        seed, worker_seed: seeds of all workers and of this one: whole numbers or integer scalar tensors.

    Raises:
        ValueError: a seed is not a whole number.

    Example:
        >>> from dgc_lab.compression import int8
        >>> sent_alone(int8(), [127.0, 3.2]).numpy().tolist()
        [127.0, 3.0]
    """
    for name, number in {"seed": seed, "worker_seed": worker_seed}.items():
        if not hasattr(number, "dtype"):  # a tensor inside a graph
            check_whole(name, number, -(2**31), 2**31 - 1)
    given, answer = tf.convert_to_tensor(gradient, tf.float32), None
    vector = given if check_instance("scheme", scheme, Scheme).per_tensor else tf.reshape(given, [-1])
    context = StepContext((vector.shape.num_elements(),), tf.stack([seed, 0]), tf.stack([worker_seed, 1]), workers=1)
    step = scheme.step(vector, scheme.init(tf.zeros_like(vector)), context)
    try:
        while True:
            question = step.send(answer)
            if isinstance(question, AllReduceMean):
                answer = question.tensor
            elif isinstance(question, SparseMean):
                answer = SparseVector([(question.indices, question.values)], question.size)
            else:
                answer = [question.tensors]
    except StopIteration as end:
        _, own, _ = end.value
        return tf.reshape(tf.convert_to_tensor(own), given.shape)


def mean_of(tensors: list[tf.Tensor]):
    """Return the mean of a list of tensors, added in the order of the workers (lesson 8).

    Example:
        >>> float(mean_of([tf.constant(1.0), tf.constant(2.0)]))
        1.5
    """
    return add_in_order(tensors) / len(tensors)


def stochastic_round(x: tf.Tensor, seed: Sequence[int]):
    """Round each number of ``x`` up or down to a whole number at random; the result is unbiased.

    ``seed`` is two whole numbers or an integer tensor of two. Other numbers raise ValueError.

    Example:
        >>> stochastic_round(tf.constant([3.0, -2.0]), (0, 1)).numpy().tolist()
        [3.0, -2.0]

    References:
        arXiv:1610.02132, section 3.1.
    """
    seed = checked_seed(seed)
    up = tf.floor(x + tf.random.stateless_uniform(x.shape, seed))
    return tf.minimum(up, tf.math.ceil(x))  # 127 + 0.99999997 is 128 in float32


def pack_bits(numbers: tf.Tensor, bits: int):
    """Return whole numbers from 0 to 2**bits - 1 packed into bytes, 8 // bits in each: uint8 (bytes,). Lesson 8.

    Raises:
        ValueError: bits is not from 1 to 8.

    Example:
        >>> packed = pack_bits(tf.constant([1, 0, 3, 2, 3]), bits=2)
        >>> packed.numpy().tolist(), unpack_bits(packed, 2, [5]).numpy().tolist()
        ([177, 3], [1, 0, 3, 2, 3])
    """
    each = 8 // check_whole("bits", bits, 1, 8)
    rows = in_blocks(tf.cast(numbers, tf.int32), each)
    return tf.cast(tf.reduce_sum(rows * 2 ** (bits * tf.range(each)), 1), tf.uint8)


def unpack_bits(packed: tf.Tensor, bits: int, shape: Sequence[int] | tf.TensorShape):
    """Return the numbers that `pack_bits` packed with ``bits`` each, as an int32 tensor of a shape. Lesson 8.

    Raises:
        ValueError: bits is not from 1 to 8.

    Example:
        >>> unpack_bits(tf.constant([5], tf.uint8), 1, [3]).numpy().tolist()
        [1, 0, 1]
    """
    check_whole("bits", bits, 1, 8)
    return tf.reshape(unpacked(packed, bits)[: tf.TensorShape(shape).num_elements()], shape)


def unpacked(packed: tf.Tensor, bits: int) -> tf.Tensor:
    """Return all numbers in the bytes of `pack_bits`, int32 (numbers,), with its zeros at the end."""
    shifted = tf.bitwise.right_shift(tf.cast(packed, tf.int32)[:, None], bits * tf.range(8 // bits))
    return tf.reshape(shifted & (2**bits - 1), [-1])


def unpack_signs(packed: tf.Tensor, shape) -> tf.Tensor:
    """Return 1 and -1, float32, from bits that were packed one by one."""
    return 2.0 * tf.cast(unpack_bits(packed, 1, shape), tf.float32) - 1.0


def in_blocks(x: tf.Tensor, size: int) -> tf.Tensor:
    """Return the elements of ``x`` as rows of ``size``, the last one filled with zeros: (blocks, size)."""
    flat = tf.reshape(x, [-1])
    length = tf.size(flat) if flat.shape[0] is None else flat.shape[0]
    return tf.reshape(tf.pad(flat, [[0, -length % size]]), [-1, size])
