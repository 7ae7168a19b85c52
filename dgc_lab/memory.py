"""Memory that an ended training still holds."""

from __future__ import annotations

import contextlib
import ctypes
import gc


def give_back() -> None:
    """Free what nobody can reach any more, and hand the freed pages to the system.

    A trainer and its traces are a cycle of tens to hundreds of megabytes. Python lets such cycles lie until it has made
    many more objects, and the C library keeps what they held for itself.

    Source: ``malloc_trim(3)``, which is glibc's; other C libraries keep their pages.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
