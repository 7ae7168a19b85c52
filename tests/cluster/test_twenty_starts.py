"""Starting and stopping a cluster, with one call each time, leaks no process, socket, file, thread or descriptor.

Each test runs its own program, so resources of the test session are not counted. Twenty starts take minutes; in a file
of their own they do not share the processor with clusters that other tests keep running.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly

# Two starts reveal leftovers of the first; twenty reveal small leaks that accumulate.
times = pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.nightly)])


@times
def test_starting_and_stopping_ranks_leaves_nothing(times, horovod, tmp_path, monkeypatch):
    program = """
import gc, os, psutil, sys, tempfile
from dgc_lab.cluster import HorovodRanks
from dgc_lab.cluster.processes import is_running
import numpy  # numpy keeps a thread of its own once it is loaded

me = psutil.Process()

def state():
    gc.collect()
    files = sorted(os.path.join(folder, file) for folder, _, files in os.walk(tempfile.gettempdir()) for file in files)
    folders = sorted(os.listdir(tempfile.gettempdir()))
    children = [child.pid for child in me.children(recursive=True)]
    ports = [connection for connection in me.net_connections()]
    return {"children": children, "ports": ports, "descriptors": me.num_fds(), "threads": me.num_threads(),
            "files": files, "folders": folders}

times = int(sys.argv[1])
before = state()
started = set()
for _ in range(times):
    with HorovodRanks(2, progress=None) as ranks:
        pids = ranks.run(os.getpid)
        processes = [psutil.Process(pid) for pid in pids]
        ranks.run(lambda: __import__("tempfile").mkstemp())
        started |= {child.pid for child in me.children(recursive=True)}
        assert set(pids) < started
    assert not any(map(is_running, processes))
after = state()
assert before == after, (before, after)
assert len(started) >= times * 4
print("clean")
"""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program, str(times)], capture_output=True, text=True, timeout=550)
    assert done.stdout.endswith("clean\n"), done.stdout + done.stderr


@times
def test_starting_and_stopping_servers_leaves_nothing(times, tmp_path, monkeypatch):
    program = """
import gc, os, psutil, sys, tempfile
from dgc_lab.cluster import ParameterServers
from dgc_lab.cluster.processes import is_running

me = psutil.Process()

def state():
    gc.collect()
    return {"children": [child.pid for child in me.children(recursive=True)], "ports": me.net_connections("all"),
            "descriptors": me.num_fds(), "threads": me.num_threads(), "folders": os.listdir(tempfile.gettempdir())}

times = int(sys.argv[1])
before = state()
started = set()
for _ in range(times):
    with ParameterServers(1, 1, progress=None) as servers:
        servers.run(lambda: __import__("tempfile").mkstemp())
        running = me.children(recursive=True)
        assert len(running) == 5, "host, its watchdog, server, worker and coordinator"
        started |= {child.pid for child in running}
    assert not any(map(is_running, running))  # a zombie without a parent is the system's to take away
after = state()
assert before == after, (before, after)
assert len(started) == times * 5
print("clean")
"""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program, str(times)], capture_output=True, text=True, timeout=550)
    assert done.stdout.endswith("clean\n"), done.stdout + done.stderr
