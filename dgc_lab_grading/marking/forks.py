"""Forks that leave the garbage of their parent alone."""

from __future__ import annotations

import gc
import os


def fork() -> int:
    """Fork as `os.fork` does, but never collect in the child what is garbage by then.

    The destructor of a tf.data iterator, for example, would wait for threads of the parent, which the child lacks.
    """
    child = os.fork()
    if child == 0:
        gc.freeze()
    return child
