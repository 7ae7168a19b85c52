"""A network of its own for processes that must not be reached from outside: a Linux network namespace.

TensorFlow's servers listen on all interfaces, without a password. In a namespace of their own there is one interface,
its loopback, and nobody else is on it. The kernel makes one for any user where it allows user namespaces
(`user_namespaces(7)`, `network_namespaces(7)`); many containers forbid that.
"""

from __future__ import annotations

import functools
import shutil
import socket
import struct
import subprocess

ENTER = ("unshare", "--user", "--net", "--map-root-user")
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, linux/if.h


@functools.cache
def why_not() -> str | None:
    """Why this machine allows no private network; None where it does."""
    if shutil.which(ENTER[0]) is None:
        return "the command unshare is not here"
    tried = subprocess.run([*ENTER, "true"], capture_output=True, text=True, timeout=30, check=False)
    return None if tried.returncode == 0 else tried.stderr.strip() or f"unshare ended with {tried.returncode}"


def raise_loopback() -> None:
    """Switch on the loopback interface of a new network, which begins switched off."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def free_ports(number: int) -> list[int]:
    """Ports that nothing listens on at this moment."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
