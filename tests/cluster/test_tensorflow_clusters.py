"""TensorFlow parameter servers and mirrored workers started from a notebook, as real processes."""

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings

import psutil
import pytest

import outside
from dgc_lab.cluster import (
    FunctionFailed,
    MultiWorkerMirrored,
    ParameterServers,
    ProcessDied,
    private_network,
    stalls,
    stop_requested,
)
from dgc_lab.cluster import tensorflow_roles as roles
from dgc_lab.cluster.calls import Call
from dgc_lab.cluster.host import PIDS, process_of
from dgc_lab.cluster.process_group import ProcessGroup
from dgc_lab.cluster.processes import has_ended
from dgc_lab.cluster.processes import is_running as alive
from dgc_lab.cluster.watchdog import FOLDER
from dgc_lab.common import LabError
from dgc_lab.install.launch_env import cores
from kernels import until

pytestmark = pytest.mark.filterwarnings("ignore:.* workers share .* cores")
# A restarted worker must reach the coordinator within a time that a busy machine can exceed.
comes_back = pytest.mark.alone


@pytest.fixture(scope="module")
def warm_servers():
    with ParameterServers(2, 1, grace=60, progress=None) as servers:
        yield servers


@pytest.fixture
def servers(warm_servers):
    """Two workers and a parameter server, restarted if an earlier test ended any of them."""
    whole = warm_servers.ready and not warm_servers.run(roles.dead_workers)
    return warm_servers if whole else warm_servers.restart()


@pytest.fixture(scope="module")
def warm_workers():
    with MultiWorkerMirrored(2, progress=None) as workers:
        yield workers


@pytest.fixture
def workers(warm_workers):
    return warm_workers if warm_workers.ready else warm_workers.restart()


@pytest.fixture
def open_network(monkeypatch):
    """Simulate a machine that allows no private network."""
    monkeypatch.setattr(private_network, "unavailable_reason", lambda: "forbidden here")


# Functions that run in the coordinator or in mirrored workers


def squares(number):
    """Let the workers square the numbers below `number`, in order."""
    import tensorflow as tf

    square = tf.function(lambda x: x * x)
    # One at a time: see `Dispatcher` for what TensorFlow does if workers start at once.
    return [int(roles.coordinator().schedule(square, args=(tf.constant(n),)).fetch()) for n in range(number)]


def both_work(seconds=30):
    """Check that both workers execute a function within `seconds`."""
    import tensorflow as tf

    who = tf.function(lambda: tf.distribute.coordinator.experimental_get_current_worker_index())
    seen, end = set(), time.monotonic() + seconds
    while len(seen) < 2 and time.monotonic() < end:
        seen.add(int(roles.coordinator().schedule(who).fetch()))
    return seen == {0, 1}


def count_until_stopped():
    number = 0
    while not stop_requested():
        number += 1
        yield number
        time.sleep(0.002)


def keep_workers_busy():
    import tensorflow as tf

    work = tf.function(lambda x: tf.reduce_sum(tf.matmul(x, x)))
    while not stop_requested():
        result = roles.coordinator().schedule(work, args=(tf.ones((100, 100)),))
        try:
            found = float(result.fetch())
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            continue  # TensorFlow: a worker died after its work, before replying; `Dispatcher` copes
        yield found


def keep_variable_busy():
    """Update a variable on the parameter server until stopped."""
    import tensorflow as tf

    with roles.coordinator().strategy.scope():
        variable = tf.Variable(0.0)
    add = tf.function(lambda: variable.assign_add(1.0))
    while not stop_requested():
        roles.coordinator().schedule(add)
        roles.coordinator().join()
        yield float(variable.numpy())


def wait_for_stop():
    return sum(1 for _ in count_until_stopped())


def count_aloud(file):
    """Count until stopped, touching `file` to signal that a stop may come."""
    return sum(1 for _ in count_until_stopped() if file.touch() is None)


def stubborn():
    while True:
        time.sleep(0.01)
        yield 1


def touch_and_call(file, function, *arguments):
    """Touch `file` to signal the start, then call `function`."""
    file.touch()
    return function(*arguments)


def when_file_exists(file, then):
    """Call `then` in a thread as soon as `file` exists."""
    thread = threading.Thread(target=lambda: until(file.exists, 60) or then())
    thread.start()
    return thread


