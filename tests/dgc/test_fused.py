"""The fused step and the algorithm as it is written, side by side: the same elements and the same bits."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.common import LabError, cpp_compiler
from dgc_lab.dgc import fused_build
from dgc_lab.dgc.compressor import Compressor
from dgc_lab.dgc.config import DGCConfig
from dgc_lab.distributed.communicators import OneWorker, SimulatedWorkers

SHAPES = [(130, 90), (40,), (13, 7), (1, 1), (64, 5), (0, 5)]  # one large enough for a sample; ends of blocks; none
SWITCHES = {
    "defaults": {},
    "nesterov": {"nesterov": True},
    "no accumulation": {"accumulate": False},
    "no momentum correction": {"momentum_correction": False},
    "no factor masking": {"factor_masking": False},
    "no momentum": {"momentum": 0.0},
    "clipped": {"clip_norm": 1.0},
    "weight decay": {"weight_decay": 1e-3},
    "warm-up": {"warm_up": (1.0, 0.6, 0.25, 0.05), "warm_up_steps": 30},
    "float16": {"values": "float16"},
    "run lengths": {"indices": "run_lengths"},
    "never dense": {"switch_to_dense": False, "ratio": 1.0},
    "vectors too": {"dense_vectors": False},
    "some whole": {"dense_below": 200},
    "exact": {"rule": "exact"},
    "hierarchical": {"rule": "hierarchical"},
    "global": {"scope": "global"},
    "first": {"scope": "first"},
    "sum": {"reduction": "sum"},
    "nothing sent": {"ratio": 0.0},
}
# Tracing two trainings takes seconds, and a bit that differs shows in company too; each by itself is "long".
TOGETHER = (
    *("defaults", "no accumulation", "never dense", "nothing sent"),
    *("nesterov + clipped + float16", "no momentum correction + weight decay", "some whole + first"),
    *("no factor masking + run lengths + exact", "no momentum + vectors too + hierarchical", "warm-up + global + sum"),
)
BY_THEMSELVES = [pytest.param(name, marks=pytest.mark.long) for name in SWITCHES if name not in TOGETHER]

# Where there is a compiler, what does not compile or load fails.
pytestmark = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler here")


def bits(tensors):
    """As integers: -0.0 and 0.0 differ, NaN is itself."""
    return [tf.bitcast(tf.convert_to_tensor(tensor), tf.int32) for tensor in tensors]


def gradients(step, workers=2, shapes=SHAPES):
    size = 1 + tf.sin(tf.cast(step, tf.float32) / 7)  # some steps are larger than others
    return [
        [size * tf.random.stateless_normal(shape, [step, 10 * worker + i]) for i, shape in enumerate(shapes)]
        for worker in range(workers)
    ]


class Pair:
    """Two trainings of the same gradients; of one the compressor's step is fused."""

    def __init__(self, config, workers=2, shapes=SHAPES):
        self.weights = [
            [tf.Variable(tf.random.stateless_normal(shape, (9, i))) for i, shape in enumerate(shapes)] for _ in range(2)
        ]
        names = [*"abcdef"][: len(shapes)]
        self.compressors = [Compressor(config, own, SimulatedWorkers(workers), names) for own in self.weights]
        assert bool(self.compressors[0].fused) == config.accumulate
        self.compressors[1].fused = ()

        def step(number, ratios):
            every = gradients(number, workers, shapes)
            # The ratio is a tensor, and then the way that elements travel is one, too.
            mine, plain = (compressor.train(every, 0.05, ratios[0]).kept for compressor in self.compressors)
            with tf.control_dependencies([tf.debugging.assert_equal(mine, plain)]):
                return number + 1, ratios[1:]

        shapes_of = tf.TensorShape([]), tf.TensorShape([None])
        goes_on = lambda number, ratios: tf.size(ratios) > 0  # noqa: E731
        self.steps = tf.function(
            lambda first, ratios: tf.while_loop(goes_on, step, (first, ratios), shapes_of, parallel_iterations=1)[0],
            input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.float64)],
            autograph=False,
        )

    def everything(self, of):
        return [*self.weights[of], *self.compressors[of].state[1:]]

    def assert_same(self):
        for one, other in zip(bits(self.everything(0)), bits(self.everything(1)), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("names", [*TOGETHER, *BY_THEMSELVES])
def test_200_steps_are_the_algorithms_to_the_bit(names):
    options = {"ratio": 0.02, "dense_below": 0}
    for name in names.split(" + "):
        options |= SWITCHES[name]
    config = DGCConfig(**options)
    pair = Pair(config)
    for first in range(0, 200, 20):
        pair.steps(first, [config.ratio_at(step) for step in range(first, first + 20)])
        pair.assert_same()


@pytest.mark.parametrize("values", ["float32", "float16"])
def test_a_large_tensor_is_shared_out_among_threads(values):
    pair = Pair(DGCConfig(ratio=0.003, dense_vectors=False, values=values), 1, [(1_000_003,)])
    pair.steps(0, [0.003] * 3)
    pair.assert_same()


def test_eagerly_and_by_call_too():
    config = DGCConfig(ratio=0.02, dense_below=0)
    pair = Pair(config)
    for step in range(5):
        every = gradients(step)
        updates = [compressor(every)[0] for compressor in pair.compressors]
        for one, other in zip(*map(bits, updates), strict=True):
            np.testing.assert_array_equal(one, other)
        pair.compressors[0].train(every, 0.1)
        pair.compressors[1].train(every, 0.1)
    pair.assert_same()


@pytest.mark.parametrize(
    ("bad", "traced"),
    [
        (float("nan"), True),
        (float("inf"), False),
        pytest.param(float("nan"), False, marks=pytest.mark.long),
        pytest.param(float("inf"), True, marks=pytest.mark.long),
    ],
)
def test_a_gradient_that_is_not_finite_changes_nothing_on_any_worker(bad, traced):
    pair = Pair(DGCConfig(ratio=0.02, dense_below=0))
    pair.steps(0, [0.02] * 3)
    [compressor, _], [weights, _] = pair.compressors, pair.weights
    before = [variable.numpy() for variable in (*weights, *compressor.state)]
    spoilt = gradients(3)
    spoilt[1][2] = tf.tensor_scatter_nd_update(spoilt[1][2], [[12, 3]], [bad])
    train = tf.function(compressor.train, autograph=False) if traced else compressor.train
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="on worker 1 holds NaN or infinity"):
            train(spoilt, 0.05)
        for variable, value in zip((*weights, *compressor.state), before, strict=True):
            np.testing.assert_array_equal(variable, value)
    pair.steps(3, [0.02] * 2)
    pair.assert_same()


