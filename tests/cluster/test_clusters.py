"""Horovod ranks started from a notebook, as real processes with real Horovod."""

import contextlib
import functools
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass

import numpy as np
import psutil
import pytest

import outside
from dgc_lab.cluster import (
    HorovodRanks,
    MultiWorkerMirrored,
    ParameterServers,
    RankDied,
    RankFailed,
    calls,
    horovod_ranks,
    magic,
    private_network,
    stalls,
    stop_requested,
)
from dgc_lab.cluster.calls import explain
from dgc_lab.cluster.processes import defer_sigint, is_running, kill, start_guarded
from dgc_lab.cluster.rank import RemoteError, items_of
from dgc_lab.common import LabError
from dgc_lab.install.launch_env import cores, rank_variables
from kernels import there, until

# Functions that run on ranks import their own modules, like notebook functions sent to another process.


@dataclass
class Item:
    number: int
    label: str


def place(extra=0):
    import horovod.tensorflow as hvd

    return hvd.rank() + extra, hvd.size()


def total():
    import horovod.tensorflow as hvd
    import tensorflow as tf

    return float(hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum))


def count_to(end):
    for number in range(end):
        yield Item(number, f"item {number}")


def train_until_stopped():
    """Training loop in which a collective makes the ranks agree on the step to stop at."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    step = 0
    while not float(hvd.allreduce(tf.constant(float(stop_requested())), op=hvd.Sum)):
        step += 1
        yield step


def run_until_stopped():
    return sum(1 for _ in train_until_stopped())


def stubborn():
    while True:
        time.sleep(0.01)
        yield 1


def pids(ranks):
    return ranks.run(os.getpid)


def family(process=None):
    """Return all descendants of a process except zombies."""
    children = (process or psutil.Process()).children(recursive=True)
    return [child for child in children if is_running(child)]


def test_run_returns_results_in_rank_order(two_ranks):
    offset = 10
    assert two_ranks.run(place) == [(0, 2), (1, 2)]
    assert two_ranks.run(place, extra=5) == [(5, 2), (6, 2)]
    assert two_ranks.run(lambda x: x + offset, 1) == [11, 11]
    assert two_ranks.run(total) == [3.0, 3.0]


def test_each_rank_gets_its_share_of_the_cores(two_ranks):
    names = ["OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"]
    values = two_ranks.run(lambda: [os.environ[name] for name in names])
    assert values == [[str(max(1, cores() // 2))] * 3] * 2
    assert two_ranks.run(lambda: os.environ["TF_FORCE_GPU_ALLOW_GROWTH"]) == ["true"] * 2


def test_ranks_do_not_import_optional_keras_dependencies(two_ranks):
    def loaded():
        return [name in sys.modules for name in ("matplotlib", "sklearn")]

    assert two_ranks.run(loaded) == [[False, False]] * 2
    two_ranks.run_cell("import matplotlib.pyplot, sklearn.linear_model")
    assert two_ranks.run(loaded) == [[True, True]] * 2


def test_rank_output_is_printed_in_the_notebook(two_ranks, capsys):
    two_ranks.run(lambda: print("hello\nworld"))
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0] hello",
        "[rank 0] world",
        "[rank 1] hello",
        "[rank 1] world",
    ]


def test_rank_0_prints_live_and_other_ranks_afterwards(two_ranks, capsys):
    def speak():
        import horovod.tensorflow as hvd

        for number in range(3):
            print("line", number, end="\n" if number < 2 else "")
            yield hvd.rank()

    seen = [capsys.readouterr().out for _ in two_ranks.stream(speak)]
    assert [text.splitlines()[0] for text in seen[:2]] == ["[rank 0] line 0", "[rank 0] line 1"]
    lines = [f"[rank {rank}] line {number}" for rank in (0, 1) for number in range(3)]
    assert ("".join(seen) + capsys.readouterr().out).splitlines() == lines


def test_stream_yields_every_item_in_order(two_ranks):
    assert list(two_ranks.stream(count_to, 5000)) == list(count_to(5000))
    assert list(two_ranks.stream(count_to, 0)) == []


def test_items_arrive_while_the_ranks_run(two_ranks):
    def wait_for_stop():
        yield "first"
        while not stop_requested():
            time.sleep(0.01)
        yield "last"

    seen = []
    for item in two_ranks.stream(wait_for_stop):
        seen.append(item)  # the ranks continue only after this stop
        two_ranks.request_stop()
    assert seen == ["first", "last"]


def test_breaking_out_of_the_loop_stops_the_ranks(two_ranks):
    for step in two_ranks.stream(train_until_stopped):
        if step == 20:
            break
    assert two_ranks.run(stop_requested) == [False, False], "the old stop request must not affect the next call"
    assert two_ranks.run(total) == [3.0, 3.0]


REPEATED_STOP = """
import signal, sys
from dgc_lab.cluster import rank