def reduce_for_ever():
    import tensorflow as tf

    strategy = roles.mirrored()

    @tf.function
    def total():
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))
        )

    while True:
        yield float(total())


def family(process=None):
    """Return all descendants of a process except zombies."""
    return [child for child in (process or psutil.Process()).children(recursive=True) if alive(child)]


def host():
    """Return the process that the session's newest cluster was forked from."""
    hosts = [p for p in psutil.Process().children() if alive(p) and "dgc_lab.cluster.host" in p.cmdline()]
    return max(hosts, key=lambda process: process.create_time())


@contextlib.contextmanager
def interrupts(*seconds):
    """Send SIGINT, like Ctrl-C, `seconds` after the block starts and never after its end."""
    timers = [threading.Timer(each, os.kill, (os.getpid(), signal.SIGINT)) for each in seconds]
    try:
        for timer in timers:
            timer.start()
        yield
    finally:  # a late one would abort the test session
        for timer in timers:
            timer.cancel()
        for timer in filter(threading.Thread.is_alive, timers):
            timer.join()


# Calls


def test_run_returns_the_coordinators_result(servers):
    offset = 10
    assert servers.run(lambda x, y: x + y + offset, 1, y=2) == 13
    assert servers.run(squares, 12) == [n * n for n in range(12)]
    assert servers.run(both_work)
    assert servers.run(lambda: (roles.number_of("worker"), roles.number_of("ps"))) == (2, 1)


def test_mirrored_workers_return_results_in_worker_order(workers):
    assert workers.run(lambda x: (roles.own_number(), x), 7) == [(0, 7), (1, 7)]
    assert workers.run(lambda: next(reduce_for_ever())) == [2.0, 2.0]
    assert workers.run(lambda: roles.mirrored().num_replicas_in_sync) == [2, 2]


def test_stream_yields_every_item_in_order(servers, workers):
    assert list(servers.stream(lambda: iter(range(5000)))) == list(range(5000))
    assert list(servers.stream(lambda: iter(()))) == []
    items = list(workers.stream(lambda: ((roles.own_number(), n) for n in range(200))))
    for worker in (0, 1):
        assert [n for who, n in items if who == worker] == list(range(200))


def test_large_items_and_results_arrive_intact(servers):
    import numpy as np

    large = np.arange(5_000_000)
    assert np.array_equal(servers.run(lambda x: x + 1, large), large + 1)
    items = list(servers.stream(lambda: (np.full(1_000_000, n) for n in range(5))))
    assert [(len(item), int(item[0]), int(item[-1])) for item in items] == [(1_000_000, n, n) for n in range(5)]


def test_remote_output_is_printed_in_the_notebook(servers, workers, capsys):
    servers.run(lambda: print("hello", "world\nagain", end=""))
    assert capsys.readouterr().out == "[coordinator] hello world\n[coordinator] again\n"

    def printing():
        print("before")
        yield 1
        print("after")

    for item in servers.stream(printing):
        print("item", item)
    assert capsys.readouterr().out.splitlines() == ["[coordinator] before", "item 1", "[coordinator] after"]
    workers.run(lambda: print(roles.own_number()))
    assert sorted(capsys.readouterr().out.splitlines()) == ["[worker 0] 0", "[worker 1] 1"]


def test_items_arrive_live_and_any_thread_can_request_a_stop(servers, tmp_path):
    seen = []
    for item in servers.stream(count_until_stopped):
        seen.append(item)
        if item == 10:
            thread = threading.Thread(target=servers.request_stop)
            thread.start()
            thread.join()
    assert seen == list(range(1, len(seen) + 1))
    thread = when_file_exists(tmp_path / "begun", servers.request_stop)
    assert servers.run(count_aloud, tmp_path / "begun") > 0
    thread.join()
    servers.request_stop()  # no effect while idle
    assert servers.run(stop_requested) is False


def test_breaking_out_of_the_loop_stops_the_coordinator(servers):
    pid = servers.run(os.getpid)
    for item in servers.stream(keep_workers_busy):
        assert item == 100**3
        break
    assert servers.run(os.getpid) == pid, "the coordinator must stay alive and be idle"
    assert servers.run(stop_requested) is False


