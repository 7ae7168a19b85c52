"""Parameter-server training when processes die, when it is stopped and when it resumes from a checkpoint."""

import time

import numpy as np
import pytest

from dgc_lab.cluster import FunctionFailed, ParameterServers, ProcessDied
from dgc_lab.cluster import tensorflow_roles as roles
from dgc_lab.common import LabError
from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.events import Finished, Score, WorkerDied
from dgc_lab.parameter_server.schedule import DROPPED, GradientEvent, Schedule, Straggler
from dgc_lab.parameter_server.tasks import Classifier
from dgc_lab.parameter_server.training_loop import restore, train

pytestmark = pytest.mark.filterwarnings("ignore:.* workers share .* cores")

SLOW = tuple(Straggler(worker, delay=0.01) for worker in range(3))  # leaves time for a fault mid-run


def dense_layer():
    """Return a minimal network: one dense layer with fixed initial weights."""
    import keras

    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(10, kernel_initializer=keras.initializers.GlorotUniform(seed=1)),
        ]
    )


@pytest.fixture(scope="module")
def warm_servers():
    with ParameterServers(3, 2, progress=None) as servers:
        yield servers


@pytest.fixture
def three(warm_servers):
    """Three workers and two parameter servers, all alive."""
    if not warm_servers.ready:
        return warm_servers.restart()
    for number in warm_servers.run(roles.dead_workers):
        warm_servers.restart_worker(number)
    return warm_servers


@pytest.fixture(scope="module")
def task(digits):
    return Classifier(dense_layer, digits)


def settings(mode, gradients=240, stragglers=(), **others):
    return AsyncConfig(Schedule(mode, stragglers=stragglers), gradients=gradients, batch=32, score_every=60, **others)


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def check_complete(events, gradients):
    """Check that every batch was processed once and used in at most one update."""
    records = of(GradientEvent, events)
    assert sorted(record.batch for record in records) == list(range(gradients))
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.gradients == gradients
    assert {record.update for record in records} - {DROPPED} == set(range(end.version))
    assert all(np.isfinite(weight).all() for weight in end.weights)
    assert all(record.staleness >= 0 for record in records if record.update != DROPPED)
    return records, end


def train_and_kill(servers, task, settings, names, restart=False):
    """Train, kill `names` after 30 gradients, optionally restart them after 60 more; return the events."""
    events, taken = [], 0
    for event in servers.stream(train, task, settings):
        events.append(event)
        taken += isinstance(event, GradientEvent)
        if taken == 30 and isinstance(event, GradientEvent):
            for name in names:
                servers.kill(name)
        if taken == 90 and isinstance(event, GradientEvent) and restart:
            for name in names:
                servers.restart_worker(int(name[-1]))
    return events


# A worker dies


@pytest.mark.alone  # the coordinator must notice a death within a number of gradients
@pytest.mark.parametrize("killed", [["worker 0"], ["worker 1", "worker 2"]])
def test_asynchronous_training_survives_worker_deaths(three, task, killed):
    events = train_and_kill(three, task, settings("asynchronous", stragglers=SLOW), killed)
    records, end = check_complete(events, 240)
    assert end.version == 240, "each gradient must be one update"
    assert sorted(f"worker {event.worker}" for event in of(WorkerDied, events)) == killed
    dead = {int(name[-1]) for name in killed}
    assert {record.worker for record in records[150:]}.isdisjoint(dead)
    assert of(Score, events)[-1].values["loss"] < of(Score, events)[0].values["loss"]


@pytest.mark.alone  # the new worker must connect while the others compute 510 gradients
def test_restarted_worker_rejoins_training(three, task):
    chosen = settings("asynchronous", gradients=600, stragglers=SLOW)
    events = train_and_kill(three, task, chosen, ["worker 1"], restart=True)
    records, end = check_complete(events, 600)
    assert end.version == 600
    assert [event.worker for event in of(WorkerDied, events)] == [1]
    place = next(place for place, event in enumerate(events) if isinstance(event, WorkerDied))
    assert any(record.worker == 1 for record in of(GradientEvent, events[place + 100 :])), "the new worker must work"
    assert {record.worker for record in records} == {0, 1, 2}


