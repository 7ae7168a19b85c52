"""Setting of GPU memory, for all training loops."""

from __future__ import annotations

import contextlib

import tensorflow as tf


def grow_gpu_memory() -> None:
    """Let TensorFlow allocate GPU memory when it needs it, instead of all memory at the start."""
    for gpu in tf.config.list_physical_devices("GPU"):
        # A GPU in use no longer accepts this setting; it keeps that of its first user.
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)
