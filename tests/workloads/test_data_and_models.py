"""Loading data sets from all supported locations, and the two networks."""

import hashlib
import http.server
import threading
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.workloads import data
from dgc_lab.workloads.batches import cross_entropy, make_evaluator
from dgc_lab.workloads.models import MODELS, digits_cnn, mnist_cnn
from dgc_lab.workloads.text import Vocabulary


def check_layout(found, train, test, side):
    assert found.x_train.shape == (train, side, side, 1)
    assert found.x_test.shape == (test, side, side, 1)
    for images, labels in ((found.x_train, found.y_train), (found.x_test, found.y_test)):
        assert images.dtype == np.float32
        assert images.min() >= 0
        assert images.max() <= 1
        assert labels.dtype == np.int32
        assert set(labels.tolist()) <= set(range(10))


def test_digits_have_the_expected_layout(digits):
    check_layout(digits, 1437, 360, 8)
    assert np.bincount(digits.y_test).min() >= 34, "every digit must be in the test set"
    together = np.concatenate([digits.x_train, digits.x_test]).reshape(1797, 64)
    from sklearn.datasets import load_digits

    original = load_digits().data / 16
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(original, axis=0).astype(np.float32))


def test_fingerprint_distinguishes_data(digits):
    assert digits.fingerprint() == data.load("digits").fingerprint()
    other = data.Dataset("digits", digits.x_train, digits.y_train[::-1], digits.x_test, digits.y_test)
    assert other.fingerprint() != digits.fingerprint()


@pytest.mark.parametrize("given", ["file", "folder", "environment"])
def test_mnist_loads_from_each_location(small_mnist, given, monkeypatch):
    file, arrays = small_mnist
    if given == "environment":
        monkeypatch.setenv("DGC_LAB_DATA", str(file.parent))
    found = data.load("mnist", {"file": file, "folder": file.parent, "environment": None}[given])
    check_layout(found, 30, 20, 28)
    np.testing.assert_array_equal(np.round(found.x_train[..., 0] * 255), arrays["x_train"])
    np.testing.assert_array_equal(found.y_test, arrays["y_test"])


def test_real_mnist_has_the_expected_layout(real_mnist):
    found = data.load("mnist", real_mnist)
    check_layout(found, 60_000, 10_000, 28)
    assert np.bincount(found.y_test)[:3].tolist() == [980, 1135, 1032]


def test_missing_mnist_paths_are_named(tmp_path, monkeypatch):
    with pytest.raises(data.DataError, match=r"path is .*nowhere.*no MNIST file"):
        data.load("mnist", tmp_path / "nowhere")
    monkeypatch.setenv("DGC_LAB_DATA", str(tmp_path))
    with pytest.raises(data.DataError, match=r"DGC_LAB_DATA is .*mnist\.npz"):
        data.load("mnist")


def test_files_that_are_not_mnist_are_rejected(tmp_path, small_mnist):
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"no archive")
    with pytest.raises(data.DataError, match="not MNIST in Keras's layout"):
        data.load("mnist", broken)
    np.savez(broken, x_train=np.zeros(3))
    with pytest.raises(data.DataError, match="not MNIST in Keras's layout"):
        data.load("mnist", broken)
    np.savez(broken, **{**small_mnist[1], "x_test": np.zeros((5, 8, 8), np.uint8)})
    with pytest.raises(data.DataError, match=r"x_test in .* must be uint8 .*, got uint8 \(5, 8, 8\)"):
        data.load("mnist", broken)


