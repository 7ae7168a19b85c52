"""A network of its own for processes that must not be reached from outside: a Linux network namespace.

TensorFlow's servers listen on all interfaces, without a password; here there is one, its loopback, and nobody else is
on it. Any user may have one where the kernel allows user namespaces (`user_namespaces(7)`); many containers forbid it.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import socket
import struct
import subprocess

# For any user; and for root, where user namespaces are forbidden.
WAYS = (("unshare", "--user", "--net", "--uts", "--map-root-user"), ("unshare", "--net", "--uts"))
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, linux/if.h


@functools.cache
def first_way(ways: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], str | None]:
    """The first of some commands that can run another one behind them here; or none, and why the first could not."""
    if shutil.which("unshare") is None:
        return (), "the command unshare is not here"
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


def why_not() -> str | None:
    """Why this machine allows no private network; None where it does."""
    return first_way(WAYS)[1]


def entrance() -> tuple[str, ...]:
    """What to put before a command so that it runs in a private network; only where `why_not` gives None."""
    return first_way(WAYS)[0]


def raise_loopback() -> None:
    """Switch on the loopback interface of a new network, which begins switched off."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def free_ports(number: int) -> list[int]:
    """Ports that nothing listens on at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
