"""Reading and plotting a timeline that Horovod wrote, and running horovodrun in a private network."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dgc_lab.cluster import horovod_launcher as launcher
from dgc_lab.cluster import private_network
from dgc_lab.common import LabError
from dgc_lab.distributed import traffic
from dgc_lab.distributed.timeline import TimelineError, by_phase, read
from dgc_lab.distributed.traffic import count_collective_bytes
from dgc_lab.training.figures import timelines
from kernels import until

FILE = Path(__file__).with_name("horovod_timeline.json")  # rank 0 of 2; two steps of the digits network at 1 %


def test_a_horovod_timeline_is_read():
    frame = read(FILE)
    assert set(frame["tensor"]) == {"dgc_lab.messages"}
    step = ["NEGOTIATE_ALLGATHER", "rank 1 ready", "rank 0 ready", "ALLGATHER", "ALLOCATE_OUTPUT", "GLOO_ALLGATHER"]
    assert frame["phase"].tolist() == 2 * step
    assert frame["depth"].tolist() == 2 * [0, 1, 1, 0, 1, 1]
    assert frame["start ms"].iloc[0] == 0
    assert frame["start ms"].is_monotonic_increasing
    first, second = frame.loc[frame["phase"] == "NEGOTIATE_ALLGATHER", "ms"]
    assert [first, second] == pytest.approx([0.224, 0.902])
    table = by_phase(frame)
    assert table.loc["NEGOTIATE_ALLGATHER", "ms"] == pytest.approx(1.126)
    assert table.loc["ALLGATHER", "times"] == 2
    assert table.loc["GLOO_ALLGATHER", "ms"] < table.loc["ALLGATHER", "ms"], "GLOO_ALLGATHER is nested in ALLGATHER"


def test_an_incomplete_timeline_is_read(tmp_path):
    whole = read(FILE)
    (tmp_path / "growing").write_text(FILE.read_text().rstrip().rstrip("]") + ",")
    assert read(tmp_path / "growing").equals(whole)
    (tmp_path / "half").write_text(FILE.read_text().partition(', "name": "ALLGATHER"')[0])
    assert read(tmp_path / "half")["phase"].tolist() == ["NEGOTIATE_ALLGATHER", "rank 1 ready", "rank 0 ready"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"this is not a Horovod timeline"),
        ("step,loss\n1,2", r"this is not a Horovod timeline"),
        ('{"ph": "B"}', r"must be a list of events"),
        ("\xff\xfe\x00", r"this is not a Horovod timeline"),
        (
            '[{"name": "process_name", "ph": "M", "pid": 0}]',
            r"Horovod timeline: KeyError\('args'\) in an event",
        ),
        ('[{"name": "process_name", "ph": "M", "pid": 0, "args": {}}]', r"holds no phases: was a tensor exchanged"),
    ],
)
def test_files_that_are_not_timelines_are_rejected(tmp_path, text, message):
    (tmp_path / "file").write_text(text, encoding="latin-1")
    with pytest.raises(TimelineError, match=message):
        read(tmp_path / "file")


def test_the_alternative_text_describes_the_figure(tmp_path):
    events = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"layer{pid}/kernel"}} for pid in range(30)
    ]
    for pid in range(30):
        events += [{"ph": "B", "name": "ALLREDUCE", "ts": 1000 * pid, "pid": pid}]
        events += [{"ph": "E", "ts": 1000 * pid + 500, "pid": pid}]
    (tmp_path / "many").write_text(json.dumps(events))
    picture = timelines({"1 %": read(FILE), "whole": read(tmp_path / "many")})
    assert "1 %: 1 tensor, 7.1 ms" in picture.alt
    assert "whole: 30 tensors, 29.5 ms, 12 of them drawn; longest in total: ALLREDUCE 15.00 ms" in picture.alt
    one, many = picture.figure.axes
    assert len(one.collections) == 8, "phases are bars; rank ticks are lines"
    assert len(one.lines) == 4
    assert len(many.collections) == 12
    assert picture._repr_mimebundle_()[0]["image/png"]


def test_an_outer_count_stays_active_after_an_inner_count():
    with count_collective_bytes() as outer:
        with count_collective_bytes():
            pass
        assert [count is outer for count in traffic.ACTIVE_COUNTS] == [True]
    assert traffic.ACTIVE_COUNTS == []


def test_horovodrun_requires_a_command_and_a_valid_size():
    with pytest.raises(ValueError, match=r"size must be a whole number from 1 to 4096, got 0"):
        launcher.horovodrun(0, "python")
    with pytest.raises(ValueError, match=r"command must name a program, got nothing"):
        launcher.horovodrun(2)


def test_running_without_a_private_network_requires_consent(horovod, monkeypatch):
    monkeypatch.setattr(private_network, "unavailable_reason", lambda: "forbidden")
    with pytest.raises(LabError, match=r"no private network \(forbidden\).*reachable=True"):
        launcher.horovodrun(2, "python")


@pytest.fixture
def private(horovod):
    """Skip tests where Horovod cannot have a private network."""
    if reason := private_network.unavailable_reason():
        pytest.skip(reason)


def test_ranks_see_only_the_loopback_interface(private):
    seen = "import os, psutil; print('rank', os.environ['HOROVOD_RANK'], 'sees', sorted(psutil.net_if_addrs()))"
    output = launcher.horovodrun(2, "python", "-c", seen)
    assert sorted(line.split(":", 1)[1] for line in output if "sees" in line) == [
        "rank 0 sees ['lo']",
        "rank 1 sees ['lo']",
    ]


def test_ranks_may_use_the_whole_timeout_to_join(private):
    """Gloo's own limit is 30 seconds."""
    limit = "import os; print('limit', os.environ['HOROVOD_GLOO_TIMEOUT_SECONDS'])"
    lines = launcher.horovodrun(2, "python", "-c", limit, timeout=200)
    assert sorted(line for line in lines if "limit" in line) == [f"[{n}]<stdout>:limit 230" for n in range(2)]