def test_pickled_objects_are_rejected(tmp_path, small_mnist):
    file = tmp_path / "objects.npz"
    np.savez(file, **{**small_mnist[1], "x_train": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(data.DataError, match="allow_pickle"):
        data.load("mnist", file)


@pytest.fixture
def loopback_download(small_mnist, tmp_path, monkeypatch):
    """Point the MNIST URL at a local server and the Keras cache at an empty folder."""
    file, _ = small_mnist

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=file.parent)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(data, "MNIST_URL", f"http://127.0.0.1:{server.server_port}/mnist.npz")
    monkeypatch.setattr(data, "MNIST_SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    yield server
    server.shutdown()
    server.server_close()


def test_download_is_announced_and_happens_once(loopback_download, capsys):
    check_layout(data.load("mnist"), 30, 20, 28)
    assert "downloading 11 MB from http://127.0.0.1" in capsys.readouterr().out
    loopback_download.shutdown()
    check_layout(data.load("mnist"), 30, 20, 28)
    assert "downloading" not in capsys.readouterr().out


def test_download_with_a_wrong_hash_is_rejected(loopback_download, monkeypatch):
    monkeypatch.setattr(data, "MNIST_SHA256", "0" * 64)
    with pytest.raises(data.DataError, match="could not be downloaded"):
        data.load("mnist")


def test_failed_download_suggests_both_alternatives(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(data, "MNIST_URL", "http://127.0.0.1:9/mnist.npz")  # no server on this port
    with pytest.raises(data.DataError, match=r"set DGC_LAB_DATA to its path.*dataset='digits', which needs no network"):
        data.load("mnist")


def test_invalid_data_set_arguments_are_rejected():
    with pytest.raises(ValueError, match=r"name must be one of digits, mnist1d, .*, got 'cifar'"):
        data.load("cifar")
    with pytest.raises(ValueError, match="path must be None for dataset 'digits'"):
        data.load("digits", "somewhere")


def test_mnist_network_matches_the_published_one():
    model = mnist_cnn()
    assert model.count_params() == 3_274_634
    shapes = [tuple(variable.shape) for variable in model.trainable_variables]
    assert shapes == [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (3136, 1024), (1024,), (1024, 10), (10,)]
    assert model.get_layer("dropout").rate == 0.4
    assert model.output_shape == (None, 10)


def test_digits_network_has_38282_parameters():
    assert digits_cnn().count_params() == 38_282


@pytest.mark.parametrize("build", MODELS.values())
def test_seed_determines_the_initial_weights(build):
    first, again, other = build(3), build(3), build(4)
    for one, two in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    kernels = [variable.path for variable in first.trainable_variables if "kernel" in variable.path]
    differ = [np.any(a != b) for a, b in zip(first.get_weights(), other.get_weights(), strict=True)]
    assert sum(differ) >= len(kernels)


@pytest.mark.parametrize(
    ("name", "message"), [("x_test", r"x_test in .* must be uint8 .*, got \|S8 \(\)"), ("y_test", "digit")]
)
def test_archive_members_must_be_arrays(small_mnist, name, message):
    """NumPy returns raw bytes for members that are not arrays."""
    file, arrays = small_mnist
    np.savez(file, **{key: value for key, value in arrays.items() if key != name})
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(f"{name}.npy", b"no array")
    with pytest.raises(data.DataError, match=message):
        data.load("mnist", file)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("~nosuchuser/x", "path is '~nosuchuser/x'"),
        ("", "path is ''"),
        ("x" * 5000, "path is 'x+', which cannot be read .*File name too long"),
    ],
)
def test_invalid_paths_are_rejected_without_download(name, path, told):
    with pytest.raises(data.DataError, match=told):
        data.load(name, path)


def test_evaluator_rejects_mismatched_inputs_and_targets():
    images = np.zeros((4, 2), np.float32)
    with pytest.raises(ValueError, match="targets must have at least one element"):
        make_evaluator(images[:0], np.zeros(0, np.int32))
    with pytest.raises(ValueError, match="targets must be as many as inputs, got 3 targets for 4 inputs"):
        make_evaluator(images, np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="labels must be whole numbers, got float32"):
        cross_entropy(tf.zeros([4]), tf.zeros([4, 2]))


@pytest.mark.parametrize("kind", [list, iter])
def test_vocabulary_accepts_any_iterable(kind):
    vocabulary = Vocabulary(kind(["[UNK]", "[MASK]", "a"]))
    assert hash(vocabulary) == hash(Vocabulary(("[UNK]", "[MASK]", "a")))
    assert vocabulary.decode([2]) == "a"
