"""Boundary cases and documented defaults: code whose mutants had survived (make mutants)."""

import functools
import os
import types

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.common import LabError
from dgc_lab.compression import Compressor, DGCConfig, geometric_warm_up, native, payload_bytes
from dgc_lab.compression import thresholding as c
from dgc_lab.compression.break_even import one_message_is_shorter
from dgc_lab.compression.parts import Parts
from dgc_lab.compression.scheme import StepContext
from dgc_lab.compression.segment_search import elements_to_keep
from dgc_lab.compression.selection import Rule, elements_above, select
from dgc_lab.compression.wire_format import add_in_order
from dgc_lab.distributed import OneWorker, RanksDisagree, SimulatedWorkers


@pytest.fixture(params=[True, False], ids=["C++", "TensorFlow"])
def implementation(request, monkeypatch):
    """Run the test with the C++ operations, then with TensorFlow operations."""
    monkeypatch.setattr(native, "enabled", request.param)
    return request.param


class Counting(SimulatedWorkers):
    """Counts the collectives."""

    calls = 0

    def allreduce(self, groups, name=None):
        self.calls += 1
        return super().allreduce(groups, name)

    def allgather(self, tensors, name=None):
        self.calls += 1
        return super().allgather(tensors, name)


def context_of(sizes, values="float32"):
    return StepContext(sizes, tf.constant([0, 0]), tf.constant([0, 0]), 1, value_type=values)


def test_defaults_match_the_paper():
    paper = {"ratio": 0.001, "momentum": 0.9, "warm_up": (), "warm_up_steps": 100, "sample": 0.01, "dense_below": 1024}
    paper |= {
        "nesterov": False,
        "clip_norm": None,
        "weight_decay": 0.0,
        "rule": "sampled",
        "scope": "tensor",
        "seed": 0,
    }
    on = dict.fromkeys(
        ["accumulate", "momentum_correction", "factor_masking", "dense_vectors", "switch_to_dense"], True
    )
    assert DGCConfig() == DGCConfig(**paper, **on, values="float32", indices="int32", reduction="average")
    assert len(geometric_warm_up(0.001)) == 4
    assert payload_bytes([[100, 100]], DGCConfig()) == payload_bytes([[100, 100]], DGCConfig(), workers=1)


def test_thresholds_sample_1_percent_with_seed_0_by_default():
    x = tf.random.stateless_normal([200_000], (8, 8))
    drawn = [float(c.sampled_threshold(x, 0.05, 0.01, (0, seed))) for seed in (0, 1)]
    assert drawn[0] != drawn[1]
    assert float(c.sampled_threshold(x, 0.05)) == drawn[0]
    for rule in ("sampled", "hierarchical"):  # within its band, the hierarchical rule uses the sampled threshold
        assert [float(t) for t in c.thresholds([x], 0.05, rule)] == drawn[:1]


def test_samples_differ_between_seeds_and_tensors():
    x = tf.random.stateless_normal([200_000], (8, 8))
    alone = [float(c.sampled_threshold(x, 0.05, 0.01, seed)) for seed in ((3, 7), (3, 1007), (7, 7))]
    assert len(set(alone)) == 3
    first, second = (float(t) for t in c.thresholds([x, x], 0.05, "sampled", seed=(3, 7)))
    assert first == alone[0] != second


@pytest.mark.parametrize(
    ("ratio", "sample", "stride"),
    # 1 % of 100 000; enough for 32 selected values; strides are rounded to odd numbers; at least 1.
    [(0.1, 0.01, 99), (0.01, 0.01, 31), (0.1, 0.05, 19), (0.1, 1.0, 1), (0.0, 0.01, 1)],
)
def test_sample_holds_its_share_or_32_selected_elements(ratio, sample, stride, implementation):
    x = np.random.default_rng(0).permutation(100_000).astype(np.float32)
    for seed in ((0, 0), (0, 1), (5, 0)):
        strides, starts = c.sampling((100_000,), tf.constant(ratio, tf.float64), "sampled", sample, seed)
        assert strides.numpy().tolist() == [stride]
        [start] = starts.numpy().tolist()
        assert 0 <= start < stride
        part = np.sort(x[start::stride])
        wanted = int(elements_to_keep(ratio, len(part)))
        expected = part[-wanted] if wanted else np.inf
        assert float(c.sampled_threshold(tf.constant(x), ratio, sample, seed)) == expected


