"""Private networks for processes that must not be reachable from outside: Linux network namespaces.

TensorFlow's servers listen on all interfaces, without a password. A private network has only one, its own loopback,
which nobody else can reach. Any user may create one if the kernel allows user namespaces (`user_namespaces(7)`); many
containers forbid it.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import socket
import struct
import subprocess

# For any user, and for root if user namespaces are forbidden.
WAYS = (("unshare", "--user", "--net", "--uts", "--map-root-user"), ("unshare", "--net", "--uts"))
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, linux/if.h


@functools.cache
def working_prefix(ways: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], str | None]:
    """Return the first command prefix that works here and None; or an empty prefix and why the first one failed."""
    if shutil.which("unshare") is None:
        return (), "the command unshare is not installed"
    reasons = []
    for way in ways:
        try:
            tried = subprocess.run([*way, "true"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return (), str(error)
        if tried.returncode == 0:
            return way, None
        reasons.append(tried.stderr.strip() or f"{' '.join(way)} ended with {tried.returncode}")
    return (), reasons[0]


def unavailable_reason() -> str | None:
    """Return why this machine allows no private network, or None if it allows one."""
    return working_prefix(WAYS)[1]


def command_prefix() -> tuple[str, ...]:
    """Return the prefix that runs a command in a private network; only valid if `unavailable_reason` returns None."""
    return working_prefix(WAYS)[0]


def raise_loopback() -> None:
    """Switch on the loopback interface of a new network, which is off at first."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def free_ports(number: int) -> list[int]:
    """Return ports that are free at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
