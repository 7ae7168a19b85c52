"""What every room needs: the error that says what to do, checks of arguments, memory.

The standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import numbers
import operator
import re


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