@pytest.mark.parametrize(("size", "rule"), [(10_000, "sampled"), (10_000, "hierarchical"), (100_000, "exact")])
def test_small_tensors_and_the_exact_rule_are_not_sampled(size, rule):
    strides, starts = c.sampling((size, 10_001), tf.constant(0.1, tf.float64), rule, 0.01, (0, 0))
    assert strides.numpy().tolist() == [1, 1 if rule == "exact" else 31]
    assert starts.numpy()[0] == 0


def test_tensors_join_the_message_up_to_an_exact_size():
    # For four workers, joining 25 000 bytes costs exactly as much as the hops it saves.
    assert [one_message_is_shorter(whole, 4) for whole in (24_999, 25_000, 25_001)] == [True, True, False]
    for size, calls in ((6250, 1), (6251, 2)):
        workers = Counting(4)
        shapes = [(40, 50), (size,)]
        compressor = Compressor(DGCConfig(0.01), [tf.Variable(tf.zeros(shape)) for shape in shapes], workers)
        every = [[tf.random.stateless_normal(shape, (0, worker)) for shape in shapes] for worker in range(4)]
        updates, report = compressor(every)
        assert workers.calls == calls
        assert int(report.allreduce_bytes) == (0 if calls == 1 else 4 * size)
        np.testing.assert_allclose(updates[1], np.mean([own[1] for own in every], axis=0), atol=1e-6)


def test_float16_sends_nothing_below_its_smallest_number(implementation):
    smallest = 2.0**-24
    x = tf.constant([smallest, smallest * 0.99, -smallest])
    indices, sent = select(x, Rule(1.0), context_of((3,), "float16"))
    assert indices.numpy().tolist() == [0, 2]
    assert sent.numpy().tolist() == [smallest, -smallest]


