"""Worker schedules: metrics of their records, the simulation that produces records, and plots of both."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba

from dgc_lab.parameter_server import StepCosts, scale_row, simulate, study_figures, sweep_workers
from dgc_lab.parameter_server import figures as schedule_pictures
from dgc_lab.parameter_server import metrics as event_log
from dgc_lab.parameter_server.events import Score, Training
from dgc_lab.parameter_server.schedule import DROPPED, MODES, GradientEvent, Schedule, Straggler, draw_delay
from dgc_lab.ui.charts import bars

COSTS = StepCosts(computing=0.02, reading=0.0004, applying=0.001, dispatch=0.002)

seconds = st.floats(1e-4, 0.1)
costs = st.builds(
    StepCosts,
    computing=st.lists(st.floats(0.01, 0.1), min_size=1, max_size=5),
    reading=st.lists(seconds, min_size=1, max_size=3),
    applying=st.lists(seconds, min_size=1, max_size=3),
    dispatch=st.lists(seconds, min_size=1, max_size=3),
)


@st.composite
def runs(draw, modes=MODES):
    """Draw workers, a schedule and the records of a simulated run."""
    workers = draw(st.integers(2, 9))
    slow = draw(st.lists(st.integers(0, workers - 1), unique=True, max_size=2))
    stragglers = tuple(
        Straggler(worker, draw(st.floats(1, 10)), draw(seconds), draw(st.none() | st.floats(1.1, 3))) for worker in slow
    )
    schedule = Schedule(
        draw(st.sampled_from(modes)), draw(st.integers(0, 4)), draw(st.integers(1, workers - 1)), stragglers
    )
    gradients = workers * draw(st.integers(1, 8))
    return workers, schedule, simulate(schedule, workers, gradients, draw(costs), draw(st.integers(0, 99)))


# Records -----------------------------------------------------------------------------------------------------------


def test_staleness_of_a_hand_made_schedule():
    """Worker a is fast, b is slow, c joins late.

    a reads 0, b reads 0, a updates to 1, a reads 1, a updates to 2, c reads 2, a reads 2, b updates to 3 (after two by
    a), a updates to 4 (after one by b), c updates to 5 (after one by b and one by a).
    """
    order = "read a1, read b1, update a1, read a2, update a2, read c1, read a3, update b1, update a3, update c1"
    events = [tuple(event.split()) for event in order.split(", ")]
    assert event_log.count_staleness(events) == {"a1": 0, "a2": 0, "b1": 2, "a3": 1, "c1": 2}


def test_staleness_of_updates_with_several_gradients_is_zero():
    """Three workers, one a backup: c's first gradient is dropped, its second joins the second update."""
    order = "read a1, read b1, read c1, update a1 b1, read c2, read a2, update c2 a2"
    events = [tuple(event.split()) for event in order.split(", ")]
    assert event_log.count_staleness(events) == {"a1": 0, "b1": 0, "c2": 0, "a2": 0}


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([("write", "a")], r"event must be one of read, update, got 'write'"),
        ([("update", "a")], r"events must read weights for a gradient before its update, got 'a'"),
        ([("read", "a"), ("read", "a")], r"events must read weights for each gradient once, got 'a' again"),
        ([("read", "a"), ("update", "a"), ("update", "a")], r"events must apply each gradient once, got 'a' again"),
    ],
)
def test_impossible_event_orders_are_rejected(events, message):
    with pytest.raises(ValueError, match=message):
        event_log.count_staleness(events)


def test_tables_of_a_hand_made_run():
    """Two workers for 4 s: worker 0 is idle for 1 s, worker 1 has one gradient dropped."""
    records = [
        GradientEvent(0, 0, 0.0, 0.25, 1.75, 2.0, 0, 0, 2.0),
        GradientEvent(1, 1, 0.5, 1.0, 2.0, 2.5, 0, DROPPED, 2.0),
        GradientEvent(0, 2, 2.0, 2.25, 3.75, 4.0, 1, 1, 1.0),
    ]
    row = event_log.summary({"run": records}, batch_size=10).loc["run"].to_dict()
    assert row == {
        "gradients": 3,
        "updates": 2,
        "dropped": 1,
        "seconds": 4.0,
        "gradients/s": 0.75,
        "updates/s": 0.5,
        "samples/s": 5.0,
        "mean staleness": 0.0,
        "max staleness": 0,
        "idle share": 0.5,
    }
    table = event_log.by_worker(records)
    assert table.loc[0].to_dict() == {
        "gradients": 2,
        "dropped": 0,
        "computing": 3.0,
        "waiting": 0.5,
        "exchanging": 0.5,
        "idle": 1.0,
        "idle share": 0.25,
    }
    assert table.loc[1, ["gradients", "dropped", "computing", "idle share"]].tolist() == [1, 1, 1.0, 0.75]
    assert event_log.update_times(records) == {0: 2.0, 1: 4.0}


