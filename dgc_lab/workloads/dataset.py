"""Data set of images or signals with labels for all lessons, and the error raised if it cannot be loaded."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from dgc_lab.common import LabError, check_text


class DataError(LabError):
    """Error raised if data cannot be loaded; the message says what to do."""


class Task(Protocol):
    """Task that can be trained on parameter servers, such as `dgc_lab.parameter_server.Classifier` or `RingGAN`."""

    examples: tuple
    initial_weights: Callable
    gradients: Callable
    score: Callable


@dataclass(frozen=True)
class Dataset:
    """Images or signals with labels, split into a training set and a test set that is never used for training.

    Attributes:
        name: ``"digits"``, ``"mnist1d"``, ``"mnist"``, ``"fashion_mnist"``, ``"cifar10"`` or
            ``"python_reference"``.
        x_train, x_test: images, float32 in [0, 1], (examples, height, width, channels); or signals, float32
            (examples, length, channels).
        y_train, y_test: int32 labels 0 to 9, (examples,).

    Raises:
        ValueError: ``name`` is not text.

    Example:
        >>> from dgc_lab.workloads import load
        >>> load("digits").x_test.shape
        (360, 8, 8, 1)
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    def __post_init__(self):
        check_text("name", self.name)

    def batches(self, batch: int, seed: int) -> Callable:
        """Return a function from a batch's number to its examples; its attribute ``seed`` is a variable."""
        from dgc_lab.workloads.batches import batches_of

        return batches_of(self.x_train, self.y_train, batch, seed)

    def evaluator(self) -> Callable:
        """Return a function from a model to its accuracy and loss on the test set."""
        from dgc_lab.workloads.batches import make_evaluator

        return make_evaluator(self.x_test, self.y_test)

    def fingerprint(self) -> str:
        """Return eight hexadecimal digits of a hash of the examples, for the rows of sweeps."""
        digest = hashlib.sha256()
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(str(array.shape).encode())
            digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()[:8]


def data_location(path: str | os.PathLike | None) -> tuple[str, Path | None]:
    """Return a description of the setting, ``path`` or ``DGC_LAB_DATA``, and the location of the data or None."""
    name, given = ("path", path) if path is not None else ("DGC_LAB_DATA", os.environ.get("DGC_LAB_DATA") or None)
    setting = f"{name} is {str(given)!r}"
    try:
        return setting, None if given is None else Path(given).expanduser()
    except RuntimeError as error:  # the user has no home folder
        raise DataError(f"{setting}: {error}") from None


@contextlib.contextmanager
def at_location(setting: str):
    """Convert an OSError in the block, as for a folder without permission, to a DataError with the ``setting``."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{setting}, which cannot be read ({error}): correct it") from None


def scaled(images: np.ndarray) -> np.ndarray:
    """Convert uint8 (n, h, w) to float32 in [0, 1] with a channel axis, (n, h, w, 1)."""
    return (images.astype(np.float32) / 255)[..., np.newaxis]