@pytest.mark.parametrize("size", [0, 1, 7, 63, 64, 65, 96, 640, 70_000])
def test_elements_are_found_in_tensors_of_any_length(size, implementation):
    """The search uses blocks of 64 or, in TensorFlow, of the largest power of two that divides the length.

    NaN and infinity are always selected, even in a graph, where TensorFlow rewrites `not (a < b)` as `a >= b`.
    """
    random = np.random.default_rng(size)
    x = random.normal(size=size + 3).astype(np.float32)
    x[random.choice(size, min(size, 20) // 5, replace=False)] = np.nan
    x[random.choice(size, min(size, 20) // 5, replace=False)] = -np.inf
    limits = np.repeat(np.float32([1.5, 0.5]), (size, 3))
    for find in (elements_above, tf.function(elements_above, autograph=False)):
        found = find(tf.constant(x), tf.constant([1.5, 0.5]), (size, 3))
        assert found.numpy().tolist() == np.flatnonzero(~(np.abs(x) < limits)).tolist()
    traced = tf.function(lambda x, ratio: select(x, Rule(ratio, "exact"), context_of((size, 3))), autograph=False)
    for ratio in (0.0, 0.3, 1.0):
        thresholds = [float(c.exact_threshold(tf.constant(part), ratio)) for part in (x[:size], x[size:])]
        expected = np.flatnonzero(~(np.abs(x) < np.repeat(np.float32(thresholds), (size, 3))))
        indices, values = traced(tf.constant(x), tf.constant(ratio, tf.float64))
        assert indices.numpy().tolist() == expected.tolist()
        np.testing.assert_array_equal(values, x[expected])


def test_compressed_elements_are_limited_to_int32_indices():
    config = DGCConfig(dense_vectors=False, dense_below=0)

    def parts(*sizes, config=config):
        variables = [types.SimpleNamespace(shape=(size,), dtype=tf.float32) for size in sizes]
        return Parts(variables, config, per_tensor=False)

    assert parts(2**31 - 2, 1).compressed == [0, 1]
    for large in (2**31, 2**31 + 1):
        with pytest.raises(ValueError, match=rf"variables must have less than 2\*\*31 elements .* got {large}"):
            parts(large - 1, 1)
    assert parts(2**31, 1, config=DGCConfig()).compressed == [], "uncompressed tensors may be longer"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 16, 33])
@pytest.mark.parametrize("shape", [(), (1000,), (37, 7)])
def test_tensors_are_added_in_order(size, shape):
    """Also in a graph, where TensorFlow's optimizer would merge the additions."""
    random = np.random.default_rng(size)
    terms = [np.float32(random.normal(size=shape) * 10.0 ** random.integers(-8, 8, size=shape)) for _ in range(size)]
    expected = functools.reduce(np.add, terms)
    traced = tf.function(lambda *every: add_in_order([tf.identity(tensor) for tensor in every]))
    for added in (add_in_order, lambda tensors: traced(*tensors)):
        np.testing.assert_array_equal(added(list(map(tf.constant, terms))), expected)


@pytest.mark.parametrize("ratio", [0.07, 0.14, 0.28, 0.56])
def test_estimated_payload_counts_the_elements_sent(ratio):
    """0.07 * 100 is 7.000000000000001."""
    config = DGCConfig(ratio=ratio, dense_vectors=False, dense_below=0)
    entries = (payload_bytes([[100]], config)[0] - 8) // 8
    assert entries == int(elements_to_keep(ratio, 100)) == round(100 * ratio)


def test_estimated_payload_of_a_tensor_beyond_int32():
    config = DGCConfig(ratio=0.25, dense_below=0)
    compressed, dense = payload_bytes([[2**20, 2**14]], config)
    assert dense == 4 * 2**34
    assert compressed == pytest.approx(8 * 2**32, rel=1e-6)


def test_seeds_of_numpy_work():
    weight = tf.Variable([[1.0, 2.0]])
    updates = []
    for seed in (3, np.int64(3)):
        compressor = Compressor(DGCConfig(seed=seed, dense_below=0), [weight], OneWorker())
        updates.append(compressor([[tf.constant([[0.5, -1.0]])]])[0][0])
    np.testing.assert_array_equal(*updates)


@pytest.mark.parametrize("warm_up", [(1.5, 0.5), (0.5, 0.0), (0.01, 0.001), (0.25, 0.0005)])
def test_warm_up_must_decrease_towards_the_ratio(warm_up):
    with pytest.raises(ValueError, match=r"warm_up must hold ratios that fall from at most 1 towards the ratio 0\.001"):
        DGCConfig(warm_up=warm_up)


def test_a_new_compressor_has_only_the_state_it_needs():
    variables = [tf.Variable(tf.zeros([30, 40])), tf.Variable(tf.zeros([30]))]
    compressor = Compressor(DGCConfig(momentum=0.0), variables, OneWorker())
    counted = (compressor.step, compressor.bytes_sent, compressor.num_sent, compressor.counted)
    assert [variable.numpy().tolist() for variable in counted] == [0, [0, 0], [0, 0], 0]
    assert compressor.velocities() == [None, None]
    assert [residual is None for residual in compressor.residuals()] == [False, True]
    assert [residual.shape for residual in tf.nest.flatten(compressor.states)] == [[1200]]
    assert compressor.velocity is None
    assert {id(variable) for variable in compressor.trainable_variables} == set(map(id, variables))


@pytest.mark.parametrize(
    ("gradients", "found"),
    [([[tf.ones([2])]], r"\[1\]"), ([[tf.ones([2])], [None]], r"\[1, 1\]"), ([[tf.ones([2])] * 2] * 3, r"\[2, 2, 2\]")],
)
def test_gradients_must_match_workers_and_variables(gradients, found):
    compressor = Compressor(DGCConfig(), [tf.Variable(tf.zeros([2])) for _ in range(2)], SimulatedWorkers(2))
    with pytest.raises(ValueError, match=rf"gradients must be 2 lists of 2, one for each worker, got lists of {found}"):
        compressor(gradients)


def test_each_variable_needs_a_name():
    with pytest.raises(ValueError, match=r"names must be 1, one for each variable, got \['a', 'b'\]"):
        Compressor(DGCConfig(), [tf.Variable([1.0])], OneWorker(), names=["a", "b"])


def test_gradients_and_metadata_may_change_between_steps():
    variables = [tf.Variable(tf.ones([4, 4])), tf.Variable(tf.ones([4, 4]))]
    config = DGCConfig(ratio=1, momentum=0.0, dense_below=0)
    compressor = Compressor(config, variables, OneWorker())
    ones = tf.ones([4, 4])
    for gradients, metadata in (([ones, None], [3.0]), ([None, ones], [4.0]), ([ones, ones], [5.0, 6.0])):
        updates, report = compressor([gradients], metadata=[tf.constant(metadata)])
        assert [update is None for update in updates] == [gradient is None for gradient in gradients]
        assert report.metadata.numpy().tolist() == [metadata]


def test_report_is_averaged_over_simulated_workers():
    gradient = tf.reshape(tf.range(1.0, 17.0), [4, 4])
    for workers in (1, 4):
        for by_allreduce in (False, True):
            config = DGCConfig(0.25, 0.0, dense_below=0, rule="exact", switch_to_dense=by_allreduce)
            compressor = Compressor(config, [tf.Variable(tf.zeros([4, 4]))], SimulatedWorkers(workers))
            report = compressor([[gradient]] * workers)[1]
            assert report.num_sent.numpy().tolist() == [4]
            dense = by_allreduce and workers == 4
            sent = [report.allreduce_bytes.numpy(), report.allgather_bytes.numpy()]
            assert sent == ([4 * 16 + 4 * workers, 0] if dense else [0, 8 + 4 * 8])


def test_num_sent_is_an_unrounded_mean():
    config = DGCConfig(0.5, 0.0, scope="global", rule="exact", dense_below=0, dense_vectors=False)
    compressor = Compressor(config, [tf.Variable(tf.zeros([4])), tf.Variable(tf.zeros([4]))], SimulatedWorkers(2))
    first, rest = tf.constant([9.0, 0, 0, 0]), tf.constant([1.0, 2.0, 3.0, 4.0])
    report = compressor([[first, rest], [tf.zeros([4]), rest]])[1]
    assert report.num_sent.numpy().tolist() == compressor.num_sent.numpy().tolist() == [0.5, 3.5]


def test_disagreeing_ranks_raise_in_every_step():
    class Others(OneWorker):
        def assert_same_on_all_ranks(self, what):
            raise RanksDisagree("differ")

    compressor = Compressor(DGCConfig(), [tf.Variable(tf.zeros([4]))], Others())
    for _ in range(2):
        with pytest.raises(RanksDisagree):
            compressor([[tf.ones([4])]])


def test_ratio_tensor_may_have_any_dtype():
    for ratio in (tf.constant(1), tf.constant(1.0, tf.float16), tf.Variable(1.0)):
        compressor = Compressor(DGCConfig(dense_below=0), [tf.Variable(tf.zeros([4, 4]))], OneWorker())
        assert compressor([[tf.ones([4, 4])]], ratio)[1].num_sent.numpy().tolist() == [16]


def test_seed_above_int32_is_rejected():
    with pytest.raises(ValueError, match=r"seed must be .*2147483647.* got 2147483648"):
        DGCConfig(seed=2**31)


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_finite_gradients_that_overflow_the_state_are_named(implementation, ratio):
    variables = [tf.Variable(tf.zeros([4]), name="fine"), tf.Variable(tf.zeros([4, 4]), name="steep")]
    config = DGCConfig(ratio=0.5, dense_below=0, factor_masking=False, rule="exact")
    compressor = Compressor(config, variables, SimulatedWorkers(2))
    steep = tf.constant([[2e38] * 4] * 4)
    gradients = [[tf.ones([4]), tf.ones([4, 4])], [tf.ones([4]), steep]]
    compressor.train(gradients, 1e-38, ratio)
    before = [variable.numpy() for variable in (*variables, *compressor.state)]
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of .*steep.* on worker 1 .* is too large"):
            compressor.train(gradients, 1e-38, ratio)  # the velocity would be 3.8e38
        for variable, value in zip((*variables, *compressor.state), before, strict=True):
            np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize("missing", ["allgather", "reduce_within_host", "assert_same_on_all_ranks"])
def test_communicator_without_a_required_method_is_rejected(missing):
    needed = ("allreduce", "allgather", "reduce_within_host", "assert_same_on_all_ranks")
    some = {name: getattr(OneWorker(), name) for name in needed if name != missing}
    with pytest.raises(ValueError, match="communicator must be"):
        Compressor(DGCConfig(), [tf.Variable([0.0])], types.SimpleNamespace(size=1, first=0, local=1, **some))


@pytest.mark.parametrize("off", [1, -1])
def test_cache_folder_of_another_user_is_rejected(tmp_path, monkeypatch, off):
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path))
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + off)
    with pytest.raises(LabError, match="must belong to you alone"):
        native.private_folder()


def test_compiler_errors_are_cut_to_the_last_2000_characters(tmp_path, monkeypatch):
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || { seq 10000 >&2; echo "the reason" >&2; exit 1; }\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path))
    with pytest.raises(LabError, match=r"could not compile .*native\.cc:\n") as error:
        native.build()
    output = str(error.value).partition("native.cc:\n")[2]
    assert output.endswith("9999\n10000\nthe reason\n")
    assert len(output) == 2000
