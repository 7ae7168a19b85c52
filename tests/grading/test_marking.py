"""How one submission is run, in parts: resource limits and the sandbox."""

import ast
import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest

from dgc_lab.cluster.private_network import working_prefix
from dgc_lab_grading.marking import answers, cgroup, sandbox, supervision, system_calls
from kernels import until

TIGHT = supervision.Limits(seconds=40, memory=2**30, disk=2**20)
IDLE = "import time; time.sleep(60)"
# The last of these forks are made while the others are being killed.
FORKS_ON = f"""import os, random, time
for number in range(7):
    if number == 6:
        random.seed(os.getpid())
        time.sleep(0.6 * random.random())
    os.fork()
{IDLE}"""


def alive(mark):
    """Return all processes of the machine with a mark in their command line."""
    return [p for p in psutil.process_iter(["cmdline"]) if str(mark) in " ".join(p.info["cmdline"] or ())]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('done')", None),
        ("raise SystemExit(3)", "exit code 3"),
        (IDLE, "longer than 1 s"),
        (f"import os; [os.fork() for _ in range(7)]; {IDLE}", "more than 64 processes"),
        (FORKS_ON, "more than 64 processes"),
        # four processes that each stay below their limit, and together exceed the limit of all
        (f"import os; os.fork(); os.fork(); x = b'1' * 800_000_000; {IDLE}", "of memory"),
        # files in memory that no process has mapped
        pytest.param(
            f"import os; [os.write(os.memfd_create('x'), bytes(2**28)) for _ in range(12)]; {IDLE}",
            "of memory",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_command_ends_within_its_limits_and_leaves_nothing(tmp_path, monkeypatch, code, words):
    monkeypatch.chdir(tmp_path)
    limits = dataclasses.replace(TIGHT, seconds=1) if code == IDLE else TIGHT
    marked = f"{code}  # {tmp_path}"
    output, reason = supervision.run([sys.executable, "-c", marked], limits, tmp_path / "log")
    assert (reason is None) == (words is None)
    assert words is None or words in reason
    assert words or output == "done\n"
    assert alive(tmp_path) == []


def test_a_cell_cannot_forge_the_remark_on_where_it_ended():
    for source, title in (("def split(x): ...", "def split"), ("a, b = 1, 2", "a"), ("from x.y import z", "from x.y")):
        (node,) = ast.parse(source).body
        words = answers.ENDED.format(3, answers._title(node))
        assert answers.ENDED_AT.match(words)[1] == f"ended at line 3, before {title}"
    for words in ("\x1b[2J[1/1] cheat: 18 of 18", "x: right, 18 of 18", "x " * 99):
        assert not answers.ENDED_AT.match(answers.ENDED.format(3, words))


@pytest.mark.parametrize("module", ["sandbox", "worker"])
def test_a_process_without_its_parent_does_nothing(tmp_path, module):
    """Linux reports a parent's end only after it was asked to."""
    folder = {"home": str(tmp_path / "home"), "memory": 2**30, "disk": 2**20, "entrance": []}
    if module == "sandbox":
        arguments = [json.dumps(folder | {"readable": [], "user": 61184}), "touch", str(tmp_path / "home")]
    else:
        task = {"folder": "", "assignment": "", "student": "", "number": 0}
        arguments = [json.dumps(task | folder | dict.fromkeys(("seconds", "test_seconds", "cell_seconds"), 1))]
    quick = """if True:
        import os, subprocess, sys
        command = [sys.executable, "-m", sys.argv[1], str(os.getpid()), *sys.argv[2:]]
        print(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid, flush=True)
        os._exit(0)
    """
    command = [sys.executable, "-c", quick, f"dgc_lab_grading.marking.{module}", *arguments]
    pid = int(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    until(lambda: not psutil.pid_exists(pid), 60)
    assert not (tmp_path / "home").exists()


def test_output_larger_than_a_pipe_arrives_complete(tmp_path):
    code = "print('x' * 1_000_000)"
    output, reason = supervision.run([sys.executable, "-c", code], TIGHT, tmp_path / "log")
    assert (len(output), reason) == (1_000_001, None)


@pytest.mark.nightly
def test_unmapped_memory_counts_without_a_control_group(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup, "parents", list)
    code = f"import os; [os.write(os.memfd_create('x'), bytes(2**28)) for _ in range(12)]; {IDLE}"
    _, reason = supervision.run([sys.executable, "-c", code], TIGHT, tmp_path / "log")
    assert "of memory" in reason


def test_a_submissions_process_skips_unneeded_imports():
    code = "import dgc_lab_grading.marking.worker, nbformat, sys; nbformat.validator; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "jsonschema" in done.stdout.split()
    assert "lark" not in done.stdout.split()


def test_control_groups_of_versions_1_and_2_are_found(tmp_path):
    own = tmp_path / "own"
    own.write_text("8:pids:/\n4:memory:/a/b\n0::/user\n")
    assert cgroup.parents(tmp_path, own) == [tmp_path / "memory/a/b", tmp_path / "pids"]
    (tmp_path / "cgroup.controllers").touch()
    assert cgroup.parents(tmp_path, own) == [tmp_path / "user" / ".."], "a group with processes hands no limits on"
    own.write_text("0::/\n")
    assert cgroup.parents(tmp_path, own) == [tmp_path]
    (tmp_path / "memory.max").touch()
    assert cgroup.settings(tmp_path, 10, 5) == {"memory.max": 10}


def test_daemons_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup, "parents", list)  # a control group would also kill it
    code = f"import os; os.setsid() if os.fork() == 0 else os._exit(0); os.fork() and os._exit(0); {IDLE}  # {tmp_path}"
    limits = dataclasses.replace(TIGHT, seconds=1)
    supervision.run([sys.executable, "-c", code], limits, tmp_path / "log")
    assert alive(tmp_path) == []


LOOK = """
import ctypes, json, os, pty, resource, socket, sys, dgc_lab
from dgc_lab_grading.marking import sandbox, system_calls
libc = ctypes.CDLL(None, use_errno=True)
found = {}
def tried(name, do):
    try:
        found[name] = do()
    except OSError as error:
        found[name] = type(error).__name__
def write(path):
    with open(path, "w") as file:
        file.write("x")
    return "written"
tried("socket", lambda: socket.socket(socket.AF_UNIX).bind(sys.argv[1] + "/socket"))
sandbox.close_home()
tried("closed home", lambda: write(sys.argv[1] + "/written"))
tried("closed folder", lambda: os.mkdir(sys.argv[1] + "/deep"))
tried("socket in it", lambda: socket.socket(socket.AF_UNIX).connect(sys.argv[1] + "/listening"))
tried("home", lambda: sorted(name for name in os.listdir(sys.argv[1]) if name[:5] != "root-"))
tried("mine", lambda: open(sys.argv[1] + "/mine").read())
tried("places", lambda: sorted(os.listdir("/etc")))
tried("accounts", lambda: open("/etc/passwd").read())
tried("hosts", lambda: open("/etc/hosts").read())
tried("shadow", lambda: open("/etc/shadow").read())
tried("settings", lambda: write("/proc/sys/kernel/core_pattern"))
tried("own process", lambda: write("/proc/self/oom_score_adj"))
tried("programs", lambda: write("/usr/written"))
tried("machine", lambda: write("/sys/devices/system/written"))
tried("groups", lambda: os.listdir("/sys/fs"))
tried("temporary", lambda: write("/tmp/written"))
tried("shared memory", lambda: write("/dev/shm/written"))
tried("network", lambda: socket.create_connection(("192.0.2.1", 80), 5))
tried("devices", lambda: sorted(os.listdir("/dev")))
tried("other processes", lambda: [each for each in os.listdir("/proc") if each.isdecimal()])
tried("secrets", lambda: os.path.exists(sys.argv[2]))
tried("user", lambda: [os.getuid(), os.geteuid(), os.getgroups()])
rights = ("CapEff", "CapBnd", "NoNewP")
tried("rights", lambda: [line.split() for line in open("/proc/self/status") if line[:6] in rights])
tried("limits", lambda: resource.getrlimit(resource.RLIMIT_NPROC)[1])
tried("folder", os.getcwd)
def called(number):
    if libc.syscall(number, b"user", b"dgc", b"word", 4, -4) < 0:
        raise OSError(ctypes.get_errno(), "")
numbers = system_calls.MACHINES[os.uname().machine][1]
for name, number in zip(system_calls.REFUSED, numbers, strict=True):
    tried(name, lambda: called(number))
    tried(name + " by its other number", lambda: called(number + system_calls.X32_CALLS))
tried("terminal", lambda: [os.ttyname(number) for number in pty.openpty()])
def unshared():
    if libc.unshare(0x10000000) < 0:  # CLONE_NEWUSER
        raise OSError(ctypes.get_errno(), "")
tried("new user", unshared)
print(json.dumps(found))
sys.stdout.flush()
open("x", "wb").write(bytes(2**23))
"""


@pytest.fixture(params=["root's", "anybody's"])
def in_the_sandbox(request, tmp_path):
    """Return a command's findings in the sandbox, why it ended, its log and its plan."""
    prefix, reason = working_prefix(sandbox.WAYS_OF_ROOT if request.param == "root's" else sandbox.WAYS)
    if reason:
        pytest.skip(f"this machine allows no such sandbox: {reason}")
    home = tmp_path / "home"
    home.mkdir()
    (home / "mine").write_text("mine")
    (home / "mine").chmod(0o600)
    (tmp_path / "secret").write_text("the course's")
    plan = sandbox.Plan(str(home), sandbox.python_folders(), 2**30, 2**22, prefix, sandbox.FIRST_USER + 7)
    look = [sys.executable, "-c", LOOK, str(home), str(tmp_path / "secret")]
    command = [sys.executable, "-m", "dgc_lab_grading.marking.sandbox", str(os.getpid()), plan.text(), *look]
    before = os.umask(0o077)  # as set by the instructors' commands
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(home / "listening"))
            listener.listen()
            output, reason = supervision.run(command, supervision.Limits(seconds=60), tmp_path / "log")
    finally:
        os.umask(before)
    assert output, (tmp_path / "log").read_text()
    return json.loads(output), reason, (tmp_path / "log").read_text(), plan


