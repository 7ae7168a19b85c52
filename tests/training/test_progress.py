"""Unit tests of the reducer that counts a sweep's events, on sequences that `train_each` can yield."""

import math

import numpy as np
import pytest

from dgc_lab.training.events import Evaluation, RowEnded, RowFailed, RowStarted, Step
from dgc_lab.training.progress import SweepProgress

ROW = {"ratio": 0.1, "accuracy": 0.9}


def step(number):
    return Step(number, loss=2.0, shares_sent=np.ones(1), share_sent=0.1, seconds=0.1 * number)


def row(number, steps):
    """Return the events of a row that trains for `steps` steps."""
    steps_taken = [step(each) for each in range(1, steps + 1)]
    return [RowStarted(number, 0.1), *steps_taken, Evaluation(steps, 0.9, 0.3), RowEnded(number, ROW, from_file=False)]


def after(*events, names=("ratio 1", "ratio 0.1"), steps=2, out=None, seconds=10.0):
    """Return the progress after `events`, the last at ``seconds`` after the sweep started."""
    progress = SweepProgress(list(names), [steps] * len(names), out)
    for event in events:
        progress.take(event, seconds)
    return progress


def test_message_is_empty_before_the_first_update():
    for progress in (after(), after(RowStarted(0, 1.0))):
        assert (progress.share, progress.message()) == (0.0, "")
        assert math.isinf(progress.seconds_left)


def test_message_counts_updates_and_estimates_time_left():
    progress = after(*row(0, 2), RowStarted(1, 0.1), step(1), seconds=30.0)
    assert (progress.done, progress.total, progress.share) == (3, 4, 0.75)
    assert progress.message() == "Ratio 0.1: step 3 of 4, about 10 s left."


def test_latest_step_and_evaluation_are_stored():
    progress = after(*row(0, 2), RowStarted(1, 0.1), step(1))
    assert (progress.name, progress.step.step, progress.evaluation.accuracy) == ("ratio 0.1", 1, 0.9)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(0, 2)], "Done: 1 row in 10.0 s."),
        ([row(0, 2), row(1, 2)], "Done: 2 rows in 10.0 s."),
    ],
)
def test_final_message_counts_rows(rows, message):
    progress = after(*[event for events in rows for event in events], names=["a", "b"][: len(rows)])
    assert progress.ended
    assert (progress.share, progress.message()) == (1.0, message)


def test_rows_from_the_file_are_excluded_from_the_total():
    found = [RowStarted(0, 1.0), RowEnded(0, ROW, from_file=True)]
    progress = after(*found, RowStarted(1, 0.1), step(1), out="/somewhere/rows.jsonl", seconds=2.0)
    assert (progress.done, progress.total, progress.found) == (1, 2, 1)
    assert progress.message() == "Ratio 0.1: step 1 of 2, about 2 s left."
    progress = after(*found, *row(1, 2), out="/somewhere/rows.jsonl", seconds=3.0)
    assert progress.message() == "Done: 1 row in 3.0 s, and 1 from rows.jsonl."
    assert len(progress.rows) == 2


def test_sweep_with_only_saved_rows_is_done():
    progress = after(RowStarted(0, 1.0), RowEnded(0, ROW, from_file=True), names=["a"], out="rows.jsonl")
    assert (progress.done, progress.total, progress.share) == (0, 0, 1.0)
    assert progress.message() == "Done: 0 rows in 10.0 s, and 1 from rows.jsonl."


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_diverged_row_reduces_the_total(taken):
    diverged = [RowStarted(0, 1.0), *map(step, range(1, taken + 1)), RowFailed(0, 1.0, "step 2: NaN")]
    progress = after(*diverged, RowStarted(1, 0.1), step(1))
    assert (progress.done, progress.total, progress.failures) == (taken + 1, taken + 2, ["step 2: NaN"])
    progress = after(*diverged, *row(1, 2))
    assert progress.done == progress.total
    assert str(progress.failure) == "step 2: NaN."
    assert progress.message() == "Done: 1 row in 10.0 s."


def test_stopped_sweep_reports_its_step():
    progress = after(*row(0, 2), RowStarted(1, 0.1), step(1))
    progress.stopped = True
    assert progress.message() == "Stopped at step 3 of 4. Finished rows are kept; Run continues with the others."
    assert progress.share == 0.75
