"""What every room needs: the error that says what to do, checks of arguments, memory, rooms that load late.

The standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import numbers


class LabError(RuntimeError):
    """Something that the lab needs is not here; its message is meant to be read by the user as it is."""


def check_choice(argument: str, value, allowed):
    """The value, when it is one of those allowed; else a ValueError that names argument, value and choices."""
    if value not in allowed:
        raise ValueError(f"{argument} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def check_whole(argument: str, value, least: int, most: int | None = None) -> int:
    """The value as an int, when it is a whole number of at least ``least``, at most ``most``; else a ValueError."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{argument} must be a whole number {allowed}, got {value!r}")
    return int(value)


def free_memory() -> None:
    """Free what nobody can reach any more, and hand the freed pages to the system.

    A trainer and its traces are a cycle of tens to hundreds of megabytes. Python lets such cycles lie until it has made
    many more objects, and the C library keeps what they held for itself.

    Source: ``malloc_trim(3)``, which is glibc's; other C libraries keep their pages.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def hand_on(room: str, names: dict[str, str]):
    """``__getattr__``, ``__dir__`` and ``__all__`` of a room that hands on its modules' names when they are asked for.

    Args:
        room: the package, ``__name__`` in its ``__init__``.
        names: by module of the room, the public names in it, parted by spaces.

    Source: PEP 562.
    """
    home = {name: module for module, given in names.items() for name in given.split()}

    def __getattr__(name: str):
        if name not in home:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{room}.{home[name]}"), name)

    return __getattr__, lambda: sorted(home), list(home)
