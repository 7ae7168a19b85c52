"""The data sets of the lessons: ``digits`` comes with scikit-learn, ``mnist`` is read from a file or downloaded.

`dgc_lab.workloads.mnist1d` generates another one; two more are in `dgc_lab.workloads.given_data`.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from dgc_lab.common import check_choice, folder_from_env
from dgc_lab.workloads import given_data
from dgc_lab.workloads.dataset import DataError, Dataset, at_location, data_location, scaled
from dgc_lab.workloads.mnist1d import mnist1d

MNIST_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
MNIST_KEYS = ("x_train", "y_train", "x_test", "y_test")
DIGITS_TEST_EXAMPLES = 360


def load(name: str, path: str | os.PathLike | None = None) -> Dataset:
    """Load a data set by name.

    Args:
        name: without a download, ``"digits"`` (1 437 + 360 images of 8x8), ``"mnist1d"`` (15 000 + 10 000 signals of
            40 numbers) or ``"python_reference"`` (a text with masked words); ``"mnist"`` (60 000 + 10 000 images of
            28x28); or, if their files are on this machine, ``"fashion_mnist"`` (as MNIST) or ``"cifar10"`` (50 000 +
            10 000 of 32x32, in colour).
        path: folder with the files: ``mnist.npz`` in Keras's layout, the four ``.gz`` files of Fashion-MNIST, or the
            six ``.bin`` files of CIFAR-10. If None, the folder in ``DGC_LAB_DATA``; without it, MNIST is read from
            Keras's cache, or downloaded.

    Raises:
        ValueError: the name is unknown, or a path is given for data without files.
        DataError: the files are missing or have a different format, or MNIST cannot be downloaded.

    Example:
        >>> load("digits").x_train.shape
        (1437, 8, 8, 1)
    """
    files = {"mnist": mnist, "fashion_mnist": given_data.fashion_mnist, "cifar10": given_data.cifar10}
    check_choice("name", name, (*WITHOUT_FILES, *files))
    if name in files:
        return files[name](path)
    if path is not None:
        raise ValueError(f"path must be None for dataset {name!r}, which needs no file, got {path!r}")
    return WITHOUT_FILES[name]()


def digits() -> Dataset:
    """Load UCI's handwritten digits from scikit-learn: 8x8 pixels, 1 437 for training and 360 for testing.

    References:
        https://archive.ics.uci.edu/dataset/80 (E. Alpaydin, C. Kaynak), from ``sklearn.datasets.load_digits``
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels.astype(np.int32), test_size=DIGITS_TEST_EXAMPLES, stratify=labels, random_state=0
    )
    return Dataset("digits", x_train, y_train, x_test, y_test)


def mnist(path: str | os.PathLike | None = None) -> Dataset:
    """Load MNIST from ``path``, ``DGC_LAB_DATA`` or Keras's cache, in this order, or download it (11 MB).

    References:
        Y. LeCun, C. Cortes, C. J. C. Burges, in the layout of ``keras.datasets.mnist``
    """
    setting, file = data_location(path)
    if file is not None:
        with at_location(setting):
            file = file / "mnist.npz" if file.is_dir() else file
            if not file.is_file():
                raise DataError(f"{setting}, but there is no MNIST file {file}: correct it, or put the file there")
    else:
        file = cached_or_downloaded()
    try:
        with np.load(file, allow_pickle=False) as arrays:
            x_train, y_train, x_test, y_test = (np.asarray(arrays[key]) for key in MNIST_KEYS)
    except Exception as error:  # any error of the readers of zip files and arrays
        raise DataError(f"{file} is not MNIST in Keras's layout (arrays {', '.join(MNIST_KEYS)}): {error}") from error
    for key, images in (("x_train", x_train), ("x_test", x_test)):
        if images.dtype != np.uint8 or images.shape[1:] != (28, 28):
            raise DataError(f"{key} in {file} must be uint8 (examples, 28, 28), got {images.dtype} {images.shape}")
    for key, labels, images in (("y_train", y_train, x_train), ("y_test", y_test, x_test)):
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu" or not np.isin(labels, range(10)).all():
            raise DataError(f"{key} in {file} must be one digit for each of the {len(images)} images")
    return Dataset("mnist", scaled(x_train), y_train.astype(np.int32), scaled(x_test), y_test.astype(np.int32))


def cached_or_downloaded() -> Path:
    """Return the path of MNIST in Keras's cache; if missing, download it with a progress bar and verify its hash."""
    from keras.utils import get_file

    try:
        home = folder_from_env("KERAS_HOME", ".keras")
        if not (home / "datasets" / "mnist.npz").exists():
            print(f"MNIST is not on this machine: downloading 11 MB from {MNIST_URL}", flush=True)
        home.mkdir(parents=True, exist_ok=True)  # without the folder, Keras would use /tmp
        return Path(get_file("mnist.npz", MNIST_URL, file_hash=MNIST_SHA256, cache_dir=home))
    except Exception as error:  # urllib, ssl and Keras raise different errors; MNIST is missing after each
        raise DataError(
            f"MNIST could not be downloaded ({error}). Either put mnist.npz on this machine and set "
            "DGC_LAB_DATA to its path (or pass path=), or use dataset='digits', which needs no network."
        ) from error


def python_reference() -> Dataset:
    """Load Python's language reference (`dgc_lab.workloads.masked_text`)."""
    from dgc_lab.workloads.masked_text import python_reference

    return python_reference()


WITHOUT_FILES = {"digits": digits, "mnist1d": mnist1d, "python_reference": python_reference}
