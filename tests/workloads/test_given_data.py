"""Fashion-MNIST and CIFAR-10 from files in their original formats, and a sweep on each."""

import gzip

import numpy as np
import pytest

from dgc_lab.training import RowEnded, sweep
from dgc_lab.training.masking_trainer import MaskingConfig
from dgc_lab.workloads import DataError, load
from dgc_lab.workloads.given_data import CIFAR10_FILES, FASHION_FILES, RECORD

NAMES = ("fashion_mnist", "cifar10")


def write_idx(file, array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    file.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture
def folder(tmp_path):
    """Small copies of both: Fashion-MNIST in Keras's folder, CIFAR-10 files at the top."""
    numbers = np.random.default_rng(0)
    (tmp_path / "fashion-mnist").mkdir()
    for file, count in zip(FASHION_FILES, (30, 30, 20, 20), strict=True):
        shape = (count, 28, 28) if "images" in file else (count,)
        write_idx(tmp_path / "fashion-mnist" / file, numbers.integers(0, 10, shape, np.uint8))
    for number, file in enumerate(CIFAR10_FILES):
        records = np.zeros((4, RECORD), np.uint8)
        records[:, 0] = number
        records[0, 1] = 255  # the first pixel, red
        records[1, 1 + 1024 + 33] = 51  # the second row's second pixel, green
        records.tofile(tmp_path / file)
    return tmp_path


def test_fashion_mnist_has_the_layout_of_mnist(folder):
    data = load("fashion_mnist", folder)
    assert [data.x_train.shape, data.x_test.shape] == [(30, 28, 28, 1), (20, 28, 28, 1)]
    assert data.x_train.dtype == np.float32
    assert data.y_test.dtype == np.int32
    first = np.random.default_rng(0).integers(0, 10, (30, 28, 28), np.uint8)
    np.testing.assert_array_equal(np.round(data.x_train[..., 0] * 255), first)


def test_cifar10_keeps_its_colours(folder):
    data = load("cifar10", folder)
    assert [data.x_train.shape, data.x_test.shape] == [(20, 32, 32, 3), (4, 32, 32, 3)]
    assert [data.y_train[::4].tolist(), data.y_test.tolist()] == [[0, 1, 2, 3, 4], [5, 5, 5, 5]]
    assert data.x_train[0, 0, 0].tolist() == [1, 0, 0]
    np.testing.assert_allclose(data.x_test[1, 1, 1], [0, 0.2, 0], atol=1e-6)
    assert data.x_train.sum() == pytest.approx(5 * 1.2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", ["folder", "environment", "a file in it"])
def test_data_files_load_from_each_location(folder, name, given, monkeypatch):
    (folder / "mnist.npz").touch()
    where = {"folder": None, "environment": folder, "a file in it": folder / "mnist.npz"}[given]
    if where:
        monkeypatch.setenv("DGC_LAB_DATA", str(where))
    assert load(name, None if where else folder).name == name


@pytest.mark.parametrize("name", NAMES)
def test_missing_data_errors_name_the_download_source(name, tmp_path):
    with pytest.raises(DataError, match=rf"^{name} is not on this machine: get .* set DGC_LAB_DATA to it"):
        load(name)
    with pytest.raises(DataError, match=r"path is .* has no (train-images|data_batch_1).*: get .* from https"):
        load(name, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        gzip.compress(b""),
        gzip.compress(b"\x00\x00\x08\x03\x00\x00\x00\x01"),
        gzip.compress(b"")[:10] + b"\xff" * 20,
    ],
    ids=[
        "empty",
        "short",
        "packed, empty",
        "packed, cut",
        "packed, damaged",
    ],  # gzip stores the time, but ids must be reproducible
)
def test_invalid_idx_files_are_rejected(folder, content):
    file = folder / "fashion-mnist" / FASHION_FILES[0]
    file.write_bytes(content)
    with pytest.raises(DataError, match=f"{file} (cannot be read as gzip|must be an IDX file)"):
        load("fashion_mnist", folder)


def test_mismatched_images_and_labels_are_rejected(folder):
    write_idx(folder / "fashion-mnist" / FASHION_FILES[3], np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"images of \(20, 28, 28\) and labels of \(3,\)"):
        load("fashion_mnist", folder)
    write_idx(folder / "fashion-mnist" / FASHION_FILES[3], np.full(20, 10, np.uint8))
    with pytest.raises(DataError, match=r"label from 0 to 9, got .* labels of \(20,\) up to 10"):
        load("fashion_mnist", folder)


def test_invalid_cifar10_files_are_rejected(folder, monkeypatch):
    (folder / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(DataError, match=r"test_batch.bin must be of CIFAR-10's binary version"):
        load("cifar10", folder)

    def no_permission(file, dtype):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(np, "fromfile", no_permission)
    with pytest.raises(DataError, match=r"data_batch_1.bin cannot be read: .*Permission denied"):
        load("cifar10", folder)


@pytest.mark.parametrize("name", NAMES)
def test_sweep_trains_on_given_data(folder, name):
    settings = MaskingConfig(dataset=name, steps=2, batch=4, evaluations=1)
    (row,) = [e.row for e in sweep(settings, [0.1], data=load(name, folder)) if isinstance(e, RowEnded)]
    assert row["dataset"] == name
    assert 0 <= row["accuracy"] <= 1