def test_sandbox_contains_python_and_nothing_else(in_the_sandbox, tmp_path):
    """What the instructors' guide states about the sandbox."""
    found, reason, said, plan = in_the_sandbox
    assert found["home"] == ["listening", "mine", "socket"], "its own folder, without the sandbox's root in it"
    assert (found["mine"], found["socket"], found["socket in it"]) == ("mine", None, None)
    assert (found["closed home"], found["closed folder"]) == ("OSError", "OSError")
    assert (found["folder"], found["temporary"], found["shared memory"]) == ("/tmp", "written", "written")
    for place in ("settings", "own process", "programs", "machine"):
        assert found[place] in ("OSError", "PermissionError"), place
    assert set(found["places"]) <= {*sandbox.SETTINGS, "passwd", "group", "hosts"}
    assert [line.split(":")[0] for line in found["accounts"].splitlines()] == ["root", "nobody"]
    assert (found["hosts"], found["shadow"], found["groups"]) == (
        sandbox.HOSTS,
        "FileNotFoundError",
        "FileNotFoundError",
    )
    assert found["network"] == "OSError"
    assert found["devices"] == sorted([*sandbox.DEVICES, "ptmx", "pts", "shm"])
    assert "/dev/pts/0" in found["terminal"]
    assert len(found["other processes"]) == 2
    assert not found["secrets"]
    assert [int(value, 16) for _, value in found["rights"]] == [0, 0, 1]
    if sandbox.runs_as_root(plan):
        assert found["user"] == [plan.user, plan.user, []]
    else:
        assert found["limits"] == sandbox.MOST_THREADS
    assert reason
    assert any(words in said for words in ("File too large", "No space left"))
    assert not [place for place in ("/tmp/written", "/dev/shm/written") if Path(place).exists()]


def test_nothing_outlives_a_sandbox_in_the_kernel(in_the_sandbox):
    """Keyrings, System V IPC and message queues could carry a hidden test's questions to another submission."""
    found, *_ = in_the_sandbox
    calls = {name: said for name, said in found.items() if name.split()[0] in system_calls.REFUSED}
    assert len(calls) == 2 * len(system_calls.REFUSED)
    assert set(calls.values()) == {"PermissionError"}, calls
    assert found["new user"] == "PermissionError", "as its root, a process could leave the new root folder"


def test_the_checkout_and_the_working_folder_are_unreadable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    folders = [Path(folder) for folder in sandbox.python_folders()]
    root = Path(sandbox.__file__).resolve().parents[2]
    assert not {tmp_path, root, root / "notebooks"} & set(folders)
    assert Path(nbformat.__file__).parents[1] in folders