def ask_again(*_):
    signal.raise_signal(rank.STOP_SIGNAL)

rank.listen_for_stop()
sys.setprofile(ask_again)  # at every call and return within the first one's handler, too
signal.raise_signal(rank.STOP_SIGNAL)
rank.request_stop()
sys.setprofile(None)
print(rank.stop_requested())
"""


def test_stop_can_be_requested_while_ranks_are_stopping():
    """A reader may send two stops within milliseconds; a lock in the handler would deadlock."""
    done = subprocess.run([sys.executable, "-c", REPEATED_STOP], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_request_stop_works_from_another_thread(two_ranks, tmp_path):
    def run():
        return sum(1 for _ in train_until_stopped() if (tmp_path / "begun").touch() is None)

    asking = threading.Thread(target=lambda: until((tmp_path / "begun").exists, 60) or two_ranks.request_stop())
    asking.start()
    steps = two_ranks.run(run)
    asking.join()
    assert steps[0] == steps[1] > 0
    two_ranks.request_stop()  # no effect when idle
    assert two_ranks.run(stop_requested) == [False, False]


def test_concurrent_call_is_rejected_as_busy(two_ranks):
    steps = two_ranks.stream(train_until_stopped)
    next(steps)
    with pytest.raises(LabError, match=r"busy with another call. request_stop\(\)"):
        two_ranks.run(total)
    steps.close()
    assert two_ranks.run(total) == [3.0, 3.0]


def test_buffered_output_is_bounded(two_ranks, capsys):
    def chatter():
        import horovod.tensorflow as hvd
        import tensorflow as tf

        for number in range(400 * hvd.rank()):
            print(number, "x" * 100_000)
        hvd.allreduce(tf.zeros([]))  # rank 0 finishes together with rank 1

    two_ranks.run(chatter)
    left_out, *lines = capsys.readouterr().out.splitlines()
    assert left_out == "[rank 1] ... earlier output is omitted ..."
    assert lines[-1][:15] == "[rank 1] 399 xx"
    # A million characters were buffered; rank 1's socket held some 200 KB more when rank 0 ended.
    assert 900_000 < sum(map(len, lines)) < 1_400_000, "the output of 40 MB must be truncated"


def test_cells_keep_their_variables_on_each_rank(two_ranks, capsys):
    two_ranks.run_cell("kept = 'here'\nprint('hello')\nkept")
    assert capsys.readouterr().out == "[rank 0] hello\n[rank 0] 'here'\n[rank 1] hello\n[rank 1] 'here'\n"
    two_ranks.run_cell("kept = 'changed'", [1])
    two_ranks.run_cell("kept")
    assert capsys.readouterr().out == "[rank 0] 'here'\n[rank 1] 'changed'\n"
    with pytest.raises(RankFailed, match=r"^rank 1 raised NameError: name 'lost' is not defined") as caught:
        two_ranks.run_cell("lost", [1])
    assert list(caught.value.problems) == [1]
    with pytest.raises(RankFailed, match=r"^rank 1 raised NameError") as caught:
        two_ranks.run_cell("if __import__('os').environ['HOROVOD_RANK'] == '1': lost", [0, 0, 1])
    assert list(caught.value.problems) == [1], "duplicate rank numbers must count once"
    with pytest.raises(ValueError, match=r"^ranks must name at least one of 0 to 1, got none$"):
        two_ranks.run_cell("kept", [])
    with pytest.raises(ValueError, match=r"^ranks must be a list, got 1$"):
        two_ranks.run_cell("kept", 1)
    with pytest.raises(SyntaxError):
        two_ranks.run_cell("1 +")
    two_ranks.run_cell("def whole(n):\n    while n < 9:\n        n += 1\n    return n")
    two_ranks.run_cell("import tensorflow as tf\nint(tf.function(whole)(tf.constant(0)))", [0])  # uses AutoGraph
    assert capsys.readouterr().out == "[rank 0] 9\n"


def test_cell_annotations_are_evaluated_as_in_the_notebook(two_ranks, capsys):
    two_ranks.run_cell("def f(x: int): pass\nf.__annotations__", [0])
    assert capsys.readouterr().out == "[rank 0] {'x': <class 'int'>}\n"


@pytest.mark.nightly
def test_failed_cell_output_reports_the_killed_ranks(two_ranks, monkeypatch):
    monkeypatch.setattr(two_ranks, "grace", 1)
    cell = "import horovod.tensorflow as hvd\nif hvd.rank() == 0: lost\nhvd.allreduce(__import__('numpy').ones(1))"
    with pytest.raises(magic.CellFailed) as caught:
        two_ranks.run_cell(cell)
    trace, after = caught.value._render_traceback_()
    assert trace.startswith("[rank 0] Traceback")
    words = "one of the ranks failed; the others did not return and were killed. restart() starts all of them again"
    assert after == words
    assert two_ranks.restart().ready


def test_magics_do_not_keep_the_ranks_alive():
    cells = []

    class Ranks:
        def run_cell(self, *cell):
            cells.append(cell)

    magics, ranks = {}, Ranks()
    shell = type("Shell", (), {"register_magic_function": lambda _, run, kind: magics.update({run.__name__: run})})()
    magic.register(shell, ranks)
    magics["px"]("", "a"), magics["px"]("--rank=1", "b"), magics["rank"]("[0, 2]", "c"), magics["px"]("d")
    assert cells == [("a", None), ("b", [1]), ("c", [0, 2]), ("d", None)]
    del ranks
    with pytest.raises(LabError, match=r"the ranks are gone. HorovodRanks\(2\).start\(\) starts new ones"):
        magics["px"]("1")


# Errors on ranks


def test_same_error_on_every_rank_leaves_the_ranks_usable(two_ranks):
    def check():
        raise ValueError("steps must be at least 1, got 0")

    before = pids(two_ranks)
    with pytest.raises(RankFailed, match=r"^every rank raised ValueError: steps must be at least 1, got 0$") as caught:
        two_ranks.run(check)
    assert sorted(caught.value.problems) == [0, 1]
    assert caught.value.problems[1].kind == "ValueError"
    assert pids(two_ranks) == before


def test_failing_rank_is_named_when_others_wait_in_a_collective(two_ranks, monkeypatch):
    def fail_on_one():
        import horovod.tensorflow as hvd
        import tensorflow as tf

        if hvd.rank() == 1:
            raise KeyError("no such layer")
        hvd.allreduce(tf.constant(1.0))

    monkeypatch.setattr(two_ranks, "grace", 1)
    with pytest.raises(RankFailed, match="rank 1 raised KeyError: 'no such layer'") as caught:
        two_ranks.run(fail_on_one)
    assert "in fail_on_one" in str(caught.value)
    assert "restart()" in str(caught.value)
    assert list(caught.value.problems) == [1]
    with pytest.raises(LabError, match=r"one of the ranks failed.*restart\(\)"):
        two_ranks.run(total)
    assert two_ranks.restart().run(total) == [3.0, 3.0]


def test_error_on_one_rank_leaves_the_ranks_usable(two_ranks):
    def fail_on_zero():
        import horovod.tensorflow as hvd

        if hvd.rank() == 0:
            raise ZeroDivisionError("by zero")

    before = pids(two_ranks)
    with pytest.raises(RankFailed, match="rank 0 raised ZeroDivisionError: by zero"):
        two_ranks.run(fail_on_zero)
    assert pids(two_ranks) == before


def test_error_without_traceback_announces_none():
    gone = RemoteError("ProcessDied", "its connection ended", "")
    assert explain({1: gone}, ["rank 0", "rank 1"]) == "rank 1 raised ProcessDied: its connection ended"


def test_stream_of_a_function_without_a_name_is_explained():
    with pytest.raises(TypeError, match=r"stream needs a generator function, functools.partial\(.*\) returned int"):
        items_of(functools.partial(max, 1, 2), (), {})


def test_items_before_an_error_are_delivered(two_ranks):
    def fail_late():
        yield from range(100)
        raise ValueError("late")

    items = two_ranks.stream(fail_late)
    assert [next(items) for _ in range(100)] == list(range(100))
    with pytest.raises(RankFailed, match="late"):
        next(items)


@pytest.mark.nightly
def test_unpicklable_values_are_explained(two_ranks, monkeypatch):
    with pytest.raises(RankFailed, match=r"TypeError.*cannot pickle"):
        two_ranks.run(threading.Lock)

    def locks():
        while not stop_requested():
            yield threading.Lock()
            time.sleep(0.01)

    monkeypatch.setattr(two_ranks, "grace", 1)  # rank 1 keeps running: its items are not read
    with pytest.raises(RankFailed, match=r"TypeError.*cannot pickle"):
        list(two_ranks.stream(locks))
    two_ranks.restart()
    with pytest.raises(RankFailed, match="stream needs a generator function, place returned tuple"):
        list(two_ranks.stream(place))


@pytest.mark.nightly
def test_slow_reader_does_not_get_stopping_ranks_killed(two_ranks, monkeypatch):
    def flood():
        yield b""
        time.sleep(0.5)
        yield from [b""] * 40  # one poll finds them all, and reading them exceeds every time limit
        while not stop_requested():
            yield bytes(10_000)

    monkeypatch.setattr(two_ranks, "grace", 1)
    monkeypatch.setattr(calls, "GRACES_FOR_A_SLOW_READER", 4)
    monkeypatch.setattr(calls, "MESSAGES_PER_POLL", 20)  # each poll receives two batches
    for number, _ in enumerate(two_ranks.stream(flood)):
        # The connection can hold some forty more: longer than the grace, shorter than the limit for slow readers.
        time.sleep(2.5 if number == 0 else 0.15 if number <= 40 else 0.04)
        if number == 2:
            two_ranks.request_stop()
    assert number > 40
    assert two_ranks.ready


@pytest.mark.nightly
def test_ranks_that_never_stop_yielding_are_killed(two_ranks, monkeypatch):
    def read_slowly():
        for _ in two_ranks.stream(stubborn):
            two_ranks.request_stop()
            time.sleep(0.2)

    monkeypatch.setattr(two_ranks, "grace", 0.1)
    with pytest.raises(RankFailed, match=r"did not stop within 0.1 s and were killed"):
        read_slowly()
    assert two_ranks.restart().ready


def test_ranks_that_ignore_a_stop_are_killed(two_ranks, monkeypatch):
    monkeypatch.setattr(two_ranks, "grace", 1)
    steps = two_ranks.stream(stubborn)
    next(steps)
    with pytest.raises(RankFailed, match=r"did not stop within 1 s and were killed. restart\(\)"):
        steps.close()
    assert not two_ranks.ready
    assert two_ranks.restart().run(total) == [3.0, 3.0]


# Death


@pytest.mark.nightly
def test_death_of_an_idle_rank_is_reported(two_ranks):
    os.kill(pids(two_ranks)[1], signal.SIGKILL)
    until(lambda: not two_ranks.ready)
    with pytest.raises(RankDied, match=r"rank 1 died.*restart\(\)") as caught:
        two_ranks.run(total)
    assert caught.value.names == ["rank 1"]
    assert two_ranks.restart().run(total) == [3.0, 3.0]


@pytest.mark.nightly_except("1")
@pytest.mark.alone
@pytest.mark.parametrize("victim", [0, 1])
def test_death_of_a_rank_in_a_call(two_ranks, victim):
    found = pids(two_ranks)
    steps = two_ranks.stream(train_until_stopped)
    next(steps)
    os.kill(found[victim], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(RankDied, match=f"rank {victim} died"):
        list(steps)
    assert time.monotonic() - start < 10
    until(lambda: not any(there(pid) for pid in found))
    assert two_ranks.restart().run(total) == [3.0, 3.0]


@pytest.mark.nightly
def test_function_that_exits_the_process_is_reported(two_ranks):
    with pytest.raises(RankDied, match=r"ranks? .*died"):
        two_ranks.run(lambda: os._exit(3))
    assert two_ranks.restart().run(total) == [3.0, 3.0]


@pytest.mark.nightly
def test_death_of_the_host_process_ends_the_ranks(two_ranks):
    found = pids(two_ranks)
    host = psutil.Process(found[0]).parent()
    assert [psutil.Process(pid).parent() for pid in found] == [host, host]
    assert host.memory_full_info().uss < 30e6, "only the ranks may hold the imported modules"
    host.kill()
    with pytest.raises(RankDied, match=r"ranks? .*died"):
        two_ranks.run(run_until_stopped)
    until(lambda: not any(map(there, found)))
    assert two_ranks.restart().run(total) == [3.0, 3.0]


@pytest.mark.nightly
def test_subprocess_of_an_import_is_not_mistaken_for_a_rank(horovod, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        'import subprocess, sys\nif "dgc_lab.cluster.host" in sys.orig_argv:\n    subprocess.run(["sleep", "1"])\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    children = []

    def look(text):
        if "importing" in text:
            threading.Thread(target=until, args=[seen], daemon=True).start()

    def seen():
        with contextlib.suppress(psutil.NoSuchProcess):
            children.extend(process for process in family() if process.name() == "sleep")
        return children

    with HorovodRanks(2, progress=look) as ranks:
        assert ranks.run(total) == [3.0, 3.0]
    assert children


def test_death_during_startup_is_reported_at_once(horovod):
    before, over, killed = set(family()), threading.Event(), []

    def kill_the_first(text):
        if "starting ranks" in text:
            threading.Thread(target=kill_when_there, daemon=True).start()

    def kill_when_there():
        while not over.wait(0.02):  # a process seen once may not be a rank
            with contextlib.suppress(psutil.NoSuchProcess):
                for each in ranks():
                    each.kill()
                    killed.append(time.monotonic())

    def ranks():
        new = {process.pid: process for process in set(family()) - before}
        return [process for process in new.values() if process.ppid() in new]

    died = r"(a process ended before all processes had connected|rank [01] died|rank [01] ended)[\s\S]*start\(\)"
    with pytest.raises(LabError, match=died):
        HorovodRanks(2, progress=kill_the_first).start()
    over.set()
    assert time.monotonic() - killed[0] < 90, "the error must come long before the time limit"
    assert set(family()) <= before


# Isolation and cleanup


def open_sockets(pids):
    """Return listening or unconnected sockets of `pids`, in the caller's network namespace."""
    return {
        (entry.pid, entry.laddr.ip)
        for entry in psutil.net_connections("inet")
        if entry.pid in pids and (entry.status == psutil.CONN_LISTEN or not entry.raddr)
    }