def test_concurrent_call_is_rejected_as_busy(servers):
    items = servers.stream(count_until_stopped)
    next(items)
    with pytest.raises(LabError, match=r"parameter servers are busy with another call. request_stop\(\)"):
        servers.run(squares, 1)
    items.close()
    assert servers.run(squares, 3) == [0, 1, 4]


@pytest.mark.nightly
def test_stop_does_not_wait_for_an_unread_stream(servers, monkeypatch):
    monkeypatch.setattr(servers, "grace", 100)
    items = servers.stream(lambda: ("x" * 100_000 for _ in count_until_stopped()))
    next(items)
    time.sleep(0.5)  # until the connection is full
    began = time.monotonic()
    servers.stop()
    assert time.monotonic() - began < 50, "stop() waited for the whole grace"
    items.close()
    with pytest.raises(LabError, match=r"parameter servers are not running. start\(\) starts them"):
        servers.run(squares, 1)
    assert servers.start().run(squares, 3) == [0, 1, 4]


@pytest.mark.nightly
def test_stop_from_another_thread_ends_a_call(servers, monkeypatch, tmp_path):
    monkeypatch.setattr(servers, "grace", 1)
    thread = when_file_exists(tmp_path / "begun", servers.stop)
    with pytest.raises(LabError, match=r"the parameter servers (were stopped. start\(\) starts them|did not stop)"):
        servers.run(touch_and_call, tmp_path / "begun", time.sleep, 100)
    thread.join()
    assert not servers.ready
    assert servers.start().run(squares, 3) == [0, 1, 4]


# Interrupts


def test_interrupting_a_call_leaves_the_cluster_usable(servers):
    pid = servers.run(os.getpid)
    for call in (lambda: servers.run(wait_for_stop), lambda: list(servers.stream(keep_workers_busy))):
        with pytest.raises(KeyboardInterrupt), interrupts(0.5):
            call()
        assert servers.run(squares, 3) == [0, 1, 4]
    assert servers.run(os.getpid) == pid


def test_interrupt_in_a_large_message_loses_no_data(servers):
    import numpy as np

    def large():
        while not stop_requested():
            yield np.zeros(1_000_000)

    for delay in (0.2, 0.23, 0.26, 0.29):
        with pytest.raises(KeyboardInterrupt), interrupts(delay):
            list(servers.stream(large))
        assert servers.run(squares, 3) == [0, 1, 4]


def test_second_interrupt_kills_the_cluster(servers):
    items = servers.stream(stubborn)
    next(items)
    with pytest.raises(KeyboardInterrupt), interrupts(0.5, 2.0):
        list(items)
    assert not servers.ready
    with pytest.raises(LabError, match=r"interrupted twice and killed. restart\(\)"):
        servers.run(squares, 1)


@pytest.mark.nightly
def test_function_that_ignores_a_stop_is_killed(servers, monkeypatch):
    monkeypatch.setattr(servers, "grace", 1)
    items = servers.stream(stubborn)
    next(items)
    with pytest.raises(FunctionFailed, match=r"parameter servers did not stop within 1 s and were killed. restart"):
        items.close()
    assert not servers.ready
    assert servers.restart().run(squares, 3) == [0, 1, 4]


