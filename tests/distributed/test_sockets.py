"""The bandwidth limit and the byte counter of TCP connections, on sockets and on two Horovod ranks."""

import socket
import threading
import time

import pytest

from dgc_lab.distributed.sockets import bytes_sent, limited_bandwidth


@pytest.fixture
def connection():
    """A connection of this process to itself, whose other end reads all bytes; yields the sender and the reader."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        received = threading.Thread(target=lambda: [None for _ in iter(lambda: receiver.recv(2**20), b"")])
        received.start()
        yield sender, received
    received.join(60)
    receiver.close()


def test_counter_counts_the_bytes_of_a_connection(connection):
    sender, received = connection
    before = bytes_sent()
    sender.sendall(b"x" * 300_000)
    sender.shutdown(socket.SHUT_WR)
    received.join(60)
    assert bytes_sent() - before == 300_000


def seconds_for(sender, size):
    """Return the time until the kernel has sent `size` bytes."""
    start, before = time.monotonic(), bytes_sent()
    sender.sendall(b"x" * size)
    while bytes_sent() - before < size:
        time.sleep(0.001)
    return time.monotonic() - start


def test_limit_slows_a_connection_down_until_it_ends(connection):
    """The kernel makes up for late packets, but only the first of a transfer leaves early: load cannot fail this test.

    It does not delay the first ten packets of a connection, which hold up to 640 kB here.
    """
    sender, _ = connection
    seconds_for(sender, 1_000_000)
    with limited_bandwidth(2e6):
        limited = seconds_for(sender, 1_000_000)
    assert limited > 0.4, "half a second, less the first packet of 64 kB, which is not delayed"
    # The fastest of five: on a busy machine, the kernel repeats lost segments, which takes 0.2 s each.
    assert min(seconds_for(sender, 1_000_000) for _ in range(5)) < limited


@pytest.mark.parametrize("bandwidth", [0, -1.0, float("nan"), "fast"])
def test_bandwidth_must_be_a_positive_number(bandwidth):
    with pytest.raises(ValueError, match="bandwidth must be"):
        limited_bandwidth(bandwidth)


def allreduce_over_a_link(bandwidth, elements):
    """Return the seconds of a rank's allreduce over a limited link, and the bytes that it sent."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.allreduce(tf.zeros([elements]), name="both are here")  # the kernel does not delay a connection's first packets
    with limited_bandwidth(bandwidth):
        start, before = time.monotonic(), bytes_sent()
        hvd.allreduce(tf.ones([elements]), op=hvd.Sum, name="limited").numpy()
        seconds = time.monotonic() - start
        hvd.allreduce(tf.ones([2]), name="after it")  # it arrives after all bytes written before it
        return seconds, bytes_sent() - before


def test_two_ranks_exchange_over_a_limited_link(two_ranks):
    """In a ring of two ranks, each sends half of the tensor twice."""
    elements, bandwidth = 500_000, 4e6
    for seconds, sent in two_ranks.run(allreduce_over_a_link, bandwidth, elements):
        assert 4 * elements <= sent < 4.4 * elements
        assert seconds > 0.7 * 4 * elements / bandwidth
    free = [two_ranks.run(allreduce_over_a_link, float("inf"), elements) for _ in range(5)]  # the fastest: see above
    assert min(max(seconds for seconds, _ in both) for both in free) < 4 * elements / bandwidth
