"""Choose the cheaper collective for a gradient: entries by allgather, or the whole vector by allreduce.

Per worker, of N, with n elements of 4 bytes in the gradient and the share ``ratio`` of them selected:

- a ring allreduce sends 2 (N - 1) / N times 4 n bytes, nearly the same for any number of workers;
- an allgather sends (N - 1) messages of ``ratio`` x n x (bytes of an entry), so it grows with the number of workers.

They are equal if ratio x N x (bytes of an entry) = 8, so for a value and an int32 index if ratio x N = 1.

Sources: Patarasuk and Yuan 2009 (ring allreduce); arXiv:1901.04359 (an allgather of sparse gradients grows with N).
"""

from __future__ import annotations

from dgc_lab.common import check_number, check_whole

DENSE_ELEMENT = 4  # bytes of an element that is sent uncompressed
BOTH_WAYS = 2 * DENSE_ELEMENT  # a ring allreduce passes on every element twice: to add it up, and to spread the sum
# A hop's latency equals the time that this many bytes take: the lessons' 20 microseconds at 2.5 Gbit/s.
BYTES_OF_A_HOP = 6250


def dense_is_shorter(ratio: float, workers: int, entry_bytes: int = 8):
    """Return whether an allreduce of the vector with zeros is cheaper than an allgather of its entries.

    Args:
        ratio: share of the elements that are selected, in [0, 1]; number or scalar tensor.
        workers: N, at least 1.
        entry_bytes: bytes of a value and its position (`dgc_lab.compression.wire_format.Layout.entry_bytes`).

    Returns:
        bool, or a boolean scalar tensor if ratio is a tensor. True if both are equal, and always at ratio 1.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> dense_is_shorter(0.25, 4), dense_is_shorter(0.25, 4, entry_bytes=6), dense_is_shorter(0.001, 256)
        (True, False, False)
    """
    if not hasattr(ratio, "dtype"):  # a tensor is checked where it comes from
        check_number("ratio", ratio, "in [0, 1]")
    return ratio >= break_even_ratio(workers, entry_bytes)


def break_even_ratio(workers: int, entry_bytes: int = 8) -> float:
    """Return the lowest ratio at which `dense_is_shorter` is True; at most 1.

    Raises:
        ValueError: workers or entry_bytes is below 1.

    Example:
        >>> [break_even_ratio(workers) for workers in (1, 4, 32)], break_even_ratio(4, entry_bytes=4)
        ([1.0, 0.25, 0.03125], 0.5)
    """
    check_whole("workers", workers, 1)
    check_whole("entry_bytes", entry_bytes, 1)
    return min(1.0, BOTH_WAYS / (workers * entry_bytes))


def one_message_is_shorter(whole_bytes: int, workers: int) -> bool:
    """Return whether uncompressed tensors should join the allgather's message, which saves the allreduce.

    For each of their bytes, the allreduce would send 2 (N - 1) / N bytes, in 2 (N - 1) additional hops; the message
    sends N - 1 bytes and needs no additional hop. For two workers the bytes are the same.
    """
    # Both sides divided by N - 1.
    return whole_bytes * (1 - 2 / workers) <= 2 * BYTES_OF_A_HOP
