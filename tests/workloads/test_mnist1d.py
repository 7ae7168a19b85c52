"""MNIST-1D is generated once, from a fixed seed, and read from the cache afterwards."""

import sys

import numpy as np
import pytest

from dgc_lab.common import save_arrays
from dgc_lab.workloads import DataError, load, mnist1d


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A cache folder of its own, and a data set of 50 + 20 signals."""
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(mnist1d, "TRAIN_EXAMPLES", 50)
    monkeypatch.setattr(mnist1d, "TEST_EXAMPLES", 20)
    return tmp_path / "cache" / "mnist1d.npz"


def test_full_data_set_has_the_expected_layout():
    data = load("mnist1d")
    assert data.x_train.shape == (15_000, 40, 1)
    assert data.x_test.shape == (10_000, 40, 1)
    assert data.x_train.dtype == np.float32
    assert data.y_train.dtype == np.int32
    assert np.bincount(np.concatenate([data.y_train, data.y_test])).tolist() == [2500] * 10
    signals = np.concatenate([data.x_train, data.x_test])
    assert abs(signals.mean()) < 1e-3
    assert abs(signals.std() - 1) < 1e-3


def test_data_is_generated_once(small, capsys):
    first = mnist1d.mnist1d()
    assert "Generating MNIST-1D" in capsys.readouterr().out
    assert small.exists()
    second = mnist1d.mnist1d()
    assert "Generating" not in capsys.readouterr().out
    assert first.fingerprint() == second.fingerprint()
    assert [file.name for file in small.parent.iterdir()] == ["mnist1d.npz"]


def test_generation_repeats_and_keeps_numpys_random_state(small):
    np.random.seed(7)
    expected = np.random.random()
    np.random.seed(7)
    first = mnist1d.mnist1d()
    assert np.random.random() == expected
    small.unlink()
    assert mnist1d.mnist1d().fingerprint() == first.fingerprint()


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_damaged_cache_is_replaced(small, damage):
    first = mnist1d.mnist1d()
    if damage is None:  # another size
        save_arrays(small, **dict.fromkeys(mnist1d.ARRAYS, np.zeros(3)))
    else:
        small.write_bytes(damage)
    assert mnist1d.mnist1d().fingerprint() == first.fingerprint()


def test_missing_package_is_named(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "mnist1d.data", None)
    with pytest.raises(DataError, match=r"MNIST-1D needs the package mnist1d.*pip install mnist1d"):
        mnist1d.mnist1d()


def test_a_path_is_rejected():
    with pytest.raises(ValueError, match="path must be None for dataset 'mnist1d', which needs no file, got"):
        load("mnist1d", "somewhere")