@pytest.mark.nightly
def test_interrupt_before_a_call_is_recorded_keeps_results_right(servers, monkeypatch):
    """Each later call used to return the result of the call before it."""

    def interrupted(*arguments):
        call = Call(*arguments)
        signal.raise_signal(signal.SIGINT)
        return call

    monkeypatch.setattr("dgc_lab.cluster.base.Call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        servers.run(wait_for_stop)
    monkeypatch.undo()
    assert servers.run(squares, 3) == [0, 1, 4]
    assert servers.run(squares, 2) == [0, 1]


def test_late_stop_does_not_affect_the_next_call(servers, monkeypatch, tmp_path):
    """The requesting thread may be preempted between its check and its signal."""
    usual = ProcessGroup.signal

    def signal_late(group, number):
        (tmp_path / "asked").touch()
        time.sleep(1)
        usual(group, number)

    monkeypatch.setattr(ProcessGroup, "signal", signal_late)
    asking = when_file_exists(tmp_path / "begun", servers.request_stop)
    servers.run(touch_and_call, tmp_path / "begun", until, (tmp_path / "asked").exists, 60)

    def run_to_the_end():
        end = time.monotonic() + 2
        while time.monotonic() < end and not stop_requested():
            time.sleep(0.01)
        return stop_requested()

    assert servers.run(run_to_the_end) is False
    asking.join()


# Errors in functions


def test_error_is_reported_and_leaves_the_cluster_usable(servers):
    def fail_late():
        yield from range(100)
        raise KeyError("no such layer")

    pid = servers.run(os.getpid)
    items = servers.stream(fail_late)
    assert [next(items) for _ in range(100)] == list(range(100))
    with pytest.raises(FunctionFailed, match=r"^coordinator raised KeyError: 'no such layer'$") as caught:
        next(items)
    assert "in fail_late" in caught.value.problems[0].trace
    with pytest.raises(FunctionFailed, match=r"coordinator raised TypeError: .*cannot pickle"):
        servers.run(threading.Lock)
    with pytest.raises(FunctionFailed, match="stream needs a generator function, getpid returned int"):
        list(servers.stream(os.getpid))
    with pytest.raises(TypeError, match="cannot pickle"):
        servers.run(print, threading.Lock())
    assert servers.run(os.getpid) == pid


def test_worker_error_reaches_the_notebook(servers):
    def fail_on_worker():
        import tensorflow as tf

        @tf.function
        def check(x):
            tf.debugging.assert_less(x, 0.0, message="x must be below 0")
            return x

        return roles.coordinator().schedule(check, args=(tf.constant(1.0),)).fetch()

    with pytest.raises(FunctionFailed, match=r"(?s)coordinator raised InvalidArgumentError: .*x must be below 0"):
        servers.run(fail_on_worker)
    assert servers.run(squares, 3) == [0, 1, 4]


def test_unreadable_values_leave_the_cluster_usable(servers):
    class Unreadable:
        def __reduce__(self):
            return int, ("no number",)

    def yield_until_stopped():
        while not stop_requested():
            yield Unreadable()
            time.sleep(0.01)

    for what, call in {
        "the result": lambda: servers.run(Unreadable),
        "an item": lambda: list(servers.stream(yield_until_stopped)),
    }.items():
        with pytest.raises(FunctionFailed, match=f"ValueError: {what} cannot be unpickled in the notebook: invalid"):
            call()
        assert servers.run(squares, 3) == [0, 1, 4]


def test_error_in_reading_a_stream_kills_the_cluster(servers):
    items = servers.stream(count_until_stopped)
    next(items)
    with pytest.raises(ZeroDivisionError):
        items.throw(ZeroDivisionError())
    with pytest.raises(LabError, match=r"abandoned before its end.*restart\(\)"):
        servers.run(squares, 1)


def test_exception_without_text_is_reported(servers):
    class Wordless(Exception):
        def __str__(self):
            return None

    def fail():
        raise Wordless

    with pytest.raises(FunctionFailed, match=r"coordinator raised Wordless: <exception str\(\) failed>"):
        servers.run(fail)
    assert servers.run(squares, 3) == [0, 1, 4]


def test_function_may_have_a_keyword_named_function(servers):
    assert servers.run(lambda **named: named, function=3) == {"function": 3}
    assert list(servers.stream(lambda function: iter([function]), function=3)) == [3]


@pytest.mark.nightly
def test_failing_mirrored_worker_is_named(workers):
    def fail_on_one():
        if roles.own_number() == 1:
            raise ZeroDivisionError("by zero")
        return next(reduce_for_ever())

    with pytest.raises(FunctionFailed, match="worker 1 raised ZeroDivisionError: by zero") as caught:
        workers.run(fail_on_one)
    assert list(caught.value.problems) == [1]
    assert "restart()" in str(caught.value), "the other worker still waits in its collective"
    assert workers.restart().run(roles.own_number) == [0, 1]


# Death


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["coordinator", "parameter server 0"])
def test_death_of_an_idle_process_is_reported(servers, name):
    servers.kill(name)
    assert not servers.ready
    with pytest.raises(ProcessDied, match=rf"{name} died; the others were stopped. restart\(\)") as caught:
        servers.run(squares, 1)
    assert caught.value.names == [name]
    with pytest.raises(LabError, match=r"not running. restart\(\) starts them"):
        servers.restart_worker(0)
    assert servers.restart().run(squares, 3) == [0, 1, 4]


