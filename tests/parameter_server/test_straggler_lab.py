"""The widget of lesson 3 on real parameter servers, driven through its controls."""

import base64
import re
import time
from collections import Counter

import numpy as np
import psutil
import pytest

from dgc_lab.common import LabError
from dgc_lab.parameter_server.events import Training, WorkerDied
from dgc_lab.parameter_server.live_figure import StragglerPicture
from dgc_lab.parameter_server.metrics import summary
from dgc_lab.parameter_server.schedule import DROPPED, MODES, GradientEvent
from dgc_lab.parameter_server.tasks import Classifier
from dgc_lab.parameter_server.training_loop import Score, train
from dgc_lab.parameter_server.widget import RunProgress, StragglerLab
from dgc_lab.workloads.data import load
from dgc_lab.workloads.gan import RingGAN
from dgc_lab.workloads.models import digits_cnn
from widgets import assert_matches_the_full_figure, press, said

FIRST = {"mode": "synchronous", "workers": 2, "slowdown": 1, "learning_rate": 0.05, "momentum": 0}
FIRST |= {"staleness_aware": False, "bound": 2, "backup": 1, "batch": 16, "gradients": 24, "seed": 0}
LONG = 100_000  # gradients; such a run ends only when stopped


@pytest.fixture(scope="module")
def warm_lab():
    """A widget whose servers are shared between tests; use the `lab` fixture."""
    widget = StragglerLab(Classifier(digits_cnn, load("digits")))
    yield widget
    widget.close()


@pytest.fixture
def lab(warm_lab):
    """The widget configured for a short run, without rows; always stopped after the test."""
    for name, value in FIRST.items():
        warm_lab.controls[name].value = value
    warm_lab.clear()
    yield warm_lab
    warm_lab.stop()
    assert warm_lab.wait(60)


def train_to_the_end(widget):
    press(widget, "run")
    assert widget.wait(300)
    assert "Done" in said(widget), said(widget)


def wait_for_message(widget, words):
    end = time.monotonic() + 90
    while not re.search(words, said(widget)):
        assert time.monotonic() < end, said(widget)
        time.sleep(0.02)


# One run and its row -------------------------------------------------------------------------------------------------


def test_run_trains_on_servers_and_row_matches_the_records(lab):
    train_to_the_end(lab)
    [row], [records] = lab.rows, lab.records.values()
    assert sorted(record.batch for record in records) == list(range(24))
    measured = summary(lab.records, batch_size=16).iloc[0].to_dict()
    assert {name: row[name] for name in measured} == measured
    assert row["max staleness"] == 0
    assert {name: row[name] for name in ("mode", "workers", "slowdown")} == {
        "mode": "synchronous",
        "workers": 2,
        "slowdown": 1.0,
    }
    *_, score = [e for e in lab.servers.stream(train, lab.experiment.task, lab.settings()) if isinstance(e, Score)]
    assert row["loss"] == pytest.approx(score.values["loss"], rel=1e-3)
    assert row["accuracy"] == pytest.approx(score.values["accuracy"], abs=0.01)
    assert f"{row['gradients/s']:.4g}" in lab.table.value
    assert re.search(
        r"Done: 2 workers, synchronous: 24 of 24 gradients, [\d.]+ gradients/s, mean stal.* 0.00", said(lab)
    )
    assert lab.progress.value == 1


@pytest.mark.alone  # compares a slowed worker with another
def test_asynchronous_training_with_a_slow_worker(lab):
    lab.mode.value, lab.slowdown.value, lab.gradients.value = "asynchronous", 10, 60
    train_to_the_end(lab)
    [records] = lab.records.values()
    by_worker = Counter(record.worker for record in records)
    assert by_worker[0] > by_worker[1] > 0
    assert lab.rows[0]["slowdown"] == 10
    assert lab.rows[0]["max staleness"] == max(record.staleness for record in records) > 0
    assert lab.curves.counts == Counter(record.staleness for record in records)
    alt = lab.curves.alt()
    assert f"mean {lab.rows[0]['mean staleness']:.2f}, at most {lab.rows[0]['max staleness']}" in alt
    assert re.search(r"worker 0 .*computing.*; worker 1 .*computing", alt)
    assert "1 asynchronous, 10x: " in lab.image.value