@pytest.mark.nightly
def test_backup_worker_replaces_a_dead_one(three, task):
    events = train_and_kill(three, task, settings("backup workers", stragglers=SLOW), ["worker 2"])
    records, end = check_complete(events, 240)
    assert [event.worker for event in of(WorkerDied, events)] == [2]
    for update in range(end.version):
        assert sum(record.update == update for record in records) == 2, "updates must average the first two"
    assert of(Score, events)[-1].values["loss"] < of(Score, events)[0].values["loss"]


def test_more_deaths_than_backups_raise_an_error(three, task):
    with pytest.raises(FunctionFailed, match="worker 0 and worker 2 died, and backup workers training cannot continue"):
        train_and_kill(three, task, settings("backup workers", stragglers=SLOW), ["worker 0", "worker 2"])


@pytest.mark.nightly_except("synchronous")
@pytest.mark.alone
@pytest.mark.parametrize("mode", ["synchronous", "bounded staleness"])
def test_blocking_modes_name_the_dead_worker(three, task, mode):
    stream, taken = three.stream(train, task, settings(mode, stragglers=SLOW)), 0
    while taken < 30:
        taken += isinstance(next(stream), GradientEvent)
    three.kill("worker 1")
    began = time.monotonic()
    with pytest.raises(
        FunctionFailed, match=rf"worker 1 died, and {mode} training cannot continue without.*restart_work"
    ):
        list(stream)
    assert time.monotonic() - began < 5
    three.restart_worker(1)
    events = list(three.stream(train, task, settings(mode, gradients=60)))
    records, _ = check_complete(events, 60)
    assert {record.worker for record in records} == {0, 1, 2}, "the restarted worker must join the cluster"


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["synchronous", "bounded staleness", "asynchronous", "backup workers"])
def test_immediate_restart_still_counts_as_a_death(three, task, mode):
    """A worker killed and restarted between two polls; synchronous training used to hang."""
    events, taken = [], 0
    chosen = settings(mode, stragglers=tuple(Straggler(worker, delay=0.03) for worker in range(3)))
    began = time.monotonic()

    def train_and_lose_worker_1():
        nonlocal taken
        for event in three.stream(train, task, chosen):
            events.append(event)
            taken += isinstance(event, GradientEvent)
            if taken == 30 and isinstance(event, GradientEvent):
                three.kill("worker 1")
                three.restart_worker(1)

    if mode in ("synchronous", "bounded staleness"):
        with pytest.raises(FunctionFailed, match=f"worker 1 died, and {mode} training cannot continue without"):
            train_and_lose_worker_1()
        assert time.monotonic() - began < 30
    else:
        train_and_lose_worker_1()
        check_complete(events, 240)
        assert [event.worker for event in of(WorkerDied, events)] == [1]


def test_stop_before_the_first_batch_dispatches_none(three, task):
    """A stop may arrive while the model is built: on slow machines, the first step exceeds the grace."""
    from dgc_lab.cluster.rank import request_stop
    from dgc_lab.parameter_server import training_loop

    def stopped_before_it_began(*arguments):
        events = training_loop.train(*arguments)
        yield next(events)  # the score of the initial weights
        request_stop()
        yield from events

    events = list(three.stream(stopped_before_it_began, task, settings("asynchronous")))
    assert of(GradientEvent, events) == []
    assert of(Finished, events)[0].gradients == 0


# A parameter server dies


@pytest.mark.nightly_except("asynchronous")
@pytest.mark.alone
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_training_resumes_after_a_parameter_server_died(three, task, mode, tmp_path):
    chosen, file = settings(mode, stragglers=SLOW), tmp_path / "checkpoint.npz"
    stream, before = three.stream(train, task, chosen, file), []
    while len(of(Score, before)) < 3:  # at 0, 60 and 120 gradients
        before.append(next(stream))
    for _ in range(20):  # these updates are lost
        before.append(next(stream))
    three.kill("parameter server 1")
    began = time.monotonic()
    with pytest.raises(ProcessDied, match="parameter server 1 died"):
        list(stream)
    assert time.monotonic() - began < 10
    with np.load(file) as kept:
        updates, version = kept["updates"], int(kept["version"])
    known = set(np.flatnonzero(updates >= 0).tolist())
    assert len(known) >= 100
    three.restart()
    events = list(three.stream(train, task, chosen, file))
    retrained = {record.batch for record in of(GradientEvent, events)}
    assert retrained == set(range(240)) - known, "exactly the batches missing in the checkpoint must run"
    assert of(Score, events)[0].gradients == len(known)
    assert events[-1].gradients == 240
    assert events[-1].version == (80 if mode == "synchronous" else 240)
    assert set(updates[sorted(known)].tolist()) == {*range(version)}
    reported = [record for record in of(GradientEvent, before) if record.batch in known]
    assert all(updates[record.batch] == record.update for record in reported)
    assert of(Score, events)[-1].values["loss"] < of(Score, before)[0].values["loss"]


