"""The C++ operations and the TensorFlow operations select the same elements and give the same bits."""

import contextlib
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.common import LabError, cpp_compiler
from dgc_lab.compression import dgc, local_sgd, masking, native, parse_scheme, qsgd, random_k, top_k, with_momentum
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.scheme import StepContext
from dgc_lab.compression.selection import Rule, accumulate_and_select
from dgc_lab.distributed.communicators import OneWorker, SimulatedWorkers

SHAPES = [(130, 90), (40,), (13, 7), (1, 1), (64, 5), (0, 5)]  # sampled, ends of blocks, empty
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
    "some uncompressed": {"dense_below": 200},
    "exact": {"rule": "exact"},
    "hierarchical": {"rule": "hierarchical"},
    "global": {"scope": "global"},
    "first": {"scope": "first"},
    "sum": {"reduction": "sum"},
    "nothing sent": {"ratio": 0.0},
}
# Tracing two trainings takes seconds, so most switches run combined; each switch alone runs nightly.
COMBINED = (
    *("defaults", "no accumulation", "never dense", "nothing sent"),
    *("nesterov + clipped + float16", "no momentum correction + weight decay", "some uncompressed + first"),
    *("no factor masking + run lengths + exact", "no momentum + vectors too + hierarchical", "warm-up + global + sum"),
)
SEPARATE = [name for name in SWITCHES if name not in COMBINED]

SCHEMES = {
    "masking": masking(0.02),
    "top_k": top_k(0.02),
    "dgc": dgc(0.02),
    "random_k": random_k(0.02),
    "threshold": parse_scheme("threshold:limit=2.5"),
    "masking with momentum": with_momentum(masking(0.05), nesterov=True),
    "local top_k": local_sgd(top_k(0.02), every=3),
    "qsgd": qsgd(4),
    "powersgd": parse_scheme("powersgd"),
}
SELECTING = ("masking", "top_k", "dgc")

# With a compiler, a failure to compile or to load the library fails these tests.
pytestmark = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler here")


@contextlib.contextmanager
def implementation(native_on):
    """Choose C++ or TensorFlow for the steps that are traced or run inside."""
    before, native.enabled = native.enabled, native_on
    try:
        yield
    finally:
        native.enabled = before


def bits(tensors):
    """Return the tensors' bytes: -0.0 differs from 0.0, and NaN equals itself."""
    return [np.ascontiguousarray(tensor).reshape(-1).view(np.uint8) for tensor in map(np.asarray, tensors)]


def assert_same_bits(one, other):
    for first, second in zip(bits(one), bits(other), strict=True):
        np.testing.assert_array_equal(first, second)


def gradients(step, workers=2, shapes=SHAPES, dtype=tf.float32):
    size = 1 + tf.sin(tf.cast(step, tf.float32) / 7)  # some steps are larger than others
    return [
        [
            tf.cast(size * tf.random.stateless_normal(shape, [step, 10 * worker + i]), dtype)
            for i, shape in enumerate(shapes)
        ]
        for worker in range(workers)
    ]


class Pair:
    """Two trainings with the same gradients: the first one runs in C++, the second one in TensorFlow."""

    def __init__(self, scheme, workers=2, shapes=SHAPES, options=None, dtype=tf.float32):
        self.weights = [
            [tf.Variable(tf.cast(tf.random.stateless_normal(shape, (9, i)), dtype)) for i, shape in enumerate(shapes)]
            for _ in range(2)
        ]
        names = [*"abcdef"][: len(shapes)]
        self.compressors = [Compressor(scheme, own, SimulatedWorkers(workers), names, options) for own in self.weights]

        def step(number, ratios):
            every, sent = gradients(number, workers, shapes, dtype), []
            # The ratio is a tensor, so the choice of collective depends on it as well.
            for compressor, native_on in zip(self.compressors, (True, False), strict=True):
                with implementation(native_on):
                    sent.append(compressor.train(every, 0.05, ratios[0]).num_sent)
            with tf.control_dependencies([tf.debugging.assert_equal(*sent)]):
                return number + 1, ratios[1:]

        shapes_of = tf.TensorShape([]), tf.TensorShape([None])
        has_more = lambda number, ratios: tf.size(ratios) > 0  # noqa: E731
        self.steps = tf.function(
            lambda first, ratios: tf.while_loop(has_more, step, (first, ratios), shapes_of, parallel_iterations=1)[0],
            input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.float64)],
            autograph=False,
        )

    def variables_of(self, of):
        return [*self.weights[of], *self.compressors[of].state[1:]]

    def assert_same(self):
        assert_same_bits(self.variables_of(0), self.variables_of(1))