def test_all_sockets_listen_on_loopback_only(two_ranks):
    def look(members):
        yield open_sockets(members)
        yield from train_until_stopped()

    members = pids(two_ranks)
    steps = two_ranks.stream(look, members)
    inside = next(steps)
    next(steps)
    here = open_sockets([process.pid for process in [psutil.Process(), *family()]])
    steps.close()
    assert {ip for _, ip in inside | here} <= {"127.0.0.1", "::1"}
    assert {pid for pid, _ in inside} == {members[0]}, "only the rendezvous may listen: Gloo is connected"
    assert {pid for pid, _ in here} <= set(members), "other processes have open sockets"


@pytest.mark.skipif(
    private_network.unavailable_reason() is not None,
    reason=f"no private network: {private_network.unavailable_reason()}",
)
def test_rank_and_rendezvous_ports_are_unreachable_from_outside(two_ranks, neighbour):
    def meeting():
        return int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])

    (port, same), (ports, _) = two_ranks.run(meeting), two_ranks.run(outside.listening)
    assert port == same
    assert port in ports
    inside = [("127.0.0.1", port) for port in sorted(ports)]
    assert two_ranks.run(outside.answering, inside) == [inside, inside]
    assert two_ranks.run(lambda: list(psutil.net_if_addrs())) == [["lo"], ["lo"]]
    outside.assert_nobody_reaches(ports, neighbour)
    assert two_ranks.run(total) == [3.0, 3.0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_cannot_access_the_ranks_socket(two_ranks):
    folder = two_ranks.run(os.getenv, "DGC_LAB_FOLDER")[0]
    assert "socket" in os.listdir(folder)
    assert outside.as_nobody(os.listdir, folder) == "PermissionError"
    assert outside.as_nobody(lambda: socket.socket(socket.AF_UNIX).connect(f"{folder}/socket")) == "PermissionError"


def test_hostname_resolves_to_loopback_on_the_ranks(two_ranks):
    """Gloo resolves it for process sets; outside, it may be an address missing in the ranks' network."""
    assert two_ranks.run(lambda: socket.gethostbyname(socket.gethostname())) == ["127.0.0.1"] * 2


@pytest.mark.nightly
def test_missing_private_network_causes_a_warning(horovod, monkeypatch):
    monkeypatch.setattr(private_network, "unavailable_reason", lambda: "forbidden here")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with HorovodRanks(2, progress=None) as ranks:
            assert ranks.run(total) == [3.0, 3.0]
    assert [str(warning.message) for warning in caught if "private network" in str(warning.message)] == [
        "no private network (forbidden here): until stop(), other users of this machine can reach the ranks on "
        "127.0.0.1, with no password"
    ]
    assert caught[0].filename == __file__


@pytest.mark.nightly
def test_error_in_a_with_block_stops_the_ranks(horovod):
    with pytest.raises(ZeroDivisionError), HorovodRanks(1, progress=None) as ranks:  # noqa: PT012
        (pid,) = pids(ranks)
        1 / 0  # noqa: B018
    assert not there(pid)
    ranks.stop()
    ranks.stop()
    with pytest.raises(LabError, match=r"not running. start\(\)"):
        ranks.run(total)
    assert not ranks.ready


@pytest.mark.nightly
def test_garbage_collected_ranks_end(two_ranks):
    ranks = HorovodRanks(1, progress=None).start()
    assert ranks.start() is ranks
    (pid,) = pids(ranks)
    assert two_ranks.run(total) == [3.0, 3.0], "two jobs must run side by side"
    del ranks
    gc.collect()
    assert not there(pid)
    assert two_ranks.run(total) == [3.0, 3.0]


# Startup


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size must be a whole number from 1 to 4096, got 0"),
        ({"size": 1.5}, "size must be a whole number from 1 to 4096, got 1.5"),
        ({"size": True}, "size must be a whole number from 1 to 4096, got True"),
        ({"timeout": 0}, "timeout must be above 0, got 0"),
        ({"grace": -1}, "grace must be at least 0, got -1"),
        ({"progress": "no"}, "progress must be a function, or None for no output, got 'no'"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        HorovodRanks(**arguments)


def test_sizes_are_stored_as_python_integers():
    two = np.int64(2)
    servers = ParameterServers(two, two)
    sizes = [HorovodRanks(two).size, MultiWorkerMirrored(two).workers, servers.workers, servers.ps]
    assert [type(size) for size in sizes] == [int] * 4


def test_startup_reports_progress_warning_and_time_limit(horovod):
    before, said = set(family()), []
    ranks = HorovodRanks(cores() + 1, timeout=0.01, progress=said.append)
    with (
        pytest.warns(UserWarning, match=f"{cores() + 1} ranks share {cores()} cores"),
        pytest.raises(LabError, match="the time limit passed before all processes had connected"),
    ):
        ranks.start()
    assert said == ["importing TensorFlow and Horovod, once for all ranks"]
    assert set(family()) <= before


def test_ranks_that_are_not_ready_in_time_are_killed(two_ranks):
    found = pids(two_ranks)
    arguments = {"rank 0": (600,), "rank 1": (600,)}
    with pytest.raises(LabError, match=r"the ranks were not ready in time and were killed. restart\(\) tries again"):
        two_ranks._results(time.sleep, arguments, {}, deadline=time.monotonic() + 0.1)  # as in a start
    assert not any(map(there, found))
    assert two_ranks.restart().run(total) == [3.0, 3.0]


def test_ranks_may_use_the_whole_timeout_to_join(two_ranks):
    """Gloo's own limit of 30 seconds would abort many ranks on few cores; 30 more let the cluster's pass first."""
    limits = two_ranks.run(os.getenv, "HOROVOD_GLOO_TIMEOUT_SECONDS")
    assert limits == [str(two_ranks.timeout + 30)] * 2


def test_failed_start_names_more_ranks_than_cores(horovod, monkeypatch):
    monkeypatch.setattr(horovod_ranks, "cores", lambda: 1)

    def kill_one(text):
        if "join Horovod" in text:
            ranks._group.members["rank 1"].process.kill()

    ranks = HorovodRanks(2, progress=kill_one)
    expected = r"^rank 1 died. 2 ranks share 1 cores: .*start fewer, or pass a timeout above 180"
    with pytest.warns(UserWarning, match="2 ranks share 1 cores"), pytest.raises(LabError, match=expected):
        ranks.start()


@pytest.mark.parametrize("way", ["start", "restart", "__enter__"])
def test_warning_points_to_the_line_that_starts_the_ranks(horovod, way):
    ranks = HorovodRanks(cores() + 1, timeout=0.01, progress=None)
    with pytest.warns(UserWarning, match="ranks share") as caught, pytest.raises(LabError):
        getattr(ranks, way)()
    assert {one.filename for one in caught if "ranks share" in str(one.message)} == {__file__}


def test_program_that_exits_without_stop_leaves_nothing(horovod, tmp_path, monkeypatch):
    program = """
import os
from dgc_lab.cluster import HorovodRanks
ranks = HorovodRanks(1, progress=None).start()
print(*ranks.run(os.getpid))
"""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert not there(int(done.stdout)), done.stdout
    assert os.listdir(tmp_path) == []
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ((None, None), r"Horovod is not installed. Run: python -m dgc_lab build-horovod$"),
        (("0.28.1", "2.0.0"), r"built for TensorFlow 2.0.0, but .* is installed. Run: .* build-horovod$"),
    ],
)
def test_horovod_is_checked_before_anything_starts(monkeypatch, state, message):
    monkeypatch.setattr("dgc_lab.install.build_horovod.horovod_state", lambda: state)
    before = set(family())
    with pytest.raises(LabError, match=message):
        HorovodRanks(1, progress=None).start()
    assert set(family()) <= before


