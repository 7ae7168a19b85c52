"""Where a rule turns, to the element; what is promised where nothing is said. Mutants had lived here (make mutants)."""

import functools
import os
import types

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.common import LabError
from dgc_lab.dgc import Compressor, DGCConfig, fused_build, geometric_warm_up, payload_bytes
from dgc_lab.dgc import thresholding as c
from dgc_lab.dgc.break_even import one_message_is_shorter
from dgc_lab.dgc.exchange import GradientExchange, Kinds
from dgc_lab.dgc.selection import block_maxima, select
from dgc_lab.dgc.wire_format import add_in_order, global_indices
from dgc_lab.distributed import OneWorker, RanksDisagree, SimulatedWorkers


def test_what_is_not_said_is_what_the_paper_says():
    said = {"ratio": 0.001, "momentum": 0.9, "warm_up": (), "warm_up_steps": 100, "sample": 0.01, "dense_below": 1024}
    said |= {"nesterov": False, "clip_norm": None, "weight_decay": 0.0, "rule": "sampled", "scope": "tensor", "seed": 0}
    on = dict.fromkeys(
        ["accumulate", "momentum_correction", "factor_masking", "dense_vectors", "switch_to_dense"], True
    )
    assert DGCConfig() == DGCConfig(**said, **on, values="float32", indices="int32", reduction="average")
    assert len(geometric_warm_up(0.001)) == 4
    assert payload_bytes([[100, 100]], DGCConfig()) == payload_bytes([[100, 100]], DGCConfig(), workers=1)


def test_thresholds_by_default_sample_a_hundredth_from_seed_0():
    x = tf.random.stateless_normal([200_000], (8, 8))
    drawn = [float(c.sampled_threshold(x, 0.05, 0.01, (0, seed))) for seed in (0, 1)]
    assert drawn[0] != drawn[1]
    assert float(c.sampled_threshold(x, 0.05)) == drawn[0]
    assert float(c.hierarchical_threshold(x, 0.05)) == drawn[0], "within the band, the sampled one is kept"
    for rule in ("sampled", "hierarchical"):
        assert [float(t) for t in c.thresholds([x], 0.05, rule)] == drawn[:1]
        assert float(c.keep_masks([x], 0.05, rule)[0].numpy().sum()) == float(c.keep_mask(x, drawn[0]).numpy().sum())


def test_both_numbers_of_a_seed_count_and_each_tensor_draws_for_itself():
    x = tf.random.stateless_normal([200_000], (8, 8))
    alone = [float(c.sampled_threshold(x, 0.05, 0.01, seed)) for seed in ((3, 7), (3, 1007), (7, 7))]
    assert len(set(alone)) == 3
    assert [float(t) for t in c.thresholds([x, x], 0.05, "sampled", seed=(3, 7))] == alone[:2]


@pytest.mark.parametrize(
    ("ratio", "sample", "stride"),
    # A hundredth of 100 000; 32 values that pass, of 3200; odd where that would be even; never below 1.
    [(0.1, 0.01, 99), (0.01, 0.01, 31), (0.1, 0.05, 19), (0.1, 1.0, 1), (0.0, 0.01, 1)],
)
def test_a_sample_holds_what_was_asked_for_or_32_that_pass(ratio, sample, stride):
    x = tf.range(100_000.0)
    part = c._sampled_magnitudes(x, tf.constant(ratio, tf.float64), sample, (0, 0)).numpy()
    assert set(part[1:] - part[:-1]) == {stride}
    assert 0 <= part[0] < stride
    assert part[-1] + stride >= 100_000


def test_a_message_is_joined_up_to_the_byte():
    # Half of 25 000 bytes is what two hops take, and half is what four workers spare.
    assert [one_message_is_shorter(whole, 4) for whole in (24_999, 25_000, 25_001)] == [True, True, False]
    shapes = [tf.TensorShape([size]) for size in (6250, 6251)]
    exchanges = [
        GradientExchange(DGCConfig(), SimulatedWorkers(4), shapes, Kinds([], [place], []), 1) for place in (0, 1)
    ]
    assert [exchange.joins for exchange in exchanges] == [True, False]


def test_float16_sends_its_smallest_number_and_nothing_below():
    smallest = 2.0**-24
    indices, sent, _ = select(tf.constant([smallest, smallest * 0.99, -smallest]), 0.0, "float16")
    assert indices.numpy().tolist() == [0, 2]
    assert sent.numpy().tolist() == [smallest, -smallest]


