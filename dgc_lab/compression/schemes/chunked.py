"""DeMo, which sends the largest frequencies of each chunk of the momentum, and tools for chunks. Lesson 9."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.compression.elements import in_blocks
from dgc_lab.compression.scheme import Scheme, SparseMean
from dgc_lab.compression.schemes.naming import named
from dgc_lab.compression.selection import as_sent


@named
def demo(k: int = 2, chunk: int = 64, decay: float = 0.999):
    """Return a scheme that sends the largest frequencies of each worker's momentum, and subtracts them (DeMo).

    m' = d m + g; sent = inverse DCT of the k largest of DCT(m') in each chunk; m'' = m' - sent. It uses an allgather of
    8 bytes per frequency. The momentum is its own error feedback, so none is added after the exchange. Differences from
    the paper: chunks of consecutive elements instead of squares, and an update without its sign.

    Args:
        k: number of frequencies to send per chunk, at least 1.
        chunk: number of elements in a chunk, at least 2.
        decay: share of the momentum that stays from step to step, at least 0 and below 1.

    Raises:
        ValueError: k, chunk or decay is out of range.

    Example:
        >>> from dgc_lab.compression import sent_alone
        >>> sent_alone(demo(k=1, chunk=4), [3.0, 1.0, 3.0, 1.0]).numpy().tolist()
        [2.0, 2.0, 2.0, 2.0]

    References:
        arXiv:2411.19870, Algorithm 1.
    """
    check_whole("chunk", chunk, 2)
    check_whole("k", k, 1, chunk)

    def step(gradient, momentum, context):
        momentum = decay * momentum + gradient
        frequencies = tf.signal.dct(in_blocks(momentum, chunk), norm="ortho")
        columns, values = largest_in_rows(frequencies, k)
        values = as_sent(tf.reshape(values, [-1]), context.value_type)
        size = frequencies.shape.num_elements()
        mean = yield SparseMean(flat_positions(columns, chunk), values, size, k / chunk)
        own = spread(columns, values, [size], chunk)
        update, own = (
            tf.reshape(tf.signal.idct(tf.reshape(part, [-1, chunk]), norm="ortho"), [-1])[: gradient.shape[0]]
            for part in (tf.convert_to_tensor(mean), own)
        )
        return update, own, momentum - own

    return Scheme(step, tf.zeros_like, momentum=None)


def largest_in_rows(rows: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the columns of the k largest magnitudes of each row, int32 (rows, k), ascending, and their values."""
    columns = tf.sort(tf.math.top_k(tf.abs(rows), k).indices)
    return columns, tf.gather(rows, columns, batch_dims=1)


def flat_positions(columns: tf.Tensor, chunk: int) -> tf.Tensor:
    """Return the positions of the columns of each row among all elements, row by row: int32 (k,)."""
    return tf.reshape(tf.range(tf.shape(columns)[0])[:, None] * chunk + columns, [-1])


def spread(columns: tf.Tensor, values: tf.Tensor, shape, chunk: int) -> tf.Tensor:
    """Return a tensor that has these values in these columns of its chunks, and zeros elsewhere."""
    size = tf.TensorShape(shape).num_elements()
    rows = tf.scatter_nd(flat_positions(columns, chunk)[:, None], tf.reshape(values, [-1]), [size + -size % chunk])
    return tf.reshape(rows[:size], shape)