@pytest.mark.nightly_except("keep_variable_busy-parameter server 0")
@pytest.mark.alone
@pytest.mark.parametrize("name", ["coordinator", "parameter server 0"])
@pytest.mark.parametrize("function", [keep_variable_busy, count_until_stopped])
def test_death_of_a_process_in_a_call_is_reported(servers, name, function):
    family_of_host = [host(), *host().children(recursive=True)]
    items = servers.stream(function)
    next(items)
    servers.kill(name)
    began = time.monotonic()
    with pytest.raises(ProcessDied, match=f"{name} died"):
        list(items)
    assert time.monotonic() - began < 10
    until(lambda: not any(map(alive, family_of_host)))
    assert servers.restart().run(squares, 3) == [0, 1, 4]


@pytest.mark.nightly
def test_function_that_exits_the_coordinator_is_reported(servers):
    with pytest.raises(ProcessDied, match="coordinator died"):
        servers.run(lambda: os._exit(3))


@pytest.mark.nightly
def test_crash_is_reported_with_its_cause(servers):
    with pytest.raises(ProcessDied, match=r"^coordinator died \(Segmentation fault\); the others"):
        servers.run(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    with pytest.raises(LabError, match=r"^coordinator died \(Segmentation fault\)\. restart\(\)"):
        servers.run(squares, 1)


@pytest.mark.nightly
def test_unexpected_end_of_a_process_leaves_a_traceback(servers):
    group = servers._group
    group.members["coordinator"].connection.send_bytes(b"not a call")
    until(lambda: group.dead() == ["coordinator"])
    assert "UnpicklingError" in group.output_tail()


@pytest.mark.nightly
def test_death_of_the_host_ends_the_cluster(servers):
    items = servers.stream(count_until_stopped)
    next(items)
    family_of_host = host().children(recursive=True)
    host().kill()
    with pytest.raises(ProcessDied, match="died; the others were stopped"):
        list(items)
    until(lambda: not any(map(alive, family_of_host)))
    assert servers.restart().run(squares, 3) == [0, 1, 4]
    host().kill()
    with pytest.raises(LabError, match=r"restart\(\)"):
        servers.restart_worker(0)


@pytest.mark.nightly
@comes_back
def test_worker_death_before_connecting_is_reported(servers):
    servers.restart()
    servers.kill("worker 1")
    with pytest.raises(FunctionFailed, match=r"worker 1 died before .* connected to all workers\. restart_worker"):
        servers.run(squares, 3)
    servers.restart_worker(1)
    assert servers.run(squares, 3) == [0, 1, 4]


@pytest.mark.nightly
@comes_back
def test_killed_worker_is_dead_before_its_host_reaps_it(servers):
    stopped, killing = host(), threading.Thread(target=servers.kill, args=["worker 1"])
    stopped.suspend()
    try:
        killing.start()
        killing.join(30)
        assert not killing.is_alive(), "kill() must not wait for a busy or stopped host"
        assert servers.run(roles.dead_workers) == [1], "a zombie must count as dead"
    finally:
        stopped.resume()
        killing.join()
    servers.restart_worker(1)
    assert servers.run(both_work)


HALF_DEAD = """
import ctypes, socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(60, 0)  # exit(2) of the first thread alone
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads that end one by one, as Linux has them")
def test_zombie_with_running_threads_has_not_ended(tmp_path, monkeypatch):
    """It is not alive but still holds its port, so a replacement cannot bind it."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / PIDS).mkdir()
    with contextlib.ExitStack() as end:
        process = subprocess.Popen([sys.executable, "-c", HALF_DEAD], stdout=subprocess.PIPE, text=True)
        for step in (process.stdout.close, process.wait, process.kill):
            end.callback(step)
        port, found = int(process.stdout.readline()), psutil.Process(process.pid)
        until(lambda: found.status() == psutil.STATUS_ZOMBIE)
        (tmp_path / PIDS / "worker 0").write_text(str(process.pid))
        assert process_of("worker 0") is None
        assert not has_ended(found)
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
        process.kill()
        until(lambda: has_ended(found))
        assert found.status() == psutil.STATUS_ZOMBIE, "the zombie must not be reaped yet"
        socket.create_server(("127.0.0.1", port)).close()


def hold_port_of_worker_1(held=[]):  # noqa: B006
    """Bind the port so that no other process can; on the second call, release it."""
    if held:
        return held.pop().close()
    address = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][1]
    held.append(socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))))
    return None