def test_runs_without_records_are_rejected():
    with pytest.raises(ValueError, match=r"runs must have at least one run, got none"):
        event_log.summary({}, 32)
    with pytest.raises(ValueError, match=r"at least one gradient each, got none for 'a'"):
        event_log.summary({"a": []}, 32)
    with pytest.raises(ValueError, match=r"batch_size must be a whole number from 1"):
        event_log.summary({"a": [GradientEvent(0, 0, 0, 0, 1, 1, 0, 0, 1.0)]}, 0)


def test_dropped_gradient_has_no_staleness():
    dropped = GradientEvent(0, 0, 0, 0, 1, 1, version=3, update=DROPPED, loss=2.3)
    with pytest.raises(ValueError, match=r"update must be the number of an update, got -1: a dropped gradient has"):
        _ = dropped.staleness


@given(runs())
def test_staleness_from_times_matches_version_numbers(run):
    _, _, records = run
    counted = event_log.count_staleness(event_log.events_in_order(records))
    recorded = {place: record.staleness for place, record in enumerate(records) if record.update != DROPPED}
    assert counted == recorded


@given(runs())
def test_worker_times_add_up(run):
    workers, _, records = run
    table = event_log.by_worker(records)
    row = event_log.summary({"run": records}, 1).loc["run"]
    assert table["gradients"].sum() == row["gradients"] == len(records)
    assert table["dropped"].sum() == row["dropped"]
    assert np.all(table["idle"] >= table["waiting"] + table["exchanging"] - 1e-9)
    np.testing.assert_allclose(table["computing"] + table["idle"], row["seconds"])
    assert row["samples/s"] == pytest.approx((row["gradients"] - row["dropped"]) / row["seconds"])
    for worker in range(workers):
        own = sorted((record for record in records if record.worker == worker), key=lambda record: record.began)
        moments = [moment for record in own for moment in (record.began, record.read, record.computed, record.done)]
        assert moments == sorted(moments)


# Simulation: invariants of the modes -------------------------------------------------------------------------------


@given(runs())
def test_batches_are_computed_once_and_updates_have_no_gaps(run):
    _, _, records = run
    assert sorted(record.batch for record in records) == list(range(len(records)))
    numbers = {record.update for record in records} - {DROPPED}
    assert numbers == set(range(len(numbers)))
    assert [record.done for record in records] == sorted(record.done for record in records)
    assert all(math.isnan(record.loss) for record in records)
    assert all(record.staleness >= 0 for record in records if record.update != DROPPED)