# Stopping and resuming


def train_in_parts(servers, task, settings, file, parts):
    """Train, stopping at each number of gradients in `parts`; return all records and the last events."""
    records = []
    for part in [*parts, None]:
        events, stream = [], servers.stream(train, task, settings, file)
        for event in stream:
            events.append(event)
            records += of(GradientEvent, [event])
            if part and len(records) >= part:
                break
        stream.close()
    return records, events


@pytest.mark.parametrize("momentum", [pytest.param(0.0, marks=pytest.mark.nightly), 0.9])
def test_resumed_synchronous_run_equals_an_uninterrupted_one(three, task, tmp_path, momentum):
    chosen = settings("synchronous", momentum=momentum, learning_rate=0.01, stragglers=SLOW)
    _, whole = check_complete(list(three.stream(train, task, chosen)), 240)
    records, events = train_in_parts(three, task, chosen, tmp_path / "checkpoint.npz", [50, 130])
    assert events[-1].version == whole.version == 80
    assert events[-1].gradients == 240
    assert len({record.batch for record in records}) == len(records), "no batch may be reported twice"
    for got, expected in zip(events[-1].weights, whole.weights, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["asynchronous", "bounded staleness", "backup workers"])
def test_resumed_runs_process_every_batch_once(three, task, tmp_path, mode):
    file = tmp_path / "checkpoint.npz"
    chosen = settings(mode, stragglers=SLOW)
    _, events = train_in_parts(three, task, chosen, file, [50, 130])
    assert events[-1].gradients == 240
    with np.load(file) as kept:
        updates = kept["updates"]
    assert (updates != -2).all(), "every batch must be processed"
    took, counts = np.unique(updates[updates != DROPPED], return_counts=True)
    assert took.tolist() == list(range(events[-1].version)), "updates must be numbered without gaps"
    assert set(counts) == {2 if mode == "backup workers" else 1}
    assert sum(counts) == 240 or mode == "backup workers"


def test_damaged_checkpoint_is_named(task, tmp_path):
    file = tmp_path / "checkpoint.npz"
    file.write_bytes(b"PK" + bytes(100))
    with pytest.raises(
        LabError, match=rf"{file} cannot be read, it is damaged .*Remove it, and run the same call again"
    ):
        restore(file, task, settings("synchronous"), 3)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_records_after_a_stop_match_the_weights(three, task, tmp_path, mode):
    """Gradients in flight at the stop are part of the weights, so they must be in the records."""
    file, events = tmp_path / "checkpoint.npz", []
    for event in three.stream(train, task, settings(mode, stragglers=SLOW), file):
        events.append(event)
        if len(of(GradientEvent, events)) == 50:
            three.request_stop()
    end = events[-1]
    records = [record for record in of(GradientEvent, events) if 0 <= record.update < end.version]
    assert 50 < end.gradients < 240
    assert len(records) == end.gradients == end.version * (3 if mode == "synchronous" else 1)
    with np.load(file) as kept:
        assert sorted(record.batch for record in records) == np.flatnonzero(kept["updates"] >= 0).tolist()


def test_finished_training_is_not_repeated(three, task, tmp_path):
    chosen, file = settings("asynchronous", gradients=60), tmp_path / "checkpoint.npz"
    first = list(three.stream(train, task, chosen, file))[-1]
    again = list(three.stream(train, task, chosen, file))
    assert of(GradientEvent, again) == []
    assert again[-1].gradients == again[-1].version == 60
    for got, expected in zip(again[-1].weights, first.weights, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_checkpoint_of_another_configuration_is_rejected(three, task, tmp_path):
    file = tmp_path / "checkpoint.npz"
    list(three.stream(train, task, settings("asynchronous", gradients=60), file))
    with pytest.raises(FunctionFailed, match=r"ValueError: checkpoint .*gradients=60.*not .*gradients=90"):
        list(three.stream(train, task, settings("asynchronous", gradients=90), file))
