"""Ages of what residuals hold, against schedules worked out by hand, and the runs of several workers that use them."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.__main__ import main
from dgc_lab.dgc.config import DGCConfig
from dgc_lab.distributed.communicators import OneWorker, SimulatedWorkers
from dgc_lab.scaling.residual_staleness import (
    WatchedCompressor,
    by_doubling,
    mean_age,
    median_age,
    was_sent,
)
from dgc_lab.scaling.worker_sweep import Run, clipping_of, table, table_runs, train_runs, watched_trainer
from dgc_lab.training import RowEnded, RowStarted, read_rows
from dgc_lab.training.events import Step

ONE_IN_FOUR = {"ratio": 0.25, "momentum": 0.0, "dense_below": 0, "dense_vectors": False, "rule": "exact"}
# Gradients of four elements, step by step; one of them is sent in each. Worked out by hand:
#   step 1: residual 4 1 0 2, sends element 0 at age 0; waiting 1 and 3 (element 2 is empty)
#   step 2: residual 1 2 0 4, sends element 3 at age 1; waiting 0 and 1
#   step 3: residual 2 3 9 0, sends element 2 at age 0; waiting 0 and 1
#   step 4: residual 3 4 0 0, sends element 1 at age 3; waiting 0
SCHEDULE = [[4.0, 1.0, 0.0, 2.0], [1.0, 1.0, 0.0, 2.0], [1.0, 1.0, 9.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
SENT_AT = [0, 1, 0, 3]


def watched(communicator, longest=9, **switches):
    return WatchedCompressor(
        DGCConfig(**{**ONE_IN_FOUR, **switches}), [tf.Variable([0.0] * 4)], communicator, longest=longest
    )


def test_a_schedule_worked_out_by_hand():
    worker = watched(OneWorker())
    for gradient, age in zip(SCHEDULE, SENT_AT, strict=True):
        before = worker.sent_ages.numpy()
        worker([[tf.constant(gradient)]])
        assert np.flatnonzero(worker.sent_ages.numpy() - before).tolist() == [age]
    assert worker.ages[0][0].numpy().tolist() == [3, 0, 0, 0], "element 0 has waited since step 2"
    assert worker.waiting_ages().tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("ratio", [0.25, "tensor"])
def test_workers_have_ages_of_their_own_in_a_graph_and_by_either_way(ratio):
    """With four workers at 25 % the compressor switches to allreduce; the ages are the same."""
    ages, ratio = {}, tf.constant(0.25, tf.float64) if ratio == "tensor" else ratio
    for switches in (True, False):
        workers = watched(SimulatedWorkers(4), switch_to_dense=switches)
        step = tf.function(lambda gradients, workers=workers: workers(gradients, ratio)[0])
        for number, gradient in enumerate(SCHEDULE):
            others = [np.roll(SCHEDULE[(number + turn) % 4], turn) for turn in (1, 2, 3)]
            others = [other + 0.01 * np.arange(4) for other in others]  # no ties
            step([[tf.constant(gradient)], *([tf.constant(other, tf.float32)] for other in others)])
        assert workers.ages[0][0].numpy().tolist() == [3, 0, 0, 0]
        assert workers.sent_ages.numpy().sum() == 16, "four workers, four steps"
        ages[switches] = workers.sent_ages.numpy().tolist()
    assert ages[True] == ages[False]


def test_ages_are_those_of_a_simulation_in_numpy():
    """Random gradients, momentum and all: what was sent is read off the conservation of what was added."""
    rng, size, steps = np.random.default_rng(0), 500, 40
    worker = WatchedCompressor(
        DGCConfig(ratio=0.02, dense_below=0, dense_vectors=False, rule="exact"),
        [tf.Variable(tf.zeros([size]))],
        OneWorker(),
        longest=steps,
    )
    since, expected = np.zeros(size, int), np.zeros(steps + 1, int)
    for _ in range(steps):
        [update], _ = worker([[tf.constant(rng.normal(size=size), tf.float32)]])
        sent = np.asarray(update) != 0
        np.add.at(expected, since[sent], 1)
        since = np.where(sent, 0, since + 1)
    assert worker.sent_ages.numpy().tolist() == expected.tolist()
    assert expected.sum() == 10 * steps
    assert worker.ages[0][0].numpy().tolist() == since.tolist()


def test_where_everything_goes_whole_nothing_is_old():
    worker = watched(OneWorker(), dense_vectors=True)
    worker([[tf.ones([4])]])
    assert worker.sent_ages.numpy().sum() == worker.waiting_ages().sum() == 0


def test_everything_sent_is_never_old():
    worker = watched(SimulatedWorkers(2))
    for gradient in SCHEDULE:
        worker([[tf.constant(gradient)]] * 2, ratio=1.0)
    assert worker.sent_ages.numpy()[0] == 2 * np.count_nonzero(SCHEDULE)
    assert worker.sent_ages.numpy()[1:].sum() == 0
    assert worker.waiting_ages().sum() == 0


def test_reset_forgets_the_ages():
    worker = watched(OneWorker())
    worker([[tf.constant(SCHEDULE[0])]])
    worker.reset()
    assert not worker.sent_ages.numpy().any()
    assert not worker.waiting_ages().any()


def test_watching_changes_nothing_of_the_training(digits):
    from dgc_lab.training.distributed_trainer import DistributedTrainer

    settings = Run(2, 0.01, "by workers").settings(steps=4, learning_rate=0.05)
    plain, watching = DistributedTrainer(settings, SimulatedWorkers(2), digits), watched_trainer(settings, digits)
    losses = [[event.loss for event in trainer.run(0.01)] for trainer in (plain, watching)]
    assert losses[0] == losses[1]
    for one, other in zip(plain.weights, watching.weights, strict=True):
        assert np.array_equal(one, other)


def test_a_tensor_that_was_sent_is_told_from_one_that_was_never_there():
    before, after = tf.constant([0.0, 0.0, 1.0, 1.0]), tf.constant([0.0, 0.0, 0.0, 2.0])
    gradient, velocity = tf.constant([0.0, 0.0, 1.0, 1.0]), tf.constant([0.0, 3.0, 0.0, 0.0])
    assert was_sent(before, after, gradient).numpy().tolist() == [False, False, True, False]
    assert was_sent(before, after, gradient, velocity).numpy().tolist() == [False, True, True, False]


def test_older_ones_count_as_the_longest_age():
    worker = watched(OneWorker(), longest=2)
    for gradient in SCHEDULE:
        worker([[tf.constant(gradient)]])
    assert worker.sent_ages.numpy().tolist() == [2, 1, 1]
    assert worker.ages[0][0].numpy().tolist() == [3, 0, 0, 0]
    assert worker.waiting_ages().tolist() == [0, 0, 1]


def test_counts():
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
        (lambda: watched(OneWorker(), accumulate=False), r"config must accumulate"),
        (lambda: watched(OneWorker(), values="float16"), r"must send float32 values.*got 'float16'"),
        (lambda: Run(3, 0.01), r"workers must be one of 1, 2, 4, .*128, got 3"),
        (lambda: Run(2, 0.01, "never"), r"clipping must be one of none, by workers, the same, got 'never'"),
        (lambda: train_runs([]), r"runs must hold at least one thing, got \[\]"),
        (lambda: train_runs([Run(1, 0.5), Run(1, 0.5)]), r"runs must differ from each other"),
        (lambda: Run(1, 2.0), r"ratio must be above 0 and at most 1, got 2"),
        (lambda: Run(1, 0), r"ratio must be above 0 and at most 1, got 0"),
        (lambda: train_runs([Run(1, 0.5)], steps=0), r"steps must be a whole number of at least 1, got 0"),
        (lambda: clipping_of({"workers": 2}), r"row must have clip_norm, got \{'workers': 2\}"),
        (lambda: clipping_of({"clip_norm": 3.0, "workers": 2}), r"clip_norm must be None, 1 .*got 3.0"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# The runs -----------------------------------------------------------------------------------------------------------


def test_clipping_is_by_workers_or_the_same_for_all():
    norms = {clipping: Run(16, 0.01, clipping).settings(1, 0.05).clip_norm for clipping in ("none", "by workers")}
    assert norms == {"none": None, "by workers": 1.0}
    assert Run(16, 0.01, "the same").settings(1, 0.05).clip_norm == 0.25, "times the root of 16 it is 1 again"
    for clipping in ("none", "by workers", "the same"):
        assert (
            clipping_of({"clip_norm": Run(16, 0.01, clipping).settings(1, 0.05).clip_norm, "workers": 16}) == clipping
        )


def test_rows_are_kept_resumed_and_tabled(tmp_path):
    out = tmp_path / "workers.jsonl"
    runs = [run for run in table_runs(workers=(1, 2), ratios=(0.1,)) if run.clipping == "none"]
    events = train_runs(runs, steps=3, out=out)
    seen = []
    for event in events:
        seen.append(event)
        if isinstance(event, RowEnded) and event.number == 1:
            break  # stopped after two of three rows
    events.close()
    assert sum(isinstance(event, Step) for event in seen) == 6
    assert len(out.read_text().splitlines()) == 2
    again = list(train_runs(runs, steps=3, out=out))
    assert [event.from_file for event in again if isinstance(event, RowEnded)] == [True, True, False]
    assert [event.number for event in again if isinstance(event, RowStarted)] == [0, 1, 2]
    rows = [event.row for event in again if isinstance(event, RowEnded)]
    assert read_rows(out, {}) == json.loads(json.dumps(rows))
    frame = table(rows)
    assert frame["workers"].tolist() == [1, 1, 2]
    assert frame["mean age"].tolist()[0] == 0, "dense"
    assert (frame["mean age"][1:] > 0).all()
    for row in rows:
        assert sum(number for _, _, number in row["sent by age"]) > 0
        assert row["model"] == "digits_cnn"


def test_without_compression_the_number_of_workers_changes_nothing():
    rows = [e.row for e in train_runs([Run(1, 1.0), Run(2, 1.0)], steps=10) if isinstance(e, RowEnded)]
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-3)
    assert rows[0]["accuracy"] == pytest.approx(rows[1]["accuracy"], abs=0.01)


def test_the_table_command(tmp_path, capsys):
    command = ["table", "workers", "--steps", "2"]
    assert main([*command, "--numbers", "1,2", "--ratios", "0.1", "--out", str(tmp_path / "rows.jsonl")]) == 0
    lines = re.findall(r"^ +([12]) .*(none|by workers)", capsys.readouterr().out, re.MULTILINE)
    assert sorted(lines) == sorted([("1", "none"), ("1", "by workers")] * 2 + [("2", "none"), ("2", "by workers")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--numbers", "few"], "--numbers must be whole numbers such as 1,4,16, got 'few'"),
        (["--numbers", "3"], "workers must be one of 1, 2, 4"),
        (["--steps", "0"], "steps must be a whole number of at least 1, got 0"),
        (["--scope", "tensor"], "--scope is for the single-node table, got 'tensor'"),
        (["--data", "x"], "--data is for MNIST; the workers table has digits, got 'x'"),
    ],
)
def test_wrong_options_of_the_table_command_are_named(options, message, capsys):
    assert main(["table", "workers", *options]) == 1
    assert f"error: {message}" in capsys.readouterr().err


def test_an_option_of_three_tables_names_them_all(capsys):
    assert main(["table", "schemes", "--steps", "5"]) == 1
    assert "error: --steps is for the single-node, two-node or workers table, got 5" in capsys.readouterr().err


def test_rows_of_a_table_are_not_counted_as_the_whole_table():
    table = tf.Variable(tf.zeros([1000, 4]))
    watched = WatchedCompressor(DGCConfig(dense_below=0), [table], OneWorker())
    watched([[tf.IndexedSlices(tf.ones([2, 4]), tf.constant([3, 5]), tf.constant([1000, 4]))]])
    assert int(tf.reduce_sum(watched.sent_ages)) == 0, "they have no residual"