def test_rank_numbers_on_several_hosts():
    def numbers(hosts, *names):
        return [tuple(int(rank[f"HOROVOD_{name}"]) for name in names) for rank in rank_variables(hosts)]

    hosts = ["a", "a", "a", "b", "b"]
    assert numbers(hosts, "RANK", "SIZE") == [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5)]
    assert numbers(hosts, "LOCAL_RANK", "LOCAL_SIZE") == [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2)]
    assert numbers(hosts, "CROSS_RANK", "CROSS_SIZE") == [(0, 2), (0, 2), (0, 1), (1, 2), (1, 2)]
    assert [rank["HOROVOD_HOSTNAME"] for rank in rank_variables(hosts)] == hosts
    assert numbers(["a", "b", "a", "b"], "LOCAL_RANK", "CROSS_RANK") == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_rank_numbers_match_horovods_assignment(horovod):
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    plan = get_host_assignments(parse_hosts("a:3,b:2,c:1"), 6)
    ours = rank_variables(["a", "a", "a", "b", "b", "c"])
    for slot, rank in zip(plan, ours, strict=True):
        for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hostname"):
            assert rank[f"HOROVOD_{name.upper()}"] == str(getattr(slot, name)), name


# Kills and interrupts


FORKS_FOREVER = "import subprocess, sys\nwhile True: subprocess.Popen(['sleep', sys.argv[1]], start_new_session=True)"