@pytest.mark.nightly_except("defaults", "nesterov + clipped + float16", "no momentum + vectors too + hierarchical")
@pytest.mark.parametrize("names", [*COMBINED, *SEPARATE])
def test_200_steps_give_the_same_bits(names):
    options = {"ratio": 0.02, "dense_below": 0}
    for name in names.split(" + "):
        options |= SWITCHES[name]
    config = DGCConfig(**options)
    pair = Pair(config)
    for first in range(0, 200, 20):
        pair.steps(first, [config.ratio_at(step) for step in range(first, first + 20)])
        pair.assert_same()


@pytest.mark.parametrize(
    "name", [name if name in SELECTING else pytest.param(name, marks=pytest.mark.nightly) for name in SCHEMES]
)
def test_40_steps_of_other_schemes_give_the_same_bits(name):
    options = DGCConfig(dense_below=0, values="float16" if name == "masking" else "float32", weight_decay=1e-3)
    pair = Pair(SCHEMES[name], options=options)
    pair.steps(0, [0.02] * 40)
    pair.assert_same()
    before = pair.variables_of(0)[0].numpy()
    pair.steps(40, [0.02] * 3)
    assert (pair.variables_of(0)[0].numpy() != before).any(), "the weights must change"


@pytest.mark.parametrize("native_on", [True, False])
@pytest.mark.parametrize("name", ["paper", "no accumulation", *SELECTING])
def test_native_switch_decides_which_operations_are_traced(name, native_on):
    """Masking and the top-k schemes also select in C++."""
    options = DGCConfig(ratio=0.02, accumulate=name != "no accumulation")
    given = {"scheme": SCHEMES[name], "options": options} if name in SCHEMES else {"scheme": options}
    compressor = Compressor(variables=[tf.Variable(tf.zeros([50, 50]))], communicator=OneWorker(), **given)
    step = tf.function(lambda gradient: compressor.train([[gradient]], 0.1).num_sent, autograph=False)
    with implementation(native_on):
        graph = step.get_concrete_function(tf.TensorSpec([50, 50])).graph
    found = {operation.type for operation in graph.get_operations()}
    ours = {"DgcAccumulateAndSelect", "DgcSubtract"}
    assert {kind for kind in found if kind.startswith("Dgc")} == (ours if native_on else set())


@pytest.mark.parametrize("values", ["float32", "float16"])
def test_threads_share_a_large_tensor(values):
    pair = Pair(DGCConfig(ratio=0.003, dense_vectors=False, values=values), 1, [(1_000_003,)])
    pair.steps(0, [0.003] * 3)
    pair.assert_same()


def test_eager_calls_and_steps_give_the_same_bits():
    config = DGCConfig(ratio=0.02, dense_below=0)
    pair = Pair(config)
    for step in range(5):
        every, updates = gradients(step), []
        for compressor, native_on in zip(pair.compressors, (True, False), strict=True):
            with implementation(native_on):
                updates.append(compressor(every)[0])
                compressor.train(every, 0.1)
        assert_same_bits(*updates)
    pair.assert_same()


@pytest.mark.nightly_except("nan-True")
@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_gradient_changes_nothing_on_any_worker(bad, traced):
    pair = Pair(DGCConfig(ratio=0.02, dense_below=0))
    pair.steps(0, [0.02] * 3)
    spoilt = gradients(3)
    spoilt[1][2] = tf.tensor_scatter_nd_update(spoilt[1][2], [[12, 3]], [bad])
    before = [[variable.numpy() for variable in pair.variables_of(of)] for of in (0, 1)]
    for compressor, native_on in zip(pair.compressors, (True, False), strict=True):
        train = tf.function(compressor.train, autograph=False) if traced else compressor.train
        for ratio in (0.02, 0.0, 0.0):
            with (
                implementation(native_on),
                pytest.raises(
                    tf.errors.InvalidArgumentError, match=r"gradient of \W*c\W* on worker 1 holds NaN or inf"
                ),
            ):
                train(spoilt, 0.05, tf.constant(ratio, tf.float64))
        assert compressor.step.numpy() == 3
    for of in (0, 1):
        assert_same_bits(pair.variables_of(of), before[of])
    pair.steps(3, [0.02] * 2)
    pair.assert_same()