def test_what_was_read_does_not_change():
    weight = tf.Variable(tf.zeros([300]))
    compressor = Compressor(DGCConfig(ratio=0.1, dense_vectors=False, dense_below=0), [weight], OneWorker())
    assert compressor.fused
    step = tf.function(lambda g: compressor.train([[g]], 0.1), autograph=False)
    read, values = [], []
    for number in range(6):
        step(tf.random.stateless_normal([300], (number, 0)))
        for variable in (weight, compressor.residuals[0][0], compressor.velocities[0][0]):
            read.append(variable.read_value())
            values.append(read[-1].numpy().copy())
    for tensor, value in zip(read, values, strict=True):
        np.testing.assert_array_equal(tensor, value)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_types_run_the_algorithm_as_it_is_written(dtype):
    assert not Compressor(DGCConfig(), [tf.Variable(tf.zeros([50, 50], dtype))], OneWorker()).fused


def test_it_is_built_once_and_kept_for_its_owner_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path / "cache"))
    built = fused_build.build()
    assert capsys.readouterr().out.count("\n") == 1
    assert built.name.startswith(f"tf{tf.__version__}-")
    assert built.parent.stat().st_mode & 0o777 == 0o700
    changed = built.stat().st_mtime_ns
    assert fused_build.build() == built
    assert built.stat().st_mtime_ns == changed
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("spoil", ["writable", "link"])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path, monkeypatch, spoil):
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path))
    if spoil == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "fused").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "fused").mkdir()
        (tmp_path / "fused").chmod(0o777)
    with pytest.raises(LabError, match=r"fused must be a folder of yours alone \(chmod 700"):
        fused_build.build()


def test_without_a_compiler_the_algorithm_runs_and_that_is_said_once(tmp_path):
    code = """
import tensorflow as tf
from dgc_lab.dgc import Compressor, DGCConfig
from dgc_lab.distributed import OneWorker
for _ in range(2):
    weight = tf.Variable([[1.0, 2.0]])
    compressor = Compressor(DGCConfig(ratio=0.5, momentum=0.0, dense_below=0), [weight], OneWorker())
    compressor.train([[tf.constant([[0.25, -0.5]])]], 1.0)
    print(compressor.fused, weight.numpy().tolist())
"""
    environment = {**os.environ, "PATH": str(tmp_path), "DGC_LAB_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    sentence, *results = done.stdout.splitlines()
    assert sentence.startswith("Compression runs on TensorFlow's own operations, more slowly: there is no C++ compiler")
    assert results == ["() [[1.0, 2.5]]"] * 2, done.stderr
