"""Learning rate by number of workers: the examples and the rate of each run, independent of earlier runs."""

import numpy as np
import pandas as pd
import pytest

from dgc_lab.training.rates_by_workers import RateOfStep, accuracy_by_rate, updates


def test_two_workers_equal_one_with_a_doubled_batch():
    """With dense gradients, each update averages over the same examples."""
    [[two]] = accuracy_by_rate({"two": (2, 0.05)}, examples=640, batch=16, seeds=[0]).to_numpy()
    [[one]] = accuracy_by_rate({"one": (1, 0.05)}, examples=640, batch=32, seeds=[0]).to_numpy()
    assert two == pytest.approx(one, abs=0.01)
    assert two > 0.2, "no better than guessing after 20 updates"


@pytest.mark.nightly
def test_runs_do_not_depend_on_earlier_runs():
    runs = {"two": (2, 0.05), "one": (1, 0.05), "two, higher": (2, 0.1)}
    together = accuracy_by_rate(runs, examples=320, seeds=(0, 1))
    assert together.index.tolist() == list(runs)
    assert together.columns.tolist() == [0, 1]
    alone = accuracy_by_rate({"two, higher": runs["two, higher"]}, examples=320, seeds=(1,))
    assert together.loc["two, higher", 1] == pytest.approx(alone.loc["two, higher", 1], abs=0.01)
    assert together[0].tolist() != together[1].tolist()


def test_rate_is_a_number_or_a_schedule():
    rate = RateOfStep(4)
    rate.set(0.5)
    assert [float(rate(step)) for step in range(4)] == [0.5] * 4
    rate.set(lambda step: step / 4)
    assert [float(rate(step)) for step in range(4)] == [0, 0.25, 0.5, 0.75]


def test_diverged_run_has_no_accuracy():
    table = accuracy_by_rate({"far": (1, 1e30), "near": (1, 0.05)}, examples=160, seeds=[0])
    assert np.isnan(table.loc["far", 0])
    assert not pd.isna(table.loc["near", 0])


def test_invalid_arguments_are_named():
    assert updates(4, 640) == 10
    with pytest.raises(ValueError, match="examples must be a whole number from 64 to 1000000000, got 63"):
        accuracy_by_rate({"four": (4, 0.1)}, examples=63)
    with pytest.raises(ValueError, match="batch must be a whole number from 1 to 1000000, got 0"):
        accuracy_by_rate({"one": (1, 0.1)}, examples=63, batch=0)