@pytest.mark.parametrize("native_on", [True, False])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 1.0}, {"accumulate": False}, {"values": "float16"}])
def test_first_bad_variable_is_named(options, native_on):
    """Clipping spreads NaN to all gradients; uncompressed tensors are checked as well."""
    weights = [tf.Variable(tf.zeros(shape)) for shape in ((40, 50), (50,), (30, 40), (40,))]
    compressor = Compressor(DGCConfig(0.01, dense_below=0, **options), weights, SimulatedWorkers(2), [*"abcd"])
    train = tf.function(compressor.train, autograph=False)
    for position, name in enumerate("abcd"):
        spoilt = [[tf.ones(weight.shape) for weight in weights] for _ in range(2)]
        flat = tf.tensor_scatter_nd_update(tf.reshape(spoilt[1][position], [-1]), [[37]], [float("nan")])
        spoilt[1][position] = tf.reshape(flat, weights[position].shape)
        for ratio in (0.0, 0.01, 1.0):
            with (
                implementation(native_on),
                pytest.raises(tf.errors.InvalidArgumentError, match=rf"gradient of \W*{name}\W* on worker 1"),
            ):
                train(spoilt, 0.1, tf.constant(ratio, tf.float64))
    assert not any(np.any(variable) for variable in (*weights, *compressor.state))


def test_values_read_earlier_do_not_change_in_a_step():
    weight = tf.Variable(tf.zeros([300]))
    compressor = Compressor(DGCConfig(ratio=0.1, dense_vectors=False, dense_below=0), [weight], OneWorker())
    step = tf.function(lambda g: compressor.train([[g]], 0.1), autograph=False)
    read, values = [], []
    for number in range(6):
        step(tf.random.stateless_normal([300], (number, 0)))
        kept = [weight, *tf.nest.flatten(compressor.states)]
        for tensor in (*(variable.read_value() for variable in kept), compressor.residuals()[0]):
            read.append(tensor)
            values.append(tensor.numpy().copy())
    assert len(kept) == 3
    for tensor, value in zip(read, values, strict=True):
        np.testing.assert_array_equal(tensor, value)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float64", marks=pytest.mark.nightly)])
def test_weights_of_other_types_get_the_same_bits(dtype):
    pair = Pair(DGCConfig(ratio=0.02, dense_below=0), dtype=dtype)
    pair.steps(0, [0.02] * 10)
    pair.assert_same()
    assert all(variable.dtype == tf.float32 for variable in tf.nest.flatten(pair.compressors[0].states))


