"""Replaying runs from records: the weights of each gradient, the update it joins and the effect of staleness."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.parameter_server import figures
from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.metrics import seconds_to
from dgc_lab.parameter_server.replaying import replay
from dgc_lab.parameter_server.schedule import DROPPED, MODES, GradientEvent, Schedule, Straggler
from dgc_lab.parameter_server.simulation import StepCosts, simulate
from dgc_lab.parameter_server.stability import guaranteed_rate, largest_stable_rate, stability_table, stable_rate
from dgc_lab.parameter_server.tasks import Classifier
from dgc_lab.replicas.training_loop import dense_network
from dgc_lab.workloads.data import load

COSTS = StepCosts(computing=np.linspace(0.5, 1.5, 101))


class Slope:
    """Task with one weight w and numbers x; a batch has the loss mean(x) w^2 / 2."""

    examples = (np.arange(1, 9, dtype=np.float32),)

    def initial_weights(self):
        return [np.ones(1, np.float32)]

    def gradients(self, weights, seed, x):
        return tf.reduce_mean(x) * weights[0][0] ** 2 / 2, [tf.reduce_mean(x) * weights[0]]

    def score(self, weights):
        return {"w": float(weights[0][0])}


def record(batch, version, update, worker=0):
    return GradientEvent(worker, batch, batch, batch, batch + 1, batch + 1, version, update, 0.0)


def curvatures(config):
    """Return the mean of x in each batch."""
    return Slope.examples[0][config.batch_order(8)].mean(axis=1)


def test_gradients_use_the_weights_they_read():
    config = AsyncConfig(gradients=4, batch=2, learning_rate=0.1)
    training = replay(Slope(), config, [record(0, 0, 0), record(1, 0, 1), record(2, 0, 2), record(3, 2, 3)])
    h, w = curvatures(config), [1.0]
    for batch, version in enumerate([0, 0, 0, 2]):
        w.append(w[-1] - 0.1 * h[batch] * w[version])
    assert training.end.weights[0][0] == pytest.approx(w[-1], abs=1e-6)
    assert training.scores[-1].values == {"w": training.end.weights[0][0]}
    assert (training.end.version, training.end.gradients, training.scores[-1].seconds) == (4, 4, 4)
    losses = [h[batch] * w[version] ** 2 / 2 for batch, version in enumerate([0, 0, 0, 2])]
    np.testing.assert_allclose([one.loss for one in training.records], losses, rtol=1e-5)


def test_one_task_is_replayed_with_any_staleness():
    """The trace of one replay serves the next, which remembers more or fewer past weights."""
    task, config = Slope(), AsyncConfig(gradients=20, batch=2, learning_rate=0.02)
    h = curvatures(config)
    for staleness in (3, 7, 0, 1):
        records = [record(update, max(0, update - staleness), update) for update in range(20)]
        w = [1.0]
        for update in range(20):
            w.append(w[-1] - 0.02 * h[update] * w[max(0, update - staleness)])
        assert replay(task, config, records).end.weights[0][0] == pytest.approx(w[-1], rel=1e-4)


def test_updates_average_gradients_and_skip_dropped_ones():
    config = AsyncConfig(gradients=5, batch=2, learning_rate=0.01, momentum=0.5)
    records = [record(0, 0, 0), record(1, 0, 0), record(2, 0, DROPPED), record(3, 1, 1), record(4, 1, 1)]
    training = replay(Slope(), config, records)
    h, w, v = curvatures(config), 1.0, 0.0
    for first, second in ((0, 1), (3, 4)):
        v = 0.5 * v + w * (h[first] + h[second]) / 2
        w -= 0.02 * v
    assert training.end.weights[0][0] == pytest.approx(w, abs=1e-6)
    assert sum(math.isnan(one.loss) for one in training.records) == 1
    assert len(training.records) == 5


def test_replay_scores_at_the_times_of_its_updates():
    config = AsyncConfig(gradients=10, batch=2, learning_rate=0.01, score_every=4)
    one_each = replay(Slope(), config, [record(number, number, number) for number in range(10)])
    assert [(score.gradients, score.seconds) for score in one_each.scores] == [(4, 4), (8, 8), (10, 10)]
    w = np.cumprod(1 - 0.01 * curvatures(config))
    assert [score.values["w"] for score in one_each.scores] == pytest.approx(w[[3, 7, 9]], rel=1e-5)
    pairs = [record(number, number // 2, number // 2) for number in range(10)]
    in_pairs = replay(Slope(), dataclasses.replace(config, score_every=5), pairs)
    assert [(score.gradients, score.seconds) for score in in_pairs.scores] == [(6, 6), (10, 10)]
    assert seconds_to(one_each.scores, "w", 0.0) == 4
    assert seconds_to(one_each.scores, "w", 2.0) == math.inf
    with pytest.raises(ValueError, match="name must be one of w, got 'accuracy'"):
        seconds_to(one_each.scores, "accuracy", 0.5)


def test_scores_count_dropped_gradients():
    config = AsyncConfig(gradients=40, batch=2, learning_rate=0.01, score_every=10)
    training = replay(Slope(), config, simulate(Schedule("backup workers"), 2, 40, StepCosts(1.0)))
    assert [score.gradients for score in training.scores] == [10, 20, 30, 40]


@pytest.mark.parametrize(("staleness", "share"), [(0, 1), (1, 1), (2, 1 / 2), (3, 1 / 3)])
def test_staleness_aware_rate_is_divided_by_the_staleness(staleness, share):
    config = AsyncConfig(gradients=4, batch=2, learning_rate=0.1, staleness_aware=True)
    records = [record(update, update, update) for update in range(3)] + [record(3, 3 - staleness, 3)]
    ends = [replay(Slope(), config, records[:count]) for config, count in ((_first(config, 3), 3), (config, 4))]
    before, after = (training.end.weights[0][0] for training in ends)
    w = [1.0]
    for h in curvatures(config)[:3]:
        w.append(w[-1] * (1 - 0.1 * h))
    assert before - after == pytest.approx(0.1 * share * curvatures(config)[3] * w[3 - staleness], rel=1e-4)


def _first(config, gradients):
    return dataclasses.replace(config, gradients=gradients)


@pytest.mark.parametrize("mode", MODES)
def test_simulated_schedules_train_a_network(mode):
    slow = Schedule(mode, stragglers=(Straggler(1, slowdown=3),))
    config = AsyncConfig(gradients=60, batch=32, learning_rate=0.1, momentum=0.9 if mode == "synchronous" else 0)
    task = Classifier(dense_network, load("digits"))
    training = replay(task, config, simulate(slow, 2, 60, COSTS))
    assert len(training.records) == 60
    losses = [one.loss for one in training.records if one.update != DROPPED]
    assert losses[-1] < 0.7 * losses[0]
    assert training.scores[-1].values["accuracy"] > 0.5
    again = replay(task, config, simulate(slow, 2, 60, COSTS))
    for one, other in zip(training.end.weights, again.end.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_synchronous_workers_equal_one_with_the_joined_batch():
    task = Classifier(dense_network, load("digits"))
    two = replay(task, AsyncConfig(gradients=20, batch=16, learning_rate=0.05), simulate(Schedule(), 2, 20, COSTS))
    one = replay(task, AsyncConfig(gradients=10, batch=32, learning_rate=0.1), simulate(Schedule(), 1, 10, COSTS))
    for a, b in zip(two.end.weights, one.end.weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], r"got none for 'records'"),
        ([record(0, 0, 0)], r"complete training of 2 gradients, got 1 in 1 updates up to number 0"),
        ([record(0, 0, 0), record(1, 0, 2)], r"complete training of 2 gradients, got 2 in 2 updates up to number 2"),
    ],
)
def test_incomplete_records_are_rejected(records, message):
    with pytest.raises(ValueError, match=message):
        replay(Slope(), AsyncConfig(gradients=2), records)


def test_run_with_only_dropped_gradients_keeps_its_weights():
    """With four workers and three batches, no update is complete."""
    training = replay(Slope(), AsyncConfig(gradients=3), simulate(Schedule(), 4, 3, COSTS))
    assert [record.update for record in training.records] == [DROPPED] * 3
    assert training.end.version == 0
    np.testing.assert_array_equal(training.end.weights, Slope().initial_weights())


# Stable learning rates ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [0, 1, 2, 5, 20, 100])
def test_largest_root_has_modulus_one_at_the_stable_rate(staleness):
    """w[k+1] = w[k] - a w[k-s] grows like the largest root of z^(s+1) - z^s + a."""
    for factor, converges in ((0.999, True), (1.001, False)):
        polynomial = np.zeros(staleness + 2)
        polynomial[:2] = 1, -1
        polynomial[-1] += factor * stable_rate(staleness)
        assert (abs(np.roots(polynomial)).max() < 1) == converges


@pytest.mark.parametrize("staleness", [0, 1, 2, 5, 20, 100])
def test_guaranteed_rate_is_below_the_stable_rate(staleness):
    rate = guaranteed_rate(staleness)
    assert rate + 2 * (rate * staleness) ** 2 == pytest.approx(1)
    assert stable_rate(staleness) / 3 < rate < stable_rate(staleness)


@pytest.mark.parametrize("staleness", [0, 1, 2, 5, 20])
def test_bisection_finds_the_stable_rate(staleness):
    records = [record(update, max(0, update - staleness), update) for update in range(60 * (staleness + 1))]
    assert largest_stable_rate(records) == pytest.approx(stable_rate(staleness), rel=0.02)


@pytest.mark.parametrize("updates", [1, 2])
def test_stable_rate_needs_at_least_three_updates(updates):
    with pytest.raises(ValueError, match=rf"records must have at least 3 updates, got {updates}"):
        largest_stable_rate([record(update, update, update) for update in range(updates)])


def test_stable_rate_needs_the_start_of_a_run():
    records = simulate(Schedule("asynchronous"), 16, 160, COSTS)
    with pytest.raises(ValueError, match=r"records must start with the first update"):
        largest_stable_rate(records[40:])


def test_stable_rate_falls_with_the_number_of_workers():
    table = stability_table([1, 4, 16], COSTS)
    assert table["workers"].tolist() == [1, 1, 1, 4, 4, 4, 16, 16, 16]
    assert (table["workers"] * table["largest stable rate"]).between(1.5, 2.7).all()
    order = simulate(Schedule("asynchronous"), 4, 240, COSTS, seed=1)
    assert table["largest stable rate"][4] == largest_stable_rate(order)
    assert table["mean staleness"][4] == pytest.approx(np.mean([one.staleness for one in order]))
    with pytest.raises(ValueError, match="workers must be a whole number from 1 to 1024, got 0"):
        stability_table([0], COSTS)


def test_plot_of_stable_rates_shows_the_table():
    import pandas as pd

    picture = figures.stable_rates(pd.DataFrame({"mean staleness": [0.0, 0.96], "largest stable rate": [2.0, 1.15]}))
    [axes] = picture.figure.axes
    marks, limit, guarantee = axes.lines
    assert marks.get_linestyle() == "None"
    np.testing.assert_allclose(marks.get_xydata(), [[1, 2], [1.96, 1.15]])
    np.testing.assert_allclose(limit.get_xydata(), [[1, 2], [2, 1]])
    np.testing.assert_allclose(guarantee.get_xydata(), [[1, 1], [2, 0.5]])
    assert "found on simulated schedules: 0 allows 2, 0.96 allows 1.15; limit if all" in picture.alt