@given(runs(["synchronous"]))
def test_synchronous_updates_hold_one_gradient_per_worker(run):
    workers, _, records = run
    assert all(record.staleness == 0 for record in records)
    for update in range(len(records) // workers):
        assert sorted(record.worker for record in records if record.update == update) == list(range(workers))


@given(runs(["asynchronous", "bounded staleness"]))
def test_every_gradient_is_an_update(run):
    _, _, records = run
    assert [record.update for record in records] == list(range(len(records)))


@given(runs(["bounded staleness"]))
def test_no_worker_runs_ahead_of_the_bound(run):
    """Count until a worker runs out of batches, which releases the workers that wait for it."""
    workers, schedule, records = run
    last = {record.worker: record.done for record in records}
    counts = Counter(dict.fromkeys(range(workers), 0))
    for record in records:
        if record.done >= min(last.values()):
            break
        counts[record.worker] += 1
        assert max(counts.values()) - min(counts.values()) <= schedule.bound + 1


@given(runs(["backup workers"]))
def test_backup_mode_uses_first_gradients_and_drops_the_rest(run):
    workers, schedule, records = run
    needed = workers - schedule.backup
    end = min({record.worker: record.done for record in records}.values())
    sizes = Counter(record.update for record in records if record.update != DROPPED)
    assert set(sizes.values()) <= {needed}
    applied = event_log.update_times(records)
    for update, done in applied.items():
        assert done > end or len({record.worker for record in records if record.update == update}) == needed
    for record in records:
        if record.update != DROPPED:
            assert record.update == record.version
        elif record.version in applied:
            assert record.done > applied[record.version]
        else:
            assert record.version == len(applied), "only the unfinished last sum may be dropped"


def test_unfinished_sums_count_as_dropped():
    assert [record.update for record in simulate(Schedule(), 4, 6, COSTS)] == [0, 0, 0, 0, DROPPED, DROPPED]


@given(st.sampled_from(MODES), st.integers(0, 1000))
def test_same_seed_gives_the_same_records(mode, seed):
    schedule = Schedule(mode, stragglers=(Straggler(1, delay=0.01, tail=1.5),))
    several = StepCosts([0.01, 0.02, 0.03], 0.001, 0.001, [0.001, 0.002])
    first, again, other = (simulate(schedule, 4, 24, several, number) for number in (seed, seed, seed + 1))
    without_loss = [[vars(record) | {"loss": None} for record in records] for records in (first, again, other)]
    assert without_loss[0] == without_loss[1] != without_loss[2]


# Simulation: times -------------------------------------------------------------------------------------------------


@given(seconds, seconds, seconds, seconds, st.integers(1, 20), st.sampled_from(MODES[:3]))
def test_one_worker_matches_closed_form(computing, reading, applying, dispatch, gradients, mode):
    records = simulate(Schedule(mode), 1, gradients, StepCosts(computing, reading, applying, dispatch))
    assert records[-1].done == pytest.approx(gradients * (dispatch + reading + computing + applying))


@given(st.integers(1, 64), seconds, seconds, st.integers(1, 5), st.sampled_from(MODES[:3]))
def test_independent_workers_match_closed_form(workers, computing, dispatch, each, mode):
    """If the lock costs nothing, k equal workers never wait and are k times as fast."""
    records = simulate(Schedule(mode), workers, each * workers, StepCosts(computing, dispatch=dispatch))
    assert len(records) / records[-1].done == pytest.approx(workers / (computing + dispatch))


@given(st.integers(1, 12), st.floats(0.01, 0.1), seconds, st.floats(0, 1), seconds, st.integers(1, 6))
def test_synchronous_rounds_match_closed_form(workers, more, reading, part, dispatch, rounds):
    """Applying is no slower than reading, and computing outlasts all reads, so no worker waits to submit.

    The last worker to submit reads last in the next round: after its next batch arrives and after the others.
    """
    applying, computing = part * reading, more + dispatch + workers * reading
    records = simulate(Schedule(), workers, rounds * workers, StepCosts(computing, reading, applying, dispatch))
    first = dispatch + workers * reading + computing + applying
    later = max(dispatch + reading, workers * reading) + computing + applying
    assert records[-1].done == pytest.approx(first + (rounds - 1) * later)


def test_lock_limits_the_speed_of_many_asynchronous_workers():
    records = simulate(Schedule("asynchronous"), 512, 512 * 10, COSTS)
    assert len(records) / records[-1].done == pytest.approx(1 / (0.0004 + 0.001), rel=0.02)


def test_straggler_slows_down_blocking_modes():
    slow = (Straggler(1, slowdown=5),)
    rows = {
        mode: scale_row(mode, simulate(Schedule(mode, stragglers=slow), 2, 200, COSTS), 2, "simulated")
        for mode in MODES
    }
    alone, together = 0.02 + 0.0034, 5 * 0.02 + 0.0034
    assert rows["synchronous"]["updates/s"] == pytest.approx(1 / together, rel=0.03)
    assert rows["asynchronous"]["updates/s"] == pytest.approx(1 / alone + 1 / together, rel=0.03)
    assert rows["bounded staleness"]["gradients/s"] == pytest.approx(2 / together, rel=0.06)
    assert rows["backup workers"]["updates/s"] == pytest.approx(1 / alone, rel=0.06)
    assert rows["asynchronous"]["mean staleness"] > rows["bounded staleness"]["mean staleness"] > 0
    assert rows["synchronous"]["idle share"] > rows["asynchronous"]["idle share"] + 0.2


def test_heavy_tailed_delays_have_the_requested_mean():
    assert draw_delay(Straggler(0, delay=0.5), random=None) == 0.5
    random = np.random.default_rng(0)
    drawn = np.array([draw_delay(Straggler(0, delay=0.5, tail=3.0), random) for _ in range(20_000)])
    assert drawn.mean() == pytest.approx(0.5, rel=0.03)
    assert drawn.min() >= 0.5 * 2 / 3
    assert (drawn > 1.0).mean() == pytest.approx((1 / 3) ** 3, rel=0.15)  # Pareto: (least / x) to the tail


# Calibration and sweeps --------------------------------------------------------------------------------------------


@given(st.sampled_from(MODES), seconds, seconds, seconds, st.floats(0.05, 0.2))
def test_measured_costs_match_the_simulated_ones(mode, reading, applying, dispatch, computing):
    """Waiting for a turn or for the lock is not counted as a cost.

    Dispatch and computing outlast a read; otherwise two synchronous workers could block each other every time.
    """
    dispatch += reading
    computing += dispatch + reading
    varied = [computing, 1.1 * computing, 1.37 * computing]
    records = simulate(Schedule(mode), 2, 60, StepCosts(varied, reading, applying, dispatch))
    found = StepCosts.measured(records)
    np.testing.assert_allclose(found.reading, reading)
    np.testing.assert_allclose(found.applying, applying)
    np.testing.assert_allclose(found.dispatch, dispatch)
    assert {round(number / computing, 6) for number in found.computing} <= {1.0, 1.1, 1.37}


@pytest.mark.parametrize("mode", MODES)
def test_calibrated_simulation_reproduces_the_run(mode):
    random = np.random.default_rng(1)
    varied = StepCosts(
        random.gamma(4, 0.005, 50), random.gamma(4, 0.0002, 50), random.gamma(4, 0.0003, 50), [0.001, 0.003]
    )
    schedule = Schedule(mode)
    given = simulate(schedule, 2, 1000, varied, seed=1)
    again = simulate(schedule, 2, 1000, StepCosts.measured(simulate(Schedule("asynchronous"), 2, 1000, varied)), seed=2)
    first, second = (event_log.summary({"run": records}, 32).loc["run"] for records in (given, again))
    assert second["samples/s"] == pytest.approx(first["samples/s"], rel=0.05)
    assert second["mean staleness"] == pytest.approx(first["mean staleness"], abs=0.05)


def test_runs_too_short_to_measure_costs_are_rejected():
    one = GradientEvent(0, 0, 0.0, 1.0, 2.0, 3.0, 0, 0, 2.0)
    with pytest.raises(ValueError, match=r"two gradients of one worker, got 1"):
        StepCosts.measured([one])
    with pytest.raises(ValueError, match=r"no other worker finished one, got 1 and 0 of 2"):
        StepCosts.measured(
            [GradientEvent(0, 0, 0.0, 1.0, 2.0, 5.0, 0, 0, 2.0), GradientEvent(1, 1, 0.5, 3.0, 4.0, 6.0, 0, 1, 2.0)]
        )
    with pytest.raises(ValueError, match=r"got none for 'records'"):
        StepCosts.measured([])
    with pytest.raises(ValueError, match=r"runs must have at least one element, got \(\)"):
        StepCosts.measured()


def test_costs_come_from_all_runs_without_the_slowed_workers():
    slow = Schedule("asynchronous", stragglers=(Straggler(1, slowdown=7),))
    equal = simulate(Schedule("asynchronous"), 2, 20, StepCosts(2.0, 0.1, 0.2, 0.5))
    uneven = simulate(slow, 2, 20, StepCosts(3.0, 0.1, 0.2, 0.5))
    found = StepCosts.measured(equal, uneven, slowed={1})
    assert set(np.round(found.computing, 6)) == {2.0, 3.0}
    assert len(found.computing) == sum(record.worker == 0 for record in (*equal, *uneven))
    assert set(np.round(StepCosts.measured(uneven).computing, 6)) == {3.0, 21.0}


def test_waits_for_a_slowed_worker_are_no_costs():
    own = [GradientEvent(0, 0, 0.0, 1.0, 3.0, 4.0, 0, 0, 2.0), GradientEvent(0, 2, 5.0, 8.0, 10.0, 11.0, 1, 1, 2.0)]
    slow = GradientEvent(1, 1, 0.0, 2.0, 6.0, 7.0, 0, 2, 2.0)  # done while worker 0 waits to read
    assert StepCosts.measured(own).reading == (1.0, 3.0)
    assert StepCosts.measured([*own, slow], slowed={1}).reading == (1.0,)


def test_sweep_is_labelled_as_simulated():
    frame = sweep_workers({mode: Schedule(mode) for mode in MODES}, COSTS, workers=(2, 16), gradients_each=5)
    assert frame["source"].eq("simulated").all()
    assert frame[["schedule", "workers"]].values.tolist() == [[mode, count] for mode in MODES for count in (2, 16)]
    by_name = frame.set_index(["schedule", "workers"])
    assert by_name.loc[("asynchronous", 16), "gradients/s"] > 4 * by_name.loc[("asynchronous", 2), "gradients/s"]
    assert (by_name.loc["synchronous", "mean staleness"] == 0).all()


# Invalid input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"computing": 0}, r"computing must be above 0 seconds and finite, got 0"),
        ({"computing": []}, r"computing must have at least one element, got \[\]"),
        ({"computing": "long"}, r"computing must be a number or a list of numbers, got 'long'"),
        ({"computing": np.array(0.1)}, r"computing must be a list, got array\(0.1\)"),
        ({"computing": 1, "reading": -1}, r"reading must be at least 0 seconds and finite, got -1"),
        ({"computing": 1, "dispatch": [0.1, math.inf]}, r"dispatch must be at least 0 seconds and finite, got inf"),
    ],
)
def test_invalid_costs_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        StepCosts(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, r"workers must be a whole number from 1 to 1024, got 0"),
        ({"workers": 1025}, r"workers must be a whole number from 1 to 1024, got 1025"),
        ({"gradients": 0}, r"gradients must be a whole number from 1 to 1000000, got 0"),
        ({"seed": -1}, r"seed must be a whole number from 0"),
        ({"schedule": "asynchronous"}, r"schedule must be an instance of Schedule, got 'asynchronous'"),
        ({"costs": 0.01}, r"costs must be an instance of StepCosts, got 0.01"),
        ({"schedule": Schedule("backup workers", backup=2)}, r"backup must be below 2, the number of workers, got 2"),
        ({"schedule": Schedule(stragglers=(Straggler(2),))}, r"stragglers must be among workers 0 to 1, got 2"),
    ],
)
def test_invalid_simulation_arguments_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(**{"schedule": Schedule(), "workers": 2, "gradients": 4, "costs": COSTS, **arguments})