@pytest.mark.nightly
@comes_back
def test_worker_that_fails_to_restart_counts_as_dead(servers):
    """A process without a server was mistaken for a worker, and training hung."""
    servers.kill("worker 1")
    servers.run(hold_port_of_worker_1)
    with pytest.raises(LabError, match=r"worker 1 did not restart\. restart\(\) restarts all processes: .*gRPC server"):
        servers.restart_worker(1)
    assert servers.run(roles.dead_workers) == [1]
    servers.run(hold_port_of_worker_1)
    servers.restart_worker(1)
    assert servers.run(both_work)


@comes_back
def test_coordinator_survives_the_death_of_a_worker(servers):
    pid = servers.run(os.getpid)
    assert servers.run(both_work)
    assert servers.run(roles.dead_workers) == []
    servers.kill("worker 1")
    assert servers.ready
    assert servers.run(roles.dead_workers) == [1]
    assert servers.run(squares, 12) == [n * n for n in range(12)], "the other worker must do the work"
    servers.restart_worker(1)
    assert servers.run(roles.dead_workers) == []
    assert servers.run(both_work)
    servers.restart_worker(0)  # a live worker
    assert servers.run(both_work)
    assert servers.run(os.getpid) == pid


@comes_back
def test_dead_workers_are_announced_while_a_call_waits(servers, capsys, monkeypatch):
    """TensorFlow's coordinator waits without a limit until all of them have been restarted."""
    monkeypatch.setattr(stalls, "SECONDS_BEFORE_NOTICE", 1)
    assert servers.run(both_work)
    servers.kill("worker 0")
    servers.kill("worker 1")
    printed = []

    def restart_after_notice():
        try:
            until(lambda: printed.append(capsys.readouterr().out) or "died" in printed[-1], 30)
        finally:
            servers.restart_worker(0)
            servers.restart_worker(1)

    thread = threading.Thread(target=restart_after_notice)
    thread.start()
    assert servers.run(squares, 3) == [0, 1, 4]
    thread.join()
    notice = "worker 0, worker 1 died; still running: coordinator. restart_worker() starts a worker again"
    assert notice in "".join(printed).splitlines()


@pytest.mark.nightly
@comes_back
def test_worker_can_restart_during_a_call(servers):
    for seen, item in enumerate(servers.stream(keep_workers_busy)):
        assert item == 100**3
        if seen == 20:
            servers.kill("worker 0")
        if seen == 40:
            servers.restart_worker(0)
        if seen == 80:
            break
    assert servers.run(both_work)


@pytest.mark.nightly
@pytest.mark.alone
def test_mirrored_worker_death_in_a_collective_is_reported(workers):
    found = workers.run(os.getpid)
    items = workers.stream(reduce_for_ever)
    assert next(items) == 2.0
    os.kill(found[1], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(ProcessDied, match=r"worker 1 died; the others were stopped. restart\(\)"):
        list(items)
    assert time.monotonic() - began < 10
    assert workers.restart().run(lambda: next(reduce_for_ever())) == [2.0, 2.0]


# Starts


@pytest.mark.parametrize("cluster", [ParameterServers, MultiWorkerMirrored])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be a whole number from 1 to 64, got 0"),
        ({"workers": 65}, "workers must be a whole number from 1 to 64, got 65"),
        ({"workers": True}, "workers must be a whole number from 1 to 64, got True"),
        ({"workers": 1.0}, "workers must be a whole number from 1 to 64, got 1.0"),
        ({"timeout": 0}, "timeout must be above 0, got 0"),
        ({"timeout": -1}, "timeout must be above 0, got -1"),
        ({"timeout": float("nan")}, "timeout must be above 0, got nan"),
        ({"grace": -1}, "grace must be at least 0, got -1"),
        ({"reachable": "no"}, "reachable must be True or False, got 'no'"),
        ({"progress": True}, "progress must be a function, or None for no output, got True"),
    ],
)
def test_invalid_arguments_are_rejected(cluster, arguments, message):
    with pytest.raises(ValueError, match=message):
        cluster(**arguments)