@pytest.mark.nightly
def test_all_modes_are_compared_side_by_side(lab):
    for mode in MODES:
        lab.mode.value = mode
        train_to_the_end(lab)
    assert [row["mode"] for row in lab.rows] == [
        "synchronous",
        "asynchronous",
        "bounded staleness, bound 2",
        "backup workers, backup 1",
    ]
    assert list(lab.records) == [row["name"] for row in lab.rows] == [f"{n} {mode}" for n, mode in enumerate(MODES, 1)]
    assert all(row["name"] in lab.curves.alt() for row in lab.rows)
    assert lab.table.value.count("<tr") == 1 + 4
    taken = [record for record in lab.records["4 backup workers"] if record.update != DROPPED]
    assert lab.rows[3]["updates"] == len(taken)
    press(lab, "clear")
    assert (lab.rows, lab.records, lab.table.value) == ([], {}, "")
    assert "No run yet" in lab.image.value


def test_run_blocks_and_displays_a_static_figure_and_table(lab, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *things: shown.extend(things))
    lab.staleness_aware.value, lab.momentum.value = True, 0.5
    lab.run()
    picture, frame = shown
    data, metadata = picture._repr_mimebundle_()
    assert base64.b64decode(data["image/png"])[:4] == b"\x89PNG"
    assert metadata["image/png"]["alt"].startswith("Training loss by seconds. 1 synchronous: ")
    assert frame["rate"].tolist() == ["0.05 / staleness, momentum 0.5"]


# Stop and errors -----------------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_stop_keeps_a_row_and_only_one_run_at_a_time(lab):
    lab.gradients.value, lab.mode.value = LONG, "asynchronous"
    times = []
    lab.image.observe(lambda _: times.append(time.monotonic()), "value")
    press(lab, "run")
    press(lab, "run")
    thread = lab._thread
    lab.start()
    lab.clear()
    with pytest.raises(RuntimeError, match="a run is in progress"):
        lab.run()
    assert lab._thread is thread
    while len(times) < 5:
        assert lab._thread.is_alive(), said(lab)
        time.sleep(0.02)
    asked = time.monotonic()
    press(lab, "stop")
    press(lab, "stop")
    lab.stop()
    assert lab.wait(20)
    assert time.monotonic() - asked < 5
    lab.image.unobserve_all()
    assert np.diff(times[:5]).min() >= 0.24, "at most four frames a second"
    assert said(lab).startswith("Stopped: 2 workers, asynchronous: ")
    [row] = lab.rows
    assert (row["run"], row["name"]) == ("1, stopped", "1 asynchronous (stopped)")
    assert 0 < row["gradients"] == len(lab.records[row["name"]]) < LONG
    assert not lab.run_button.disabled
    assert lab.stop_button.disabled
    lab.gradients.value = 24
    train_to_the_end(lab)
    assert [row["run"] for row in lab.rows] == ["1, stopped", "2"]


@pytest.mark.nightly
def test_next_run_restarts_dead_processes(lab):
    train_to_the_end(lab)
    before = lab.servers
    lab.servers.kill("worker 1")
    train_to_the_end(lab)
    assert {record.worker for record in lab.records["2 synchronous"]} == {0, 1}
    lab.workers.value = 1
    train_to_the_end(lab)
    assert not before.ready
    lab.servers.kill("parameter server 0")
    train_to_the_end(lab)
    assert [row["workers"] for row in lab.rows] == [2, 2, 1, 1]