def test_numbers_of_a_simulation_may_be_tensors():
    workers, gradients, seed = (tf.constant(number) for number in (2, 4, 1))
    expected = simulate(Schedule(), 2, 4, COSTS, seed=1)
    assert simulate(Schedule(), workers, gradients, COSTS, seed) == expected


def test_stragglers_can_come_from_a_generator():
    schedule = Schedule("asynchronous", stragglers=(Straggler(number) for number in range(2)))
    assert schedule.stragglers == (Straggler(0), Straggler(1))


def test_sweeps_are_checked_before_the_first_run():
    with pytest.raises(ValueError, match=r"workers must be a whole number from 1 to 1024, got 2048"):
        sweep_workers({"synchronous": Schedule()}, COSTS, workers=(1024, 2048), gradients_each=900)
    with pytest.raises(ValueError, match=r"schedules must be an instance of Schedule, got 'asynchronous'"):
        sweep_workers({"asynchronous": "asynchronous"}, COSTS)
    with pytest.raises(ValueError, match=r"schedules and workers must not be empty"):
        sweep_workers({}, COSTS)
    with pytest.raises(ValueError, match=r"source must be one of measured, simulated, got 'guessed'"):
        scale_row("a", [], 2, "guessed")


# Plots ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured_like():
    """Runs of all modes with one slow worker of three, and a falling loss."""
    slow = (Straggler(2, slowdown=4),)
    return {
        mode: [
            replace(record, loss=2.0 - place / 100)
            for place, record in enumerate(simulate(Schedule(mode, stragglers=slow), 3, 90, COSTS))
        ]
        for mode in MODES
    }