@pytest.mark.parametrize("ps", [0, 65, True, None])
def test_invalid_number_of_servers_is_rejected(ps):
    with pytest.raises(ValueError, match=f"ps must be a whole number from 1 to 64, got {ps}"):
        ParameterServers(2, ps)


def test_invalid_process_names_are_rejected(servers):
    with pytest.raises(ValueError, match="number must be a whole number from 0 to 1, got 2"):
        servers.restart_worker(2)
    with pytest.raises(ValueError, match=r"name must be one of .*worker 0, worker 1, coordinator, got 'worker 2'"):
        servers.kill("worker 2")
    with pytest.raises(
        ValueError, match=r"name must be a running process \(none is running: call start\(\)\), got 'worker 0'"
    ):
        ParameterServers(1, 1).kill("worker 0")


def test_start_that_times_out_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before, said = set(family()), []
    servers = ParameterServers(1, 1, timeout=0.1, progress=said.append)
    with pytest.raises(LabError, match="the time limit passed before all processes had connected"):
        servers.start()
    assert said == ["importing TensorFlow, once for all processes"]
    assert set(family()) <= before
    assert os.listdir(tmp_path) == []
    assert not servers.ready


@pytest.mark.nightly
def test_interrupted_start_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before, blocks = set(family()), contextlib.ExitStack()

    def say(text):
        if text == "starting servers":
            blocks.enter_context(interrupts(0.05))

    with pytest.raises(KeyboardInterrupt), blocks:
        ParameterServers(2, 1, progress=say).start()
    assert set(family()) <= before
    assert os.listdir(tmp_path) == []


