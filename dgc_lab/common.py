"""What every room needs: the error that says what to do, checks of arguments, files, memory, rooms that load late.

The standard library only, but for the arrays in files.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import math
import numbers
import operator
import os
import re
from pathlib import Path


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


BOUNDS = {"above": operator.gt, "at least": operator.ge, "below": operator.lt, "at most": operator.le}
INTERVALS = {"in [0, 1]": "at least 0 and at most 1", "in (0, 1]": "above 0 and at most 1"}


def check_number(argument: str, value, allowed: str, finite: bool = False):
    """The value, when it is a number within what ``allowed`` says; else a ValueError that says it.

    The words are the rule, so that the message cannot say another one: "above 0", "at least 0 and below 1", "at least 0
    and finite", "in [0, 1]". What else they say is for the reader: "above 0, or None for no clipping". Nothing allows
    NaN; ``finite`` refuses infinity without a word.

    Example:
        >>> check_number("momentum", 1.5, "at least 0 and below 1")
        Traceback (most recent call last):
        ValueError: momentum must be at least 0 and below 1, got 1.5
    """
    if not isinstance(value, numbers.Real):
        raise ValueError(f"{argument} must be a number, got {value!r}")
    rule = INTERVALS.get(allowed, allowed)
    bounds = re.findall(rf"({'|'.join(BOUNDS)}) ([\d.]*\d)", rule)
    inside = not math.isnan(value) and all(BOUNDS[word](value, float(bound)) for word, bound in bounds)
    if not inside or (math.isinf(value) and (finite or "finite" in rule)):
        raise ValueError(f"{argument} must be {allowed}, got {value!r}")
    return value


def free_memory() -> None:
    """Free what nobody can reach any more, and hand the freed pages to the system.

    A trainer and its traces are a cycle of tens to hundreds of megabytes. Python lets such cycles lie until it has made
    many more objects, and the C library keeps what they held for itself.

    Source: ``malloc_trim(3)``, which is glibc's; other C libraries keep their pages.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def at_file(file: str | os.PathLike, done: str = "written"):
    """Make of the system's error at a file a LabError that names it and says what to do.

    >>> with at_file("/proc/rows.jsonl"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    dgc_lab.common.LabError: /proc/rows.jsonl cannot be written (No space left on device). See to that, and the same...
    """
    try:
        yield
    except OSError as error:
        told = f"{file} cannot be {done} ({error.strerror or error})"
        raise LabError(f"{told}. See to that, and the same call goes on from what is kept") from error


def save_arrays(file: str | os.PathLike, *values, **arrays) -> None:
    """Write arrays to an ``.npz`` file, whole or not at all; a LabError where it cannot be written."""
    import numpy as np

    unfinished = Path(file).with_suffix(".unfinished")
    try:
        with at_file(file):
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            with open(unfinished, "wb") as out:
                np.savez(out, *values, **arrays)
            os.replace(unfinished, file)
    except LabError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def load_arrays(file: str | os.PathLike) -> dict:
    """All arrays of such a file, by name; a LabError where it is damaged. Nothing in it is run."""
    import numpy as np

    try:
        with at_file(file, "read"), np.load(file, allow_pickle=False) as kept:
            return {name: kept[name] for name in kept.files}
    except LabError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds at damaged bytes
        told = f"{file} cannot be read, it is damaged ({error})"
        raise LabError(f"{told}. Remove it, and the same call goes on from what else is kept") from error


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
