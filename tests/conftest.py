"""Settings and fixtures of all tests: TensorFlow's log level, data sets, ranks, and the order of parallel tests."""

import gc
import os
import signal
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
if "DGC_LAB_TEST_GPU" not in os.environ:  # see CONTRIBUTING.md
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.pop("DGC_LAB_DATA", None)

import numpy as np
import pytest
import tqdm.auto  # noqa: F401, first: after ipykernel's shell it would choose notebooks' progress bars
from hypothesis import settings

from browser import jupyterlab, lesson_file, page, screenshot_of_a_failure  # noqa: F401, fixtures for the browser tests
from instructor import course  # noqa: F401
from kernels import kernel  # noqa: F401
from outside import neighbour  # noqa: F401

# The workers keep all cores busy, where threads that wait for each other cost a third more time. The last bits of a
# number depend on how many threads share an operation; tests that compare recorded bits are marked "alone".
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    # Two idle Horovod ranks that ask each other for work a thousand times a second take 0.4 of a core.
    os.environ.setdefault("HOROVOD_CYCLE_TIME", "5")
gc.disable()  # an eighth of the time that TensorFlow's import takes; `pytest_collection_finish` enables it

# Variables that make exports would change how a make behaves that a test calls.
for name in ("GPU", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"):
    os.environ.pop(name, None)

# A shell starts background commands with SIGINT ignored, and tests that interrupt themselves would never end.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# TensorFlow's first call of an operation takes far longer than the later ones.
settings.register_profile("lab", deadline=None, max_examples=60)
settings.load_profile("lab")

ROOT = Path(__file__).resolve().parent.parent
EXERCISES = ROOT / "notebooks" / "exercises"
MNIST = ROOT.parent / "shared" / "data" / "mnist.npz"

# The slowest files, which run first: a long file started last leaves the other workers idle.
LONGEST = (
    "07_bring_your_own_model.ipynb",
    "05_dgc_on_horovod.ipynb",
    "test_clusters.py",
    "test_two_ranks.py",
    "test_algorithm.py",
    "04_dgc_masking.ipynb",
    "test_thresholds.py",
    "test_native.py",
    "09_what_a_cluster_pays.ipynb",
    "08_other_compressors.ipynb",
    "01_gradient_aggregation.ipynb",
    "test_faults.py",
    "test_tensorflow_clusters.py",
    "02_variable_aggregation.ipynb",
    "test_sweep.py",
    "06_thresholds_and_scale.ipynb",
    "test_training_loop.py",
    "test_browser_start.py",
    "test_gallery.py",
    "test_optimizers.py",
    "test_on_ranks.py",
)
# Lesson 3 compares the speeds of runs that follow each other.
LESSONS_ALONE = ("03_sync_vs_async.ipynb",)


def pytest_collection_modifyitems(config, items):
    """Mark notebooks and nightly cases, and sort the slowest files first.

    Exercise notebooks are nightly, because tests/exercises runs their cells in the first tier.
    """
    for item in items:
        if item.path.name in LESSONS_ALONE:
            item.add_marker("alone")
        by_day = item.get_closest_marker("nightly_except")
        if EXERCISES in item.path.parents or (by_day and item.callspec.id not in by_day.args):
            item.add_marker("nightly")
    if hasattr(config, "workerinput"):  # one of pytest-xdist's workers
        places = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_collection_finish():
    """Exclude imported objects from garbage collection, which Keras triggers for each new model."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def real_mnist():
    """Path of the real MNIST file; skip the test if it is missing."""
    if not MNIST.exists():
        pytest.skip(f"no MNIST file at {MNIST}")
    return MNIST


@pytest.fixture
def small_mnist(tmp_path):
    """A file in MNIST's layout with 30 + 20 images."""
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (30, 28, 28), np.uint8),
        "y_train": rng.integers(0, 10, 30).astype(np.uint8),
        "x_test": rng.integers(0, 256, (20, 28, 28), np.uint8),
        "y_test": rng.integers(0, 10, 20).astype(np.uint8),
    }
    np.savez(tmp_path / "mnist.npz", **arrays)
    return tmp_path / "mnist.npz", arrays


@pytest.fixture(scope="session")
def digits():
    from dgc_lab.workloads.data import load

    return load("digits")


@pytest.fixture(scope="session")
def horovod():
    """Skip the test if Horovod is not built."""
    from dgc_lab.install.build_horovod import horovod_state

    if horovod_state()[0] is None:
        pytest.skip("Horovod is not built here")


@pytest.fixture(autouse=True)
def handlers_of_signals():
    """Restore signal handlers after each test, because commands called in this process set their own."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def warm_ranks(horovod):
    """Two Horovod ranks for a whole module; request `two_ranks`.

    Not for the session: idle ranks poll each other a thousand times a second.
    """
    from dgc_lab.cluster import HorovodRanks

    with HorovodRanks(2, progress=None, grace=20) as ranks:
        yield ranks


@pytest.fixture
def two_ranks(warm_ranks):
    """Two running Horovod ranks, restarted if the previous test stopped them."""
    return warm_ranks if warm_ranks.ready else warm_ranks.restart()