def test_too_long_folder_name_is_explained(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with pytest.raises(LabError, match=r"too long.*TMPDIR"):
        ParameterServers(1, 1, progress=None).start()
    assert os.listdir(folder) == []


def test_more_workers_than_cores_cause_a_warning(monkeypatch):
    servers = ParameterServers(cores() + 1, 1, timeout=0.01, progress=None)
    with (
        pytest.warns(UserWarning, match=f"{cores() + 1} workers share {cores()} cores"),
        pytest.raises(LabError, match="time limit"),
    ):
        servers.start()


# The network


def test_missing_private_network_requires_consent(open_network):
    before = set(family())
    for cluster in (ParameterServers(1, 1, progress=None), MultiWorkerMirrored(1, progress=None)):
        with pytest.raises(LabError, match=r"no private network \(forbidden here\).* reachable=True"):
            cluster.start()
    assert set(family()) <= before


@pytest.mark.nightly
def test_consent_starts_servers_with_one_warning(open_network):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ParameterServers(1, 1, reachable=True, progress=None) as servers:
            assert servers.run(squares, 3) == [0, 1, 4]
    assert [str(warning.message) for warning in caught if "private network" in str(warning.message)] == [
        "no private network (forbidden here): until stop(), TensorFlow's servers listen on all addresses of this "
        "machine, with no password"
    ]
    assert caught[0].filename == __file__


def test_servers_use_fixed_addresses_and_ignore_proxies(monkeypatch):
    """In a private network all ports are free, and proxy variables are ignored."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ParameterServers(1, 1, progress=None) as servers:
        config = json.loads(servers.run(os.getenv, "TF_CONFIG"))
        assert config["cluster"] == {
            "chief": ["127.0.0.1:20000"], "ps": ["127.0.0.1:20001"], "worker": ["127.0.0.1:20002"]
        }  # fmt: skip
        assert servers.run(squares, 3) == [0, 1, 4]


@pytest.mark.nightly
@pytest.mark.alone  # it inspects all listening ports of the machine
@pytest.mark.skipif(
    private_network.unavailable_reason() is not None,
    reason=f"no private network: {private_network.unavailable_reason()}",
)
def test_cluster_ports_are_unreachable_from_outside(servers, neighbour):
    servers.run(squares, 3)
    cluster = json.loads(servers.run(os.getenv, "TF_CONFIG"))["cluster"]
    named = {int(address.rpartition(":")[2]) for addresses in cluster.values() for address in addresses}
    ports = servers.run(outside.listening)
    assert len(named) == 4
    assert named <= ports
    # Inside the cluster's network the same ports answer on both loopback addresses.
    inside = [(address, port) for address in ("127.0.0.1", "::1") for port in sorted(ports)]
    assert servers.run(outside.answering, inside) == inside
    assert servers.run(lambda: list(psutil.net_if_addrs())) == ["lo"]
    outside.assert_nobody_reaches(ports, neighbour)


# Cleanup


@pytest.mark.nightly
def test_error_in_a_with_block_stops_the_servers():
    before = set(family())
    with pytest.raises(ZeroDivisionError), ParameterServers(1, 1, progress=None) as servers:  # noqa: PT012
        assert set(family()) > before
        1 / 0  # noqa: B018
    assert set(family()) <= before
    servers.stop()
    servers.stop()


@pytest.mark.nightly
def test_two_clusters_coexist_and_unreferenced_servers_end(servers):
    before = set(family())
    other = ParameterServers(1, 1, progress=None).start()
    assert other.start() is other
    assert other.run(squares, 3) == servers.run(squares, 3) == [0, 1, 4]
    del other
    gc.collect()
    assert set(family()) <= before
    assert servers.run(squares, 3) == [0, 1, 4]


PROGRAM = """
import os, sys, time
from dgc_lab.cluster import ParameterServers, stop_requested

def twice(number):  # a function of __main__, and a class
    return Result(2 * number)

class Result:
    def __init__(self, number):
        self.number = number

def forever():
    while not stop_requested():
        time.sleep(0.01)
        yield 1

servers = ParameterServers(1, 1, progress=None).start()
print(servers.run(twice, 21).number, flush=True)
"""


def begin(program, tmp_path):
    """Start a program, wait for its servers, and return it with all processes it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + program], env=os.environ | {"TMPDIR": str(tmp_path)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == "42\n"
    started = family(psutil.Process(process.pid))
    assert len(started) == 5, "host, its watchdog, server, worker and coordinator"
    return process, started


@pytest.mark.nightly
def test_program_that_exits_without_stop_leaves_nothing(tmp_path):
    process, started = begin("items = servers.stream(forever); next(items); sys.stdin.read()", tmp_path)
    _, printed = process.communicate("", timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in printed
    assert not any(map(alive, started))
    assert os.listdir(tmp_path) == []


def test_killed_program_leaves_nothing(tmp_path):
    process, started = begin("for _ in servers.stream(forever): pass", tmp_path)
    process.kill()
    process.communicate(timeout=60)
    until(lambda: not any(map(alive, started)) and os.listdir(tmp_path) == [])


DIES_AFTER_MKDIR = """
import os, signal
from dgc_lab.cluster import ParameterServers

def make_and_die(path, *mode):
    make(path, *mode)
    if "dgc_lab-" in path:
        print(os.listdir(os.path.dirname(path)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

make, os.mkdir = os.mkdir, make_and_die
ParameterServers(1, 1, progress=None).start()
"""


def test_program_killed_while_making_the_folder_leaves_nothing(tmp_path):
    """The folder was created before its watchdog, so a kill in between left it behind."""
    program = [sys.executable, "-c", DIES_AFTER_MKDIR]
    done = subprocess.run(program, env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    assert "dgc_lab-" in done.stdout, "the folder was never created"
    until(lambda: os.listdir(tmp_path) == [])


def test_killing_program_and_host_together_leaves_nothing(tmp_path):
    """When memory runs out, the kernel kills the largest processes: these two, during the import."""
    program = "from dgc_lab.cluster import ParameterServers\nParameterServers(1, 1, progress=None).start()"
    with subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"TMPDIR": str(tmp_path)}) as process:
        this = psutil.Process(process.pid)
        until(lambda: list(tmp_path.glob("dgc_lab-*/socket")) and len(family(this)) == 2, 60)
        started, [host] = family(this), this.children()
        host.kill()
        process.kill()
    until(lambda: os.listdir(tmp_path) == [] and not any(map(alive, started)), 30)