@pytest.mark.parametrize(("size", "blocks"), [(640, 10), (96, 3), (7, 7), (0, 0)])
def test_a_block_has_64_elements_or_the_largest_power_of_two_below(size, blocks):
    assert block_maxima(tf.zeros([size])).shape == [blocks]


def test_elements_are_numbered_up_to_what_int32_holds():
    nothing = tf.zeros([0], tf.int32)
    assert global_indices([nothing, tf.constant([0])], [2**31 - 2, 1]).numpy().tolist() == [2**31 - 2]
    for large in (2**31, 2**31 + 1):
        with pytest.raises(ValueError, match=f"less than .* got {large}"):
            global_indices([nothing, nothing], [large - 1, 1])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 16, 33])
@pytest.mark.parametrize("shape", [(), (1000,), (37, 7)])
def test_any_number_of_tensors_is_added_up_in_order(size, shape):
    """In a graph, too, whose optimiser would make one sum of all."""
    random = np.random.default_rng(size)
    terms = [np.float32(random.normal(size=shape) * 10.0 ** random.integers(-8, 8, size=shape)) for _ in range(size)]
    expected = functools.reduce(np.add, terms)
    traced = tf.function(lambda *every: add_in_order([tf.identity(tensor) for tensor in every]))
    for added in (add_in_order, lambda tensors: traced(*tensors)):
        np.testing.assert_array_equal(added(list(map(tf.constant, terms))), expected)


@pytest.mark.parametrize("ratio", [0.07, 0.14, 0.28, 0.56])
def test_foreseen_elements_are_those_that_are_kept(ratio):
    """0.07 * 100 is 7.000000000000001."""
    config = DGCConfig(ratio=ratio, dense_vectors=False, dense_below=0)
    entries = (payload_bytes([[100]], config)[0] - 8) // 8
    assert entries == int(c.elements_to_keep(ratio, tf.zeros([100]))) == round(100 * ratio)


@pytest.mark.parametrize("warm_up", [(1.5, 0.5), (0.5, 0.0), (0.01, 0.001), (0.25, 0.0005)])
def test_a_warm_up_falls_from_at_most_1_to_above_the_ratio(warm_up):
    with pytest.raises(ValueError, match=r"warm_up must hold ratios that fall from at most 1 towards the ratio 0\.001"):
        DGCConfig(warm_up=warm_up)


def test_a_new_compressor_has_counted_nothing_keeps_what_it_needs_and_trains_nothing():
    variables = [tf.Variable(tf.zeros([30, 40])), tf.Variable(tf.zeros([30]))]
    compressor = Compressor(DGCConfig(momentum=0.0), variables, OneWorker())
    counted = (compressor.step, compressor.bytes_sent, compressor.kept, compressor.counted)
    assert [variable.numpy().tolist() for variable in counted] == [0, [0, 0], [0, 0], 0]
    assert compressor.velocities == [[None, None]]
    assert [kept is None for kept in compressor.residuals[0]] == [False, True]
    assert {id(variable) for variable in compressor.trainable_variables} == set(map(id, variables))


def test_a_step_may_have_other_gradients_and_other_numbers_than_the_one_before():
    variables = [tf.Variable(tf.ones([4, 4])), tf.Variable(tf.ones([4, 4]))]
    config = DGCConfig(ratio=1, momentum=0.0, dense_below=0)
    compressor = Compressor(config, variables, OneWorker())
    ones = tf.ones([4, 4])
    for gradients, told in (([ones, None], [3.0]), ([None, ones], [4.0]), ([ones, ones], [5.0, 6.0])):
        updates, report = compressor([gradients], metadata=[tf.constant(told)])
        assert [update is None for update in updates] == [gradient is None for gradient in gradients]
        assert report.metadata.numpy().tolist() == [told]