def bars_of(picture, panel: int, look: str):
    """Yield the bars with one look in a timeline panel, as (begin, end, vertical centre)."""
    colour = to_rgba(schedule_pictures.LOOKS[look]["facecolor"])
    for collection in picture.figure.axes[panel].collections:
        if tuple(collection.get_facecolor()[0]) == colour:
            for path in collection.get_paths():
                box = path.get_extents()
                yield box.x0, box.x1, round((box.y0 + box.y1) / 2)


def test_timelines_match_the_records(measured_like):
    picture = schedule_pictures.timelines(measured_like)
    assert len(picture.figure.axes) == len(MODES)
    start, end = picture.figure.axes[0].get_xlim()
    assert start == 0 < end < min(records[-1].done for records in measured_like.values())
    for panel, (name, records) in enumerate(measured_like.items()):
        shown = sorted(
            (record.read, min(record.computed, end), record.worker)
            for record in records
            if record.update != DROPPED and record.read < end
        )
        np.testing.assert_allclose(sorted(bars_of(picture, panel, "computing")), shown)
        marks = picture.figure.axes[panel].lines[0].get_xdata()
        moments = [moment for moment in event_log.update_times(records).values() if moment <= end]
        np.testing.assert_allclose(marks, moments)
        assert f"{name}: {len(moments)} updates" in picture.alt
    dropped = list(bars_of(picture, MODES.index("backup workers"), "computing, then dropped"))
    assert dropped
    assert {worker for _, _, worker in dropped} == {2}


