"""MNIST-1D: signals of 40 numbers in ten classes, generated on this machine.

Lessons 4 to 9 compare methods on it. It is as quick to train on as 8x8 digits, but harder, and its 10 000 test examples
distinguish methods that look equal on digits.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import numpy as np

from dgc_lab.common import LabError, at_file, cache_folder, load_arrays, save_arrays
from dgc_lab.workloads.dataset import DataError, Dataset

TRAIN_EXAMPLES, TEST_EXAMPLES = 15_000, 10_000
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def mnist1d() -> Dataset:
    """Load MNIST-1D: 15 000 signals for training and 10 000 for testing, (examples, 40, 1), mean 0 and variance 1.

    The package ``mnist1d`` generates them in about ten seconds, from a fixed seed; later calls read them from
    ``mnist1d.npz`` in `dgc_lab.common.cache_folder`.

    Raises:
        DataError: the package is not installed.
        LabError: the file cannot be written, or there is no home folder for it.

    References:
        S. Greydanus, D. Kobak: Scaling Down Deep Learning with MNIST-1D, ICML 2024, https://arxiv.org/abs/2011.14439
    """
    file = cache_folder() / "mnist1d.npz"
    arrays = read(file) or generate(file)
    return Dataset("mnist1d", *(arrays[name] for name in ARRAYS))


def read(file: Path) -> dict | None:
    """Return the arrays of an earlier call, or None if there is no such file or it is damaged."""
    try:
        arrays = load_arrays(file)
    except LabError:
        return None
    shapes = [getattr(arrays.get(name), "shape", None) for name in ARRAYS]
    expected = [(TRAIN_EXAMPLES, 40, 1), (TRAIN_EXAMPLES,), (TEST_EXAMPLES, 40, 1), (TEST_EXAMPLES,)]
    return arrays if shapes == expected else None


def generate(file: Path) -> dict:
    """Generate the data set and store it in ``file``, where several processes may do so at the same time."""
    try:
        from mnist1d.data import get_dataset_args, make_dataset
    except ImportError as error:
        raise DataError(f"MNIST-1D needs the package mnist1d ({error}): pip install mnist1d") from error

    settings = get_dataset_args()
    settings.num_samples = TRAIN_EXAMPLES + TEST_EXAMPLES
    settings.train_split = TRAIN_EXAMPLES / settings.num_samples
    print("Generating MNIST-1D, once, in about ten seconds", flush=True)
    before, other = np.random.get_state(), random.getstate()  # the package seeds both global generators
    try:
        made = make_dataset(settings)
    finally:
        np.random.set_state(before)
        random.setstate(other)
    signals = {name: made[key][..., None].astype(np.float32) for name, key in (("x_train", "x"), ("x_test", "x_test"))}
    labels = {name: made[key].astype(np.int32) for name, key in (("y_train", "y"), ("y_test", "y_test"))}
    arrays = {**signals, **labels}
    with at_file(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        # Processes would share the unfinished file of `save_arrays`, so each has a folder of its own.
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            unfinished = Path(scratch, file.name)
            save_arrays(unfinished, **arrays)
            os.replace(unfinished, file)
    return arrays