def test_death_during_training_is_reported_and_adds_no_row(lab):
    lab.gradients.value, lab.workers.value = LONG, 1
    press(lab, "run")
    wait_for_message(lab, r"of 100000 gradients")
    lab.servers.kill("parameter server 0")
    assert lab.wait(60)
    assert 'role="alert"' in lab.message.value
    assert "parameter server 0" in said(lab)
    assert lab.rows == []
    assert "1 synchronous (failed)" in lab.curves.alt()
    assert not lab.run_button.disabled


def test_close_ends_all_processes():
    lab = StragglerLab(Classifier(digits_cnn, load("digits")), workers=1, gradients=LONG)
    before = set(psutil.Process().children(recursive=True))
    assert lab.servers is None, "servers started before Run"
    lab.start()
    wait_for_message(lab, r"of 100000 gradients")
    started = set(psutil.Process().children(recursive=True)) - before
    assert started
    lab.close()
    assert not psutil.wait_procs(started, timeout=60)[1]


@pytest.fixture
def unstarted():
    widget = StragglerLab()
    yield widget
    assert widget.wait(30)
    assert widget.rows == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gradients": 0}, "gradients must be a whole number from 1"),
        ({"gradients": 25}, "gradients must be a multiple of 2, the number of workers, got 25"),
        ({"gradients": 2, "workers": 4}, "gradients must be at least 4, one for each worker, got 2"),
        ({"batch": 0}, "batch must be a whole number from 1"),
        ({"learning_rate": 0}, "learning_rate must be above 0"),
        ({"momentum": 1}, "momentum must be at least 0 and below 1"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"mode": "bounded staleness", "bound": -1}, "bound must be a whole number from 0"),
        ({"mode": "backup workers", "workers": 1}, "backup must be below 1, the number of workers, got 1"),
    ],
)
def test_invalid_values_are_reported_and_nothing_starts(unstarted, values, message):
    for name, value in values.items():
        unstarted.controls[name].value = value
    press(unstarted, "run")
    assert message in said(unstarted)
    assert 'role="alert"' in unstarted.message.value
    assert unstarted.servers is None
    assert not unstarted.run_button.disabled
    with pytest.raises(ValueError, match=re.escape(message)):
        unstarted.run()


def test_bound_and_backup_apply_only_to_their_modes(unstarted):
    shown = {"bound": "bounded staleness", "backup": "backup workers"}
    for mode in MODES:
        unstarted.mode.value = mode
        for name, own in shown.items():
            assert unstarted.controls[name].layout.display == (None if mode == own else "none")
    unstarted.bound.value = -1
    assert unstarted.settings().schedule.backup == 1, "hidden values must not be checked"
    unstarted.mode.value, unstarted.workers.value, unstarted.backup.value = "backup workers", 4, 3
    assert unstarted.settings().schedule.gradients_per_update(4) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workers": 5}, r"workers must be from 1 to 4, got 5"),
        ({"slowdown": 0.5}, r"slowdown must be from 1.0 to 10.0, got 0.5"),
        ({"mode": "none"}, r"mode must be .*synchronous.*, got 'none'"),
        ({"delay": 1}, r"settings must be among mode, workers, slowdown, .* got 'delay'"),
    ],
)
def test_invalid_initial_values_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        StragglerLab(**values)


def test_missing_private_network_is_reported(unstarted, monkeypatch):
    monkeypatch.setattr("dgc_lab.cluster.private_network.unavailable_reason", lambda: "forbidden")
    press(unstarted, "run")
    assert unstarted.wait(60)
    assert "Pass reachable=True to start them anyway" in said(unstarted)
    assert 'role="alert"' in unstarted.message.value
    with pytest.raises(LabError, match="no private network"):
        unstarted.run()