def test_the_error_for_a_killed_rank_says_how_to_resume(private):
    killed = "import os; os.environ['HOROVOD_RANK'] == '1' and os.kill(os.getpid(), 9)"
    with pytest.raises(LabError, match=r"Exit code: 137[\s\S]*same call .* saved its state resumes from it"):
        launcher.horovodrun(2, "python", "-c", killed)


@pytest.mark.nightly
def test_rank_errors_are_shown_without_horovodruns_traceback(private):
    fails = "import os, sys; sys.exit('error: no disk' if os.environ['HOROVOD_RANK'] == '1' else 0)"
    with pytest.raises(LabError, match=r"ended with 1 on 2 ranks") as caught:
        launcher.horovodrun(2, "python", "-c", fails)
    assert "[1]<stderr>:error: no disk" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    two_at_once = [
        "[1]<stderr>:Traceback (most recent call last):",
        "Exception in thread [1]<stderr>:error: no disk",
        "Exception in thread Traceback (most recent call last):",
        '  File "horovodrun", line 8, in <module>',
        "RuntimeError: Process name: 1",
    ]
    last = [two_at_once[0], "[1]<stderr>:error: no disk", two_at_once[-1]]
    assert launcher.last_lines(two_at_once).split("\n") == last
    assert "File " not in str(caught.value)


SLOW_TO_END = """
import os, pathlib, signal, sys, time
def save(*_):
    time.sleep(7)
    sys.exit("error: another rank has ended, all is kept")
ready = pathlib.Path(sys.argv[1])
if os.environ["HOROVOD_RANK"] == "0":
    signal.signal(signal.SIGTERM, save)
    ready.touch()
    time.sleep(60)
while not ready.exists():
    time.sleep(0.1)
sys.exit(1)
"""


@pytest.mark.nightly
def test_ranks_have_time_to_save_after_another_rank_fails(private, tmp_path):
    with pytest.raises(LabError, match=r"\[0\]<stderr>:error: another rank has ended, all is kept"):
        launcher.horovodrun(2, "python", "-c", SLOW_TO_END, str(tmp_path / "ready"))


@pytest.mark.nightly
def test_a_killed_horovodrun_leaves_no_semaphores(private, tmp_path):
    """Its semaphores live in shared memory, and their resource tracker is killed along with it."""
    wait = f"import time, pathlib; pathlib.Path({str(tmp_path / 'there')!r}).touch(); time.sleep(600)"
    call = f"from dgc_lab.cluster import horovodrun; horovodrun(2, 'python', '-c', {wait!r})"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", call], env=environment)
    until((tmp_path / "there").exists, 120)
    [folder] = tmp_path.glob("dgc_lab-*")
    assert list(Path("/dev/shm").glob(f"sem.{folder.name}-*"))
    process.kill()
    process.wait()
    until(lambda: not folder.exists(), 60)
    until(lambda: not list(Path("/dev/shm").glob(f"sem.{folder.name}-*")))


KILL_ITS_TRACKER = """
import psutil, time
[launcher] = [parent for parent in psutil.Process().parents() if "--gloo" in parent.cmdline()]
[tracker] = [child for child in launcher.children() if "".join(child.cmdline()[-1:]).startswith("from multiprocessing")]
tracker.kill()
time.sleep(2)
print("killed")
"""


@pytest.mark.nightly
def test_killing_the_resource_tracker_causes_no_errors(private):
    output = launcher.horovodrun(1, "python", "-c", KILL_ITS_TRACKER)
    assert [line for line in output if "killed" in line]
    assert not [line for line in output if "Traceback" in line or "KeyError" in line], output


@pytest.mark.nightly
def test_ranks_are_killed_after_the_timeout(private):
    mark = f"mark_{os.getpid()}_{time.monotonic_ns()}"  # in the command lines of the ranks
    with pytest.raises(LabError, match=r"took longer than 25 s on 2 ranks"):
        launcher.horovodrun(2, "python", "-c", f"import time; print('{mark}'); time.sleep(600)", timeout=25)
    end = time.monotonic() + 10
    while left := [p for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or [])]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