def test_collectives_with_the_same_last_part_are_told_apart():
    names = ["rank 0", "rank 1"]
    missing = stalls.last_report("Missing ranks:\n0: [b/mean]\n1: [a/mean]\n")
    assert missing == {"b/mean": ["rank 0"], "a/mean": ["rank 1"]}
    assert stalls.never_ends(missing, names)
    waits = ["rank 1 waits for rank 0 in b/mean", "rank 0 waits for rank 1 in a/mean"]
    assert stalls.described(missing, names, names) == waits


def test_import_path_may_contain_path_objects(tmp_path, monkeypatch):
    (tmp_path / "print_path.py").write_text("import sys\nprint(sys.path)")
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path, str(tmp_path)])  # Python searches only text
    process, folder = start_guarded("print_path", private=False, variables={}, stdout=subprocess.PIPE)
    printed, _ = process.communicate(timeout=60)
    assert repr(str(tmp_path)) in printed.decode()
    until(lambda: not os.path.exists(folder))


@pytest.mark.nightly
def test_killing_a_forking_process_leaves_no_children():
    """horovodrun's helpers may start rank shells, each in its own session, during the kill."""
    seconds, left = f"600.{os.getpid()}", []
    for _ in range(8):  # killing without stopping first leaves some one time in three
        leader = psutil.Popen([sys.executable, "-c", FORKS_FOREVER, seconds], start_new_session=True)
        until(lambda leader=leader: len(leader.children()) > 20)
        kill(leader)
        leader.wait()
        kill(leader)  # harmless once it has ended
        left += [process for process in psutil.process_iter(["cmdline"]) if seconds in (process.info["cmdline"] or [])]
    for process in left:
        process.kill()
    assert not left


@pytest.mark.nightly
def test_interrupt_while_installing_the_handler_is_deferred(monkeypatch):
    """A SIGINT between installing the handler and saving the previous one used to kill all ranks."""
    usual, install, done = signal.getsignal(signal.SIGINT), signal.signal, []

    def install_and_interrupt(number, handler):
        install(number, handler)
        if handler is not usual:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(signal, "signal", install_and_interrupt)
    with pytest.raises(KeyboardInterrupt), defer_sigint():
        done.append("the deed")
    assert done == ["the deed"]
    assert signal.getsignal(signal.SIGINT) is usual