def test_timelines_limit_the_window_and_number_of_workers():
    runs = {"many": simulate(Schedule("asynchronous"), 40, 4000, COSTS)}
    picture = schedule_pictures.timelines(runs)
    start, end = picture.figure.axes[0].get_xlim()
    assert start == 0
    assert 3 * 0.02 < end < runs["many"][-1].done / 4
    assert "many (the first 16 of 40 workers)" in picture.alt
    assert len(picture.figure.axes[0].get_yticks()) == 17
    short = {"short": runs["many"][:1]}
    assert schedule_pictures.timelines(short).figure.axes[0].get_xlim()[1] == runs["many"][0].done


def test_spans_are_clipped_to_the_window(measured_like):
    records = measured_like["asynchronous"]
    found = schedule_pictures.spans(records, range(3), 0.1, 0.5)
    for worker in range(3):
        shown = [
            (max(record.read, 0.1), min(record.computed, 0.5))
            for record in records
            if record.worker == worker and record.read < 0.5 and record.computed > 0.1
        ]
        bars = [(begin, begin + length) for begin, length in found[worker, "computing"]]
        np.testing.assert_allclose(bars, shown)


def test_histograms_show_the_share_of_each_staleness(measured_like):
    picture = schedule_pictures.staleness_histograms(measured_like)
    panels = [axes for axes in picture.figure.axes if axes.axison]
    for axes, (name, records) in zip(panels, measured_like.items(), strict=True):
        stale = [record.staleness for record in records if record.update != DROPPED]
        heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axes.patches}
        counted = {staleness: count / len(stale) for staleness, count in Counter(stale).items()}
        assert {staleness: height for staleness, height in heights.items() if height} == pytest.approx(counted)
        assert f"{name}: mean {np.mean(stale):.2f}, largest {max(stale)}" in picture.alt
        assert axes.get_title() == f"{name}\nmean {np.mean(stale):.2f}, largest {max(stale)}"
        [mean] = axes.lines
        assert mean.get_xdata() == pytest.approx([np.mean(stale)] * 2)
        low, high = axes.get_ylim()
        assert low < min(counted.values()) <= max(counted.values()) < high, "no bar is cut off"
    many = {"many": simulate(Schedule("asynchronous"), 100, 1000, COSTS)}
    bars = schedule_pictures.staleness_histograms(many).figure.axes[0].patches
    assert len(bars) <= 30
    assert sum(bar.get_height() for bar in bars) == pytest.approx(1)
    nothing = {"nothing": [GradientEvent(0, 0, 0.0, 0.1, 0.2, 0.3, 0, DROPPED, 2.0)]}
    assert "nothing: no update" in schedule_pictures.staleness_histograms(nothing).alt


def test_score_curves_show_the_time_to_the_target():
    runs = {
        "fast": Training(scores=[Score(n, 2.0 * n, {"accuracy": 0.2 * n}) for n in range(1, 5)]),
        "slow": Training(scores=[Score(n, 9.0 * n, {"accuracy": 0.1 * n}) for n in range(1, 5)]),
    }
    picture = study_figures.score_curves(runs, "accuracy", 0.5)
    fast, slow, target = picture.figure.axes[0].lines
    np.testing.assert_allclose(fast.get_xydata(), [[2, 0.2], [4, 0.4], [6, 0.6], [8, 0.8]])
    np.testing.assert_allclose(slow.get_ydata(), [0.1, 0.2, 0.3, 0.4])
    assert target.get_ydata() == [0.5, 0.5]
    assert "fast: reaches 0.5 after 6 seconds, ends at 0.800; slow: reaches 0.5 never, ends at 0.400." in picture.alt
    with pytest.raises(ValueError, match="runs must have at least one element"):
        study_figures.score_curves({}, "accuracy", 0.5)


