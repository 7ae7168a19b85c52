"""Checks of arguments, with errors that name the argument, the value and what is allowed."""

from __future__ import annotations

import numpy as np


def check_choice(argument: str, value, allowed):
    """The value, when it is one of those allowed; else a ValueError that names argument, value and choices."""
    if value not in allowed:
        raise ValueError(f"{argument} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def check_whole(argument: str, value, least: int) -> int:
    """The value, when it is a whole number of at least ``least``; else a ValueError that says so."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{argument} must be a whole number of at least {least}, got {value!r}")
    return value


def check_count(argument: str, value, least: int, most: int) -> int:
    """The value, when it is a whole number from least to most; else a ValueError that says so."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{argument} must be a whole number from {least} to {most}, got {value!r}")
    return int(value)
