"""Ages of residual elements, compared with hand-computed schedules, and training runs that count them."""

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.compression import native
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.distributed.communicators import OneWorker, SimulatedWorkers
from dgc_lab.scaling.residual_staleness import (
    by_doubling,
    mean_age,
    median_age,
    residual_ages,
    sent_ages,
    trainer_with_ages,
    waiting_ages,
    with_ages,
)
from dgc_lab.training import DistributedConfig, DistributedTrainer
from dgc_lab.workloads.dataset import Dataset

ONE_IN_FOUR = {"ratio": 0.25, "momentum": 0.0, "dense_below": 0, "dense_vectors": False, "rule": "exact"}
# Gradients of four elements; each step sends one of them. Computed by hand:
#   step 1: residual 4 1 0 2, sends element 0 at age 0; waiting 1 and 3 (element 2 is empty)
#   step 2: residual 1 2 0 4, sends element 3 at age 1; waiting 0 and 1
#   step 3: residual 2 3 9 0, sends element 2 at age 0; waiting 0 and 1
#   step 4: residual 3 4 0 0, sends element 1 at age 3; waiting 0
SCHEDULE = [[4.0, 1.0, 0.0, 2.0], [1.0, 1.0, 0.0, 2.0], [1.0, 1.0, 9.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
SENT_AT = [0, 1, 0, 3]


def with_counted_ages(communicator, longest=9, variables=None, **switches):
    config = DGCConfig(**{**ONE_IN_FOUR, **switches})
    variables = variables or [tf.Variable([0.0] * 4)]
    return Compressor(with_ages(config, longest), variables, communicator, options=config)


def ages(compressor, worker=0):
    """Return the age of each element in a worker's residual, as a list."""
    _, ages, _ = compressor.states[worker][0]
    return ages.numpy().tolist()


@pytest.mark.parametrize("native_on", [True, False])
def test_ages_match_a_hand_computed_schedule(native_on, monkeypatch):
    monkeypatch.setattr(native, "enabled", native_on)
    worker = with_counted_ages(OneWorker())
    for gradient, age in zip(SCHEDULE, SENT_AT, strict=True):
        before = sent_ages(worker)
        worker([[tf.constant(gradient)]])
        assert np.flatnonzero(sent_ages(worker) - before).tolist() == [age]
    assert ages(worker) == [3, 0, 0, 0], "element 0 has waited since step 2"
    assert waiting_ages(worker).tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("ratio", [0.25, "tensor"])
def test_workers_have_separate_ages_with_both_collectives(ratio):
    """With four workers at 25 % the compressor switches to allreduce; the ages are the same."""
    found, ratio = {}, tf.constant(0.25, tf.float64) if ratio == "tensor" else ratio
    for switches in (True, False):
        workers = with_counted_ages(SimulatedWorkers(4), switch_to_dense=switches)
        step = tf.function(lambda gradients, workers=workers: workers(gradients, ratio)[0])
        for number, gradient in enumerate(SCHEDULE):
            others = [np.roll(SCHEDULE[(number + turn) % 4], turn) for turn in (1, 2, 3)]
            others = [other + 0.01 * np.arange(4) for other in others]  # no ties
            step([[tf.constant(gradient)], *([tf.constant(other, tf.float32)] for other in others)])
        assert ages(workers) == [3, 0, 0, 0]
        assert sent_ages(workers).sum() == 16, "four workers, four steps"
        found[switches] = [sent_ages(workers).tolist(), *(ages(workers, worker) for worker in range(4))]
    assert found[True] == found[False]


@pytest.mark.parametrize("corrects", [True, False])
def test_ages_match_a_simulation_in_numpy(corrects):
    """Random gradients with momentum, before the accumulation or after the exchange."""
    rng, size, steps = np.random.default_rng(0), 500, 40
    switches = {"ratio": 0.02, "momentum": 0.9, "momentum_correction": corrects}
    worker = with_counted_ages(OneWorker(), steps, [tf.Variable(tf.zeros([size]))], **switches)
    residual, velocity = np.zeros(size, np.float32), np.zeros(size, np.float32)
    since, expected = np.zeros(size, int), np.zeros(steps + 1, int)
    for _ in range(steps):
        gradient = rng.normal(size=size).astype(np.float32)
        velocity = np.float32(0.9) * velocity + gradient
        residual += velocity if corrects else gradient
        sent = np.abs(residual) >= np.sort(np.abs(residual))[-10]
        worker([[tf.constant(gradient)]])
        np.add.at(expected, since[sent], 1)
        since = np.where(sent, 0, since + 1)
        residual[sent] = velocity[sent] = 0
    assert sent_ages(worker).tolist() == expected.tolist()
    assert expected.sum() == 10 * steps
    assert ages(worker) == since.tolist()


def test_tensors_sent_uncompressed_have_no_ages():
    worker = with_counted_ages(OneWorker(), dense_vectors=True)
    worker([[tf.ones([4])]])
    assert sent_ages(worker).sum() == waiting_ages(worker).sum() == 0


def test_elements_sent_at_ratio_1_have_age_0():
    worker = with_counted_ages(SimulatedWorkers(2))
    for gradient in SCHEDULE:
        worker([[tf.constant(gradient)]] * 2, ratio=1.0)
    assert sent_ages(worker)[0] == 2 * np.count_nonzero(SCHEDULE), "zeros are sent, too, and have no age"
    assert sent_ages(worker)[1:].sum() == 0
    assert waiting_ages(worker).sum() == 0


def test_elements_that_cancel_to_zero_are_not_counted_as_sent():
    """Elements 1 and 2 become 0 without being sent, or stay 0."""
    worker = with_counted_ages(OneWorker())
    worker([[tf.constant([4.0, 1.0, 0.0, 2.0])]])
    worker([[tf.constant([0.0, -1.0, 0.0, 3.0])]])
    assert sent_ages(worker)[:3].tolist() == [1, 1, 0]
    assert ages(worker) == [0, 0, 0, 0]


def test_reset_clears_the_ages():
    worker = with_counted_ages(OneWorker())
    worker([[tf.constant(SCHEDULE[0])]])
    worker.reset()
    assert not sent_ages(worker).any()
    assert not waiting_ages(worker).any()


def test_tracking_ages_does_not_change_training(digits):
    settings = DistributedConfig(steps=4, clip_norm=1.0, evaluations=1)
    plain, counting = DistributedTrainer(settings, SimulatedWorkers(2), digits), trainer_with_ages(settings, digits)
    losses = [[event.loss for event in trainer.run(0.01)] for trainer in (plain, counting)]
    assert losses[0] == losses[1]
    for one, other in zip(plain.weights, counting.weights, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("switches", [{"nesterov": True}, {"momentum_correction": False}, {"factor_masking": False}])
def test_ages_do_not_change_the_weights_with_any_momentum(switches):
    """One compressed and one uncompressed tensor, which has the same kind of momentum."""
    config = DGCConfig(ratio=0.1, dense_below=0, momentum=0.9, **switches)
    found = []
    for scheme, options in ((config, None), (with_ages(config), config)):
        weights = [tf.Variable(tf.ones([20, 30])), tf.Variable(tf.ones([30]))]
        compressor = Compressor(scheme, weights, SimulatedWorkers(2), options=options)
        for step in range(5):
            every = [[tf.random.stateless_normal(w.shape, (step, worker)) for w in weights] for worker in range(2)]
            compressor.train(every, 0.1)
        found.append(weights)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_ages_are_capped_at_the_longest():
    worker = with_counted_ages(OneWorker(), longest=2)
    for gradient in SCHEDULE:
        worker([[tf.constant(gradient)]])
    assert sent_ages(worker).tolist() == [2, 1, 1]
    assert ages(worker) == [3, 0, 0, 0]
    assert waiting_ages(worker).tolist() == [0, 0, 1]


def test_mean_median_and_classes_of_ages():
    counts = np.arange(100)
    classes = by_doubling(counts)
    assert sum(number for _, _, number in classes) == counts.sum()
    assert [first for first, _, _ in classes] == [0, 1, 2, 4, 8, 16, 32, 64]
    assert np.isnan(mean_age([0, 0]))
    assert median_age([0, 0, 3]) == 2
    assert median_age([2, 1, 1]) == 0
    assert median_age([1, 1, 1]) == 1
    with pytest.raises(ValueError, match="counts must hold at least one element"):
        median_age([0, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: with_ages(DGCConfig(accumulate=False)), r"config must accumulate"),
        (lambda: with_ages(DGCConfig(values="float16")), r"must send float32 values.*got 'float16'"),
        (lambda: with_ages(DGCConfig(weight_decay=0.1)), r"config must have weight_decay 0.*got 0.1"),
        (lambda: with_ages(DGCConfig(), longest=-1), r"longest must be a whole number .*got -1"),
        (lambda: residual_ages(workers=(3,)), r"workers must be divisors of 128, got 3"),
        (lambda: residual_ages(workers=()), r"workers must have at least one"),
        (lambda: residual_ages(ratios=(1.0,)), r"ratios must be above 0 and below 1, got 1"),
        (lambda: residual_ages(steps=0), r"steps must be a whole number from 1 to 1000000, got 0"),
    ],
)
def test_invalid_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_runs_report_ages_of_sent_and_waiting_elements():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(256, 40, 1)).astype(np.float32), rng.integers(0, 10, 256, np.int32)
    rows = residual_ages(workers=(1, 2), ratios=(0.1, 0.01), steps=6, data=Dataset("mnist1d", x, y, x, y))
    assert [(row["workers"], row["ratio"]) for row in rows] == [(1, 0.1), (1, 0.01), (2, 0.1), (2, 0.01)]
    for row in rows:
        assert 0 < row["mean age"] < row["mean age waiting"] < 6
        assert sum(number for _, _, number in row["sent by age"]) > 0
    sent = [sum(number for _, _, number in row["sent by age"]) for row in rows]
    assert sent[0] > 8 * sent[1], "at a tenth of the ratio"
    assert 1.5 * sent[0] < sent[2] < 2.5 * sent[0], "two workers send about twice as many"


def test_indexed_slices_are_compressed_as_a_dense_tensor():
    table = tf.Variable(tf.zeros([1000, 4]))
    worker = with_counted_ages(OneWorker(), variables=[table], ratio=0.001)
    rows = tf.IndexedSlices(tf.ones([2, 4]), tf.constant([3, 5]), tf.constant([1000, 4]))
    worker([[rows]])
    assert sent_ages(worker).sum() == 8, "all eight are equal"
    assert waiting_ages(worker).sum() == 0
