"""TCP connections of this process: limit their speed to emulate a slow link, and count the bytes that they sent.

Both ask the Linux kernel, and neither needs root or `tc`. Horovod's ranks exchange tensors over such connections, one
between every two ranks, so for two ranks the limit acts like a full-duplex link of that bandwidth. It adds no latency,
and the kernel does not delay the first ten packets of a connection, which on one machine hold up to 640 kB.

References:
    ``SO_MAX_PACING_RATE`` in ``socket(7)``: the kernel delays the packets of a connection to keep to a rate
    ``TCP_INFO`` in ``tcp(7)``; ``struct tcp_info`` in Linux's ``include/uapi/linux/tcp.h``
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator

from dgc_lab.common import LabError, check_number

SO_MAX_PACING_RATE = 47  # Python has no name for it
UNLIMITED = 2**64 - 1
BYTES_SENT, BYTES_RETRANS = slice(200, 208), slice(208, 216)  # fields of struct tcp_info, since Linux 4.19


def limited_bandwidth(bandwidth: float) -> contextlib.AbstractContextManager[None]:
    """Limit each open TCP connection of this process to a bandwidth, and remove the limit afterwards.

    Every rank must do this, because a limit applies to the bytes that a rank sends.

    Args:
        bandwidth: bytes per second in each direction, above 0; infinity for no limit.

    Raises:
        ValueError: bandwidth is out of range.
        LabError: the system is not Linux, or does not limit connections.

    Example:
        >>> with limited_bandwidth(12.5e6):  # 100 Mbit/s
        ...     pass

    References:
        ``SO_MAX_PACING_RATE``, as in `dgc_lab.distributed.sockets`; Horovod's exchange by Gloo.
    """
    check_number("bandwidth", bandwidth, "above 0")
    return _paced(UNLIMITED if bandwidth >= UNLIMITED else max(1, int(bandwidth)))


def bytes_sent() -> int:
    """Return the bytes that this process has sent over its open TCP connections, as counted by the kernel.

    The count includes everything that Horovod sends, but no headers of TCP and IP. Retransmitted bytes count once;
    under load, the kernel retransmits even on one machine. Raises LabError if the system does not count bytes.

    Example:
        >>> bytes_sent() >= 0
        True
    """
    total = 0
    for connection in _connections():
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(info) < BYTES_RETRANS.stop:
            raise LabError("this system does not count the bytes of TCP connections, which needs Linux 4.19 or later")
        sent, again = (int.from_bytes(info[field], sys.byteorder) for field in (BYTES_SENT, BYTES_RETRANS))
        total += sent - again
    return total


@contextlib.contextmanager
def _paced(rate: int) -> Iterator[None]:
    _pace(rate)
    try:
        yield
    finally:
        _pace(UNLIMITED)


def _pace(rate: int) -> None:
    value = rate.to_bytes(8, sys.byteorder)
    for connection in _connections():
        try:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, value)
        except OSError as error:
            raise LabError(f"this system does not limit the bandwidth of TCP connections ({error})") from error


def _connections() -> Iterator[socket.socket]:
    """Yield a duplicate of each connected TCP socket of this process; operations on it apply to the original."""
    if sys.platform != "linux":
        raise LabError(f"limiting and counting TCP connections needs Linux, got {sys.platform}")
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or not a socket
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            duplicate = socket.socket(fileno=os.dup(int(descriptor)))
            with duplicate:
                if duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.type == socket.SOCK_STREAM:
                    duplicate.getpeername()  # raises OSError for one that only listens
                    yield duplicate