@pytest.mark.parametrize(
    ("parts", "state", "message"),
    [
        ([[1.0, 2.0]], [[0.0, 0.0, 0.0]], "gradients must have the sizes"),
        ([[1.0, 2.0], [3.0]], [[0.0, 0.0, 0.0]], "gradients must have the sizes"),
        ([[1.0, 2.0, 3.0]], [[0.0, 0.0]], "state must be as long as sizes"),
        ([[1.0], [2.0, 3.0]], [], "gradients must be one tensor where there is no state"),
    ],
)
def test_mismatched_lengths_are_rejected(parts, state, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        native.operations().dgc_accumulate_and_select(
            gradients=[tf.constant(part) for part in parts],
            state=[tf.constant(part) for part in state],
            ratio=tf.constant(0.5, tf.float64),
            strides=[1, 1],
            starts=[0, 0],
            sizes=[1, 2],
            segments=[1, 2],
            hierarchical=False,
            momentum=0.0,
            nesterov=False,
            clear_velocity=True,
            round_to_half=False,
        )


def test_a_vector_shorter_than_its_segments_is_rejected():
    with pytest.raises(tf.errors.InvalidArgumentError, match="x must be at least as long as all segments together"):
        native.operations().dgc_thresholds(
            tf.constant([1.0, 2.0]), tf.constant(0.5, tf.float64), [1, 1], [0, 0], segments=[1, 2], hierarchical=False
        )


@pytest.mark.parametrize("native_on", [True, False])
@pytest.mark.parametrize("parts", [True, False])
def test_one_step_matches_a_hand_computed_example(native_on, parts):
    """u = 0.5 u + g and v = v + u; the largest element of each tensor is sent and cleared in both."""
    tensors = [tf.constant([[1.0, -4.0]]), tf.constant([2.0])]
    gradient = tf.constant([1.0, -4.0, 2.0])
    context = StepContext((2, 1), tf.constant([0, 0]), tf.constant([0, 0]), 1, 0.5)
    if parts:
        context = context._replace(parts=tensors, gradient=gradient)
    state = tf.constant([1.0, 0.0, 0.0]), tf.constant([2.0, 0.0, 8.0])
    with implementation(native_on):
        indices, values, new = accumulate_and_select(gradient, state, Rule(0.5, "exact"), context, momentum=0.5)
    assert indices.numpy().tolist() == [1, 2]
    assert values.numpy().tolist() == [-4.0, 6.0]
    assert [part.numpy().tolist() for part in new] == [[3.0, 0.0, 0.0], [2.0, 0.0, 0.0]]


@pytest.mark.nightly
def test_library_is_compiled_once_into_a_private_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path / "cache"))
    built = native.build()
    assert capsys.readouterr().out.count("\n") == 1
    assert built.name.startswith(f"tf{tf.__version__}-")
    assert built.parent == native.private_folder() == tmp_path / "cache" / "native"
    assert built.parent.stat().st_mode & 0o777 == 0o700
    changed = built.stat().st_mtime_ns
    assert native.build() == built
    assert built.stat().st_mtime_ns == changed
    assert capsys.readouterr().out == ""


def test_a_wait_for_the_compiling_process_is_announced(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(native, "SECONDS_BEFORE_NOTICE", 0)
    with open(tmp_path / "lock", "w") as held, open(tmp_path / "lock", "w") as wanted:
        native.lock_file(held)
        waiting = threading.Thread(target=native.lock_file, args=(wanted,))
        waiting.start()
        while "Waiting for another process" not in capsys.readouterr().out:
            assert waiting.is_alive()
            time.sleep(0.05)
        held.close()
        waiting.join(60)
        assert not waiting.is_alive()


@pytest.mark.parametrize("spoil", ["writable", "link"])
def test_folder_that_others_can_write_to_is_rejected(tmp_path, monkeypatch, spoil):
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path))
    if spoil == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "native").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "native").mkdir()
        (tmp_path / "native").chmod(0o777)
    with pytest.raises(LabError, match=r"native must belong to you alone \(chmod 700"):
        native.build()


@pytest.mark.parametrize(
    ("indices", "message"), [([0], "as many values as indices"), ([-1, 2], "indices must ascend from 0")]
)
def test_subtraction_rejects_invalid_entries(indices, message):
    weights = tf.Variable([1.0, 2.0, 3.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        native.operations().dgc_subtract([weights.handle], [indices], [[0.5, 0.5]], [], 1.0)
    assert weights.numpy().tolist() == [1.0, 2.0, 3.0]


@pytest.mark.nightly
def test_without_a_compiler_tensorflow_operations_are_used(tmp_path):
    code = """
import tensorflow as tf
from dgc_lab.compression import Compressor, DGCConfig, native
from dgc_lab.distributed import OneWorker
for _ in range(2):
    weight = tf.Variable([[1.0, 2.0]])
    compressor = Compressor(DGCConfig(ratio=0.5, momentum=0.0, dense_below=0), [weight], OneWorker())
    compressor.train([[tf.constant([[0.25, -0.5]])]], 1.0)
    print(native.operations(), weight.numpy().tolist())
"""
    environment = {**os.environ, "PATH": str(tmp_path), "DGC_LAB_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    sentence, *results = done.stdout.splitlines()
    assert sentence.startswith(
        "Compression runs on TensorFlow's own operations, which is slower: there is no C++ compiler"
    )
    assert results == ["None [[1.0, 2.5]]"] * 2, done.stderr
