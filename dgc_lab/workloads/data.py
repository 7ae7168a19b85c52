"""The data sets of the lessons: ``digits`` comes with scikit-learn, ``mnist`` is looked up or downloaded.

Lessons 4 and 5. Two more are in `dgc_lab.workloads.given_data`.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from dgc_lab.common import check_choice, named_or_at_home
from dgc_lab.workloads import given_data
from dgc_lab.workloads.dataset import DataError, Dataset, given_place, scaled

MNIST_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
MNIST_KEYS = ("x_train", "y_train", "x_test", "y_test")
DIGITS_TEST_EXAMPLES = 360


def load(name: str, path: str | os.PathLike | None = None) -> Dataset:
    """Load a data set by name.

    Args:
        name: ``"digits"`` (1 437 + 360 images of 8x8, no network), ``"mnist"`` (60 000 + 10 000 of 28x28), or, where
            their files are on this machine, ``"fashion_mnist"`` (as MNIST) or ``"cifar10"`` (50 000 + 10 000 of
            32x32, in colour).
        path: folder of the files, which holds ``mnist.npz`` in Keras's layout, the four ``.gz`` files of
            Fashion-MNIST, or the six ``.bin`` files of CIFAR-10; that in ``DGC_LAB_DATA`` if None. MNIST is also
            found in Keras's cache, or downloaded.

    Raises:
        ValueError: the name is not one of them, or a path is given for ``digits``.
        DataError: the data are not on this machine or not in this form, or MNIST is not to be downloaded.

    Example:
        >>> load("digits").x_train.shape
        (1437, 8, 8, 1)
    """
    if name == "digits" and path is not None:
        raise ValueError(f"path must be None for dataset 'digits', which comes with scikit-learn, got {path!r}")
    loaders = {"mnist": mnist, "fashion_mnist": given_data.fashion_mnist, "cifar10": given_data.cifar10}
    check_choice("name", name, ("digits", *loaders))
    return digits() if name == "digits" else loaders[name](path)


def digits() -> Dataset:
    """UCI's handwritten digits as scikit-learn bundles them: 8x8 pixels, 1 437 to train and 360 to test.

    Source: https://archive.ics.uci.edu/dataset/80 (E. Alpaydin, C. Kaynak), through ``sklearn.datasets.load_digits``.
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
    """MNIST from ``path``, else from ``DGC_LAB_DATA``, else from Keras's cache, else by download (11 MB).

    Source: Y. LeCun, C. Cortes, C. J. C. Burges, in the layout of ``keras.datasets.mnist``.
    """
    which, file = given_place(path)
    if file is not None:
        file = file / "mnist.npz" if file.is_dir() else file
        if not file.is_file():
            raise DataError(f"{which}, and there is no MNIST file {file}")
    else:
        file = cached_or_downloaded()
    try:
        with np.load(file, allow_pickle=False) as arrays:
            x_train, y_train, x_test, y_test = (np.asarray(arrays[key]) for key in MNIST_KEYS)
    except Exception as error:  # whatever the readers of zip files and of arrays came upon
        raise DataError(f"{file} is not MNIST in Keras's layout (arrays {', '.join(MNIST_KEYS)}): {error}") from error
    for key, images in (("x_train", x_train), ("x_test", x_test)):
        if images.dtype != np.uint8 or images.shape[1:] != (28, 28):
            raise DataError(f"{key} in {file} is {images.dtype} {images.shape}, expected uint8 (examples, 28, 28)")
    for key, labels, images in (("y_train", y_train, x_train), ("y_test", y_test, x_test)):
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu" or not np.isin(labels, range(10)).all():
            raise DataError(f"{key} in {file} must be a digit for each of {len(images)} images")
    return Dataset("mnist", scaled(x_train), y_train.astype(np.int32), scaled(x_test), y_test.astype(np.int32))


def cached_or_downloaded() -> Path:
    """Path of MNIST in Keras's cache; downloads it there with a progress bar and a checksum when it is missing."""
    from keras.utils import get_file

    try:
        home = named_or_at_home("KERAS_HOME", ".keras")
        if not (home / "datasets" / "mnist.npz").exists():
            print(f"MNIST is not on this machine: downloading 11 MB from {MNIST_URL}", flush=True)
        home.mkdir(parents=True, exist_ok=True)  # Keras would turn to /tmp where the folder is missing
        return Path(get_file("mnist.npz", MNIST_URL, file_hash=MNIST_SHA256, cache_dir=home))
    except Exception as error:  # urllib, ssl and Keras each raise their own; all mean that there is no MNIST
        raise DataError(
            f"MNIST could not be downloaded ({error}). Two ways out: put mnist.npz on this machine and set "
            "DGC_LAB_DATA to its path (or pass path=), or use dataset='digits', which needs no network."
        ) from error