def test_message_names_dead_workers():
    one = GradientEvent(0, 0, 0.0, 0.1, 0.2, 0.5, version=0, update=0, loss=2.3)
    progress = RunProgress("2 workers", 8, Training([one], deaths=[WorkerDied(1, 0.4)]))
    words = "1 of 8 gradients, 2.0 gradients/s, mean staleness 0.00. Worker 1 died; the others continued."
    assert (progress.share, progress.message()) == (1 / 8, f"2 workers: {words}")


# The plot ------------------------------------------------------------------------------------------------------------


def hand_made(seconds=3.0):
    """Return records in which worker 0 needs 0.1 s and worker 1 0.5 s per gradient, each one an update."""
    ends = [(0.1 * n, 0, 0.1) for n in range(1, round(10 * seconds))] + [(0.5 * n + 0.01, 1, 0.5) for n in (1, 2, 3, 4)]
    records, done = [], []
    for end, worker, length in sorted(ends):
        began = end - length
        version = sum(moment <= began for moment in done)
        records.append(
            GradientEvent(worker, len(done), began, began + 0.01, end - 0.01, end, version, update=len(done), loss=2.0)
        )
        done.append(end)
    return records


def test_alt_text_matches_the_records():
    picture = StragglerPicture()
    picture.begin("1 asynchronous, 5x", workers=2)
    records = hand_made()
    for record in records:
        picture.add(record)
    stale = [record.staleness for record in records]
    assert picture.window == 3, "the window must fit four slow gradients"
    assert "1 asynchronous, 5x: 2.000 at first, 2.000 after 2.9 s" in picture.alt()
    assert f"mean {np.mean(stale):.2f}, at most {max(stale)}, {stale.count(0) / len(stale):.0%} are 0" in picture.alt()
    computing = sum(record.computed - record.read for record in records if record.worker == 1)
    assert re.search(rf"3 seconds: {len(records)} updates; .*worker 1 computing {computing / 3:.0%}", picture.alt())


def test_histogram_widens_for_many_values_but_not_for_one():
    picture = StragglerPicture()
    picture.begin("1 asynchronous", workers=1)
    for update in range(200):
        stale = {150: 120}.get(update, update % 2)
        picture.add(GradientEvent(0, update, update, update, update, update + 1, update - stale, update, loss=2.0))
    assert picture.shown == 8
    assert picture.shares() == [0.5 - 1 / 200, 0.5, 0, 0, 0, 0, 0, 0, 1 / 200]
    assert "at most 120" in picture.alt()
    for update in range(200, 220):
        picture.add(GradientEvent(0, update, update, update, update, update + 1, update - 11, update, loss=2.0))
    assert picture.shown == 16
    assert picture.shares()[11] == 20 / 220


def test_fast_frame_matches_the_full_figure():
    picture = StragglerPicture()
    for label in ("1 asynchronous", "2 asynchronous"):
        picture.begin(label, workers=2)
        for record in hand_made():
            picture.add(record)
            if record.batch % 7 == 0:
                picture.panels()
    assert_matches_the_full_figure(picture)


@pytest.mark.nightly
def test_rerunning_a_cell_leaves_one_set_of_servers():
    """The first widget becomes unreachable, so it cannot be closed."""
    task = Classifier(digits_cnn, load("digits"))
    first, second = (StragglerLab(task, workers=1, batch=16, gradients=4) for _ in range(2))
    before, previous = set(psutil.Process().children(recursive=True)), set()
    for lab in (first, second, first):
        train_to_the_end(lab)
        now = set(psutil.Process().children(recursive=True)) - before - previous
        assert now
        assert not psutil.wait_procs(previous, timeout=60)[1]
        previous = now
    first.close()
    second.close()


@pytest.mark.nightly
def test_gan_run_adds_a_row():
    lab = StragglerLab(RingGAN(hidden=8), workers=1, batch=8, gradients=8)
    train_to_the_end(lab)
    [row] = lab.rows
    assert row["modes covered"] >= 0
    assert lab.frame()["accuracy"].isna().all()
    lab.close()
