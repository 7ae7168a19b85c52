"""Fashion-MNIST and CIFAR-10, read from the user's files; nothing is downloaded.

Fashion-MNIST has images of clothes in the format of MNIST, which are harder to classify. CIFAR-10 has colour
photographs; ResNet-20 was designed for it. It is read from its "binary version", because the version for Python is a
pickle, which can run arbitrary code.
"""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

import numpy as np

from dgc_lab.workloads.dataset import DataError, Dataset, at_location, data_location, scaled

CIFAR10_FILES = tuple(f"{name}.bin" for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"))
FASHION_FILES = tuple(
    f"{which}-{what}-ubyte.gz" for which in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
)
RECORD = 1 + 3 * 32 * 32  # bytes of one CIFAR-10 example: the label, then all red, all green and all blue pixels
SOURCES = {
    "fashion_mnist": ("fashion-mnist", FASHION_FILES, "https://github.com/zalandoresearch/fashion-mnist"),
    "cifar10": ("cifar-10-batches-bin", CIFAR10_FILES, "https://www.cs.toronto.edu/~kriz/cifar.html (binary version)"),
}


def find_files(name: str, path: str | os.PathLike | None) -> list[Path]:
    """Return the files of a data set: in a folder, in its subfolder for the data set, or in the folder of a file."""
    setting, folder = data_location(path)
    inside, files, source = SOURCES[name]
    remedy = f"get {', '.join(files)} from {source}, and pass their folder as path or set DGC_LAB_DATA to it"
    if folder is None:
        raise DataError(f"{name} is not on this machine: {remedy}")
    with at_location(setting):
        folder = folder.parent if folder.is_file() else folder
        folder = folder / inside if (folder / inside).is_dir() else folder
        if missing := [file for file in files if not (folder / file).is_file()]:
            raise DataError(f"{setting}, but {folder} has no {missing[0]}: {remedy}")
    return [folder / file for file in files]


def fashion_mnist(path: str | os.PathLike | None = None) -> Dataset:
    """Load Fashion-MNIST from its authors' four files, which Keras also stores in ``datasets/fashion-mnist``.

    References:
        H. Xiao, K. Rasul, R. Vollgraf, arXiv:1708.07747
    """
    x_train, y_train, x_test, y_test = map(read_idx, find_files("fashion_mnist", path))
    for images, labels in ((x_train, y_train), (x_test, y_test)):
        if images.shape[1:] != (28, 28) or labels.shape != (len(images),) or labels.max(initial=0) > 9:
            got = f"images of {images.shape} and labels of {labels.shape} up to {labels.max(initial=0)}"
            raise DataError(f"fashion_mnist must have images of 28 x 28, each with a label from 0 to 9, got {got}")
    return Dataset("fashion_mnist", scaled(x_train), y_train.astype(np.int32), scaled(x_test), y_test.astype(np.int32))


def read_idx(file: Path) -> np.ndarray:
    """Read an IDX file of bytes: two zeros, type, number of axes, the length of each axis in four bytes, the values."""
    try:
        content = gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read as gzip: {error}") from error
    axes = content[3] if content[:3] == b"\x00\x00\x08" and len(content) > 3 else 0
    start = 4 + 4 * axes
    shape = np.frombuffer(content[4:start], ">u4").astype(int) if axes and len(content) >= start else [0]
    if len(content) - start != np.prod(shape) or not axes:
        raise DataError(f"{file} must be an IDX file of bytes, the format of MNIST and Fashion-MNIST: get it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def cifar10(path: str | os.PathLike | None = None) -> Dataset:
    """Load CIFAR-10 from the six files of its binary version: float32 images (examples, 32, 32, 3) in [0, 1].

    References:
        A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009
    """
    *train, test = map(read_records, find_files("cifar10", path))
    x_train, y_train = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Dataset("cifar10", x_train, y_train, *test)


def read_records(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images float32 (n, 32, 32, 3) in [0, 1] and labels int32 (n,) from one file."""
    try:
        content = np.fromfile(file, np.uint8)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if not content.size or content.size % RECORD or content[::RECORD].max() > 9:
        layout = f"records of {RECORD} bytes, labels 0 to 9"
        raise DataError(f"{file} must be of CIFAR-10's binary version ({layout}): get it again")
    records = content.reshape(-1, RECORD)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images.astype(np.float32) / 255, records[:, 0].astype(np.int32)