def test_each_seed_is_a_dot_beside_the_mean():
    picture = study_figures.each_seed(pd.Series({"one": [1.0, 3.0], "other": [2.0, np.nan]}), "seconds")
    [axes] = picture.figure.axes
    dots, mean, *_ = axes.lines
    np.testing.assert_allclose(dots.get_xydata(), [[1, 0], [3, 0]])
    np.testing.assert_allclose(mean.get_xdata(), [2, 2])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "other"]
    assert "one: mean 2, from 1 to 3 (2 runs); other: mean 2, from 2 to 2 (1 run), 1 without a value" in picture.alt
    assert "never: no value, 1 without a value" in study_figures.each_seed({"never": [np.nan]}, "seconds").alt


def test_throughput_bars_match_the_table(measured_like):
    frame = event_log.summary(measured_like, 32)[["samples/s", "gradients/s"]]
    picture = bars(frame, "a second")
    widths = [bar.get_width() for bar in picture.figure.axes[0].patches]
    np.testing.assert_allclose(widths, [*frame["samples/s"], *frame["gradients/s"]])
    assert f"asynchronous: samples/s {frame.loc['asynchronous', 'samples/s']:,.0f}, gradients/s" in picture.alt
    with pytest.raises(ValueError, match=r"table must have at least one number, got 0 rows"):
        bars(frame.iloc[:0], "a second")


def test_scaling_plot_separates_simulated_and_measured_runs(measured_like):
    rows = [scale_row(name, records, 3, "measured") for name, records in measured_like.items()]
    simulated = sweep_workers({mode: Schedule(mode) for mode in MODES}, COSTS, workers=(2, 4, 8), gradients_each=5)
    picture = schedule_pictures.by_workers(pd.concat([simulated, pd.DataFrame(rows)]), lock_seconds=0.002)
    speeds, staleness, _ = picture.figure.axes
    assert (speeds.get_xscale(), speeds.get_yscale()) == ("log", "log")
    *_, limit = speeds.lines
    assert limit.get_ydata() == [500, 500]
    limit.remove()
    fresh = {"synchronous", "backup workers"}
    assert {line.split(":")[0] for line in staleness.texts[0].get_text().splitlines()} == fresh
    assert len(staleness.lines) == 2 * (len(MODES) - len(fresh)), "a simulated and a measured line each"
    strokes = {str(line._dash_pattern) for line in speeds.lines if line.get_linestyle() != "None"}
    assert len(strokes) == len(MODES), "lines that coincide stay distinguishable"
    assert "The servers' lock allows 500 gradients/s." in picture.alt
    marks = [line for line in speeds.lines if line.get_linestyle() == "None"]
    assert [line.get_xdata().tolist() for line in marks] == [[3]] * 4
    assert [line.get_ydata()[0] for line in marks] == pytest.approx([row["gradients/s"] for row in rows])
    assert [line.get_xdata().tolist() for line in speeds.lines if line not in marks] == [[2, 4, 8]] * 4
    assert "asynchronous, measured: 3 workers" in picture.alt
    assert "asynchronous, simulated: 8 workers" in picture.alt
    with pytest.raises(ValueError, match=r"frame must have at least one row, got none"):
        schedule_pictures.by_workers(simulated.iloc[:0], 1.0)
    with pytest.raises(ValueError, match=r"lock_seconds must be above 0 and finite, got 0"):
        schedule_pictures.by_workers(simulated, 0)


def test_scaling_plot_draws_any_number_of_schedules():
    schedules = {f"bound {bound}": Schedule("bounded staleness", bound=bound) for bound in range(10)}
    table = sweep_workers(schedules, COSTS, workers=(2, 4), gradients_each=5)
    speeds = schedule_pictures.by_workers(table, lock_seconds=0.002).figure.axes[0]
    assert len(speeds.lines) == len(schedules) + 1
