"""CIFAR-10, where the user has it: 32x32 colour photographs in ten classes, what ResNet-20 was made for.

Read from the set's "binary version", 170 MB: the one for Python is a pickle, which runs whatever code is in it.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from dgc_lab.workloads.data import DataError, Dataset

URL = "https://www.cs.toronto.edu/~kriz/cifar.html"
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
SHAPE = (3, 32, 32)  # an image's bytes: all red ones, row by row, then green, then blue
RECORD = 1 + 3 * 32 * 32  # the label comes first


def load(path: str | os.PathLike | None = None) -> Dataset:
    """CIFAR-10 from a folder with ``data_batch_1.bin`` to ``data_batch_5.bin`` and ``test_batch.bin``.

    Args:
        path: the folder, or the one that holds it; the environment variable ``DGC_LAB_CIFAR10`` if None.

    Returns:
        `dgc_lab.workloads.Dataset`: images float32 in [0, 1], (examples, 32, 32, 3); 50 000 to train, 10 000 to test.

    Raises:
        DataError: no folder is named, a file is missing, or one is not in this format.

    Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """
    given = path or os.environ.get("DGC_LAB_CIFAR10")
    if not given:
        raise DataError(
            f"CIFAR-10 is not on this machine: unpack the binary version ({URL}) and set DGC_LAB_CIFAR10 to its folder"
        )
    folder = Path(given).expanduser()
    if (folder / "cifar-10-batches-bin").is_dir():
        folder = folder / "cifar-10-batches-bin"
    return Dataset("cifar10", *read([folder / name for name in TRAIN_FILES]), *read([folder / n for n in TEST_FILES]))


def read(files) -> tuple[np.ndarray, np.ndarray]:
    """Images float32 (n, 32, 32, 3) in [0, 1] and labels int32 (n,) of some files, one after another."""
    parts = []
    for file in files:
        try:
            content = np.fromfile(file, np.uint8)
        except OSError as error:
            raise DataError(f"{file} cannot be read ({error.strerror}): see {URL}, binary version") from error
        if not content.size or content.size % RECORD or content[::RECORD].max() > 9:
            raise DataError(f"{file} is not CIFAR-10's binary version: records of {RECORD} bytes, labels 0 to 9")
        parts.append(content.reshape(-1, RECORD))
    records = np.concatenate(parts)
    images = records[:, 1:].reshape(-1, *SHAPE).transpose(0, 2, 3, 1)
    return images.astype(np.float32) / 255, records[:, 0].astype(np.int32)