def test_what_each_of_four_simulated_workers_sends_is_counted_once():
    """A report is the mean over the workers of this process."""
    gradient = tf.reshape(tf.range(1.0, 17.0), [4, 4])
    for workers in (1, 4):
        for by_allreduce in (False, True):
            config = DGCConfig(0.25, 0.0, dense_below=0, rule="exact", switch_to_dense=by_allreduce)
            compressor = Compressor(config, [tf.Variable(tf.zeros([4, 4]))], SimulatedWorkers(workers))
            report = compressor([[gradient]] * workers)[1]
            assert report.kept.numpy().tolist() == [4]
            dense = by_allreduce and workers == 4
            handed = [report.allreduce_bytes.numpy(), report.allgather_bytes.numpy()]
            assert handed == ([4 * 16 + 4 * workers, 0] if dense else [0, 8 + 4 * 8])


def test_what_workers_send_of_each_is_counted_in_the_mean_and_not_rounded_down():
    config = DGCConfig(0.5, 0.0, scope="global", rule="exact", dense_below=0, dense_vectors=False)
    compressor = Compressor(config, [tf.Variable(tf.zeros([4])), tf.Variable(tf.zeros([4]))], SimulatedWorkers(2))
    first, rest = tf.constant([9.0, 0, 0, 0]), tf.constant([1.0, 2.0, 3.0, 4.0])
    report = compressor([[first, rest], [tf.zeros([4]), rest]])[1]
    assert report.kept.numpy().tolist() == compressor.kept.numpy().tolist() == [0.5, 3.5]


def test_ranks_that_disagree_are_told_again_when_the_cell_is_run_again():
    class Others(OneWorker):
        def assert_same_on_all_ranks(self, what):
            raise RanksDisagree("differ")

    compressor = Compressor(DGCConfig(), [tf.Variable(tf.zeros([4]))], Others())
    for _ in range(2):
        with pytest.raises(RanksDisagree):
            compressor([[tf.ones([4])]])


def test_a_ratio_in_a_tensor_may_be_of_any_type():
    for ratio in (tf.constant(1), tf.constant(1.0, tf.float16), tf.Variable(1.0)):
        compressor = Compressor(DGCConfig(dense_below=0), [tf.Variable(tf.zeros([4, 4]))], OneWorker())
        assert compressor([[tf.ones([4, 4])]], ratio)[1].kept.numpy().tolist() == [16]


def test_a_seed_that_no_step_can_draw_from_is_refused():
    with pytest.raises(ValueError, match=r"seed must be .*2147483647.* got 2147483648"):
        DGCConfig(seed=2**31)


@pytest.mark.parametrize("fused", [True, False])
def test_finite_gradients_whose_sum_overflows_are_told_by_the_variables_name(fused):
    variables = [tf.Variable(tf.zeros([4]), name="fine"), tf.Variable(tf.zeros([4, 4]), name="steep")]
    compressor = Compressor(DGCConfig(ratio=0.5, dense_below=0), variables, OneWorker())
    compressor.fused = compressor.fused if fused else ()
    gradients = [[tf.ones([4]), tf.fill([4, 4], 2e38)]]
    compressor.train(gradients, 1e-38, 0.0)
    before = [variable.numpy() for variable in (*variables, *compressor.state)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of .*steep.* on worker 0 .* or is too large"):
        compressor.train(gradients, 1e-38, 0.0)  # the velocity would be 3.8e38
    for variable, value in zip((*variables, *compressor.state), before, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize("missing", ["allgather", "reduce_within_host", "assert_same_on_all_ranks"])
def test_a_communicator_without_all_that_a_step_calls_is_refused(missing):
    needed = ("allreduce", "allgather", "reduce_within_host", "assert_same_on_all_ranks")
    some = {name: getattr(OneWorker(), name) for name in needed if name != missing}
    with pytest.raises(ValueError, match="communicator must be"):
        Compressor(DGCConfig(), [tf.Variable([0.0])], types.SimpleNamespace(size=1, first=0, local=1, **some))


@pytest.mark.parametrize("off", [1, -1])
def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch, off):
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path))
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + off)
    with pytest.raises(LabError, match="must be a folder of yours alone"):
        fused_build.private_folder()


def test_what_the_compiler_says_is_told_by_its_end(tmp_path, monkeypatch):
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || { seq 10000 >&2; echo "the reason" >&2; exit 1; }\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path))
    with pytest.raises(LabError, match=r"could not compile .*fused\.cc:\n") as error:
        fused_build.build()
    told = str(error.value).partition("fused.cc:\n")[2]
    assert told.endswith("9999\n10000\nthe reason\n")
    assert len(told) == 2000
