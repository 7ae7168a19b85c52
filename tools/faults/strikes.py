"""What each kind of fault does: before the work starts, at its moment, and before the same call is made again."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from browser import BROWSER
from faults.plan import Fault
from faults.works import Run, family
from replay_binder import ControlGroup

CLOCK = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
DISK = "4m"  # of the small disk; what the works keep needs less than half
LINK = "link0"  # `two_hosts.DEVICE`
SLOW = f"tc qdisc replace dev {LINK} root tbf rate 1mbit burst 3028 latency 400ms"
NOTHING = "nothing: the work had ended"
ENTER = ("sh", "-c", 'echo $$ > "$0"; exec "$@"')  # a control group
DAMAGE = 24  # bytes that are overwritten


@dataclass(frozen=True)
class Strike:
    """A kind of fault.

    Attributes:
        hit: at the moment: does it, and says what was struck.
        before: gives variables and a command to put before the work's own.
        mend: takes away what stands in the work's way before the same call is made again, or damages its files.
        after: takes away the rest.
        statuses: with which the work may end, beside 0.
        missing: what it needs and is not here.
        from_start: whether ``before`` has struck already, so that no moment is too late.
    """

    hit: Callable[[Run, Fault], str]
    before: Callable[[Path, Fault, int], tuple[dict, tuple]] = lambda folder, fault, megabytes: ({}, ())
    mend: Callable[[Path, Fault], str] = lambda folder, fault: ""
    after: Callable[[Path], None] = lambda folder: None
    statuses: tuple[int, ...] = ()
    missing: Callable[[], str] = lambda: ""
    from_start: bool = False


# Processes ---------------------------------------------------------------------------------------------------------


def part(run: Run, fault: Fault) -> psutil.Process | None:
    """One of the processes that the work has started, waited for where there is none yet."""
    others = []
    run.until(lambda: bool(others.extend(p for p in family(run.folder) if p.pid != run.process.pid) or others))
    return others[int(fault.pick * len(others))] if others else None


def name_of(process: psutil.Process) -> str:
    """The end of its command line."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())[-60:]
    return "a process that had just ended"


def catches(process: psutil.Process, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return bool(int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1)


def sending(number: int, to_part: bool = False) -> Callable[[Run, Fault], str]:
    """A hit that sends a signal, and SIGCONT after its seconds where the signal stops."""

    def hit(run: Run, fault: Fault) -> str:
        struck = part(run, fault) if to_part else run.process
        if struck is None:
            return NOTHING
        if number in (signal.SIGTERM, signal.SIGINT):
            run.until(lambda: catches(struck, signal.SIGTERM))  # before, it is Python that begins, and not yet the lab
        told = name_of(struck)
        with contextlib.suppress(psutil.NoSuchProcess):
            struck.send_signal(number)
            if number == signal.SIGSTOP:
                time.sleep(fault.lasts)
                struck.send_signal(signal.SIGCONT)
        return told

    return hit


def ask(run: Run, fault: Fault) -> str:
    """SIGUSR1, when the program is ready for it (`programs.asked`)."""
    if not run.until((run.folder / "ready").exists):
        return NOTHING
    run.process.send_signal(signal.SIGUSR1)
    return "asked the program"


# Files -------------------------------------------------------------------------------------------------------------


def command(*words) -> None:
    subprocess.run(list(map(str, words)), check=True, capture_output=True, timeout=30)


def small_disk(folder: Path, fault: Fault, megabytes: int):
    (folder / "out").mkdir(parents=True)
    command("mount", "-t", "tmpfs", "-o", f"size={DISK}", "dgc_lab_faults", folder / "out")
    return {}, ()


def remove_disk(folder: Path) -> None:
    command("umount", folder / "out")


def fill(run: Run, fault: Fault) -> str:
    """Write until no more goes in; what is written to replace something is then too much, too."""
    with open(run.out / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return "filled the disk"


def empty(folder: Path, fault: Fault) -> str:
    (folder / "out" / "filler").unlink(missing_ok=True)
    return "made room"


def lock(run: Run, fault: Fault) -> str:
    """Make the disk read-only, between two writings."""
    while True:
        try:
            command("mount", "-o", "remount,ro", run.out)
            return "made the disk read-only"
        except subprocess.CalledProcessError:  # busy: a file is open for writing
            time.sleep(0.01)


def unlock(folder: Path, fault: Fault) -> str:
    command("mount", "-o", "remount,rw", folder / "out")
    return "made the disk writable"


def put_folder(run: Run, fault: Fault) -> str:
    file = run.out / "rows.jsonl"
    with contextlib.suppress(FileNotFoundError):
        file.rename(run.folder / "rows.kept")
    file.mkdir()
    return "put a folder in the file's place"


def take_folder(folder: Path, fault: Fault) -> str:
    (folder / "out" / "rows.jsonl").rmdir()
    with contextlib.suppress(FileNotFoundError):
        (folder / "rows.kept").rename(folder / "out" / "rows.jsonl")
    return "took the folder away"


def damage(how: str) -> Callable[[Path, Fault], str]:
    """What happens to one of the files when the work has been killed."""

    def mend(folder: Path, fault: Fault) -> str:
        files = sorted(file for file in (folder / "out").iterdir() if file.stat().st_size)
        if not files:
            return "there was no file yet"
        draw = random.Random(f"{fault.seed} {fault.number} {how}")
        file = files[int(fault.pick * len(files))]
        size = file.stat().st_size
        place = draw.randrange(size)
        with open(file, "r+b") as opened:
            if how == "truncated":
                opened.truncate(place)
            else:
                opened.seek(place)
                opened.write(draw.randbytes(min(DAMAGE, size - place)))
        return f"{how} {file.name} at byte {place} of {size}"

    return mend


# Network, clock, memory --------------------------------------------------------------------------------------------


def on_link(begin: str, end: str) -> Callable[[Run, Fault], str]:
    """A hit that changes the link in one host's network, for its seconds."""

    def hit(run: Run, fault: Fault) -> str:
        here, hosts = os.readlink("/proc/self/ns/net"), []

        def found() -> bool:
            for process in family(run.folder):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{process.pid}/ns/net") != here:
                        hosts.append(process.pid)
            return bool(hosts) and inside(f"ip link show {LINK}") == 0

        def inside(words: str) -> int:
            enter = ["nsenter", "--target", str(hosts[int(fault.pick * len(hosts))]), "--net"]
            return subprocess.run([*enter, *words.split()], capture_output=True).returncode

        if not run.until(found) or inside(begin):
            return NOTHING
        time.sleep(fault.lasts)
        inside(end)
        return begin

    return hit


def clock(folder: Path, fault: Fault, megabytes: int):
    """The wall clock that the work sees is this machine's and what the file says; other clocks are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "clock").write_text("+0\n")
    faked = {"FAKETIME_TIMESTAMP_FILE": str(folder / "clock"), "FAKETIME_NO_CACHE": "1"}
    return {"LD_PRELOAD": str(CLOCK), "FAKETIME_DONT_FAKE_MONOTONIC": "1", **faked}, ()


def jump(run: Run, fault: Fault) -> str:
    jump = round((fault.pick - 0.5) * 4 * 86400)
    (run.folder / "clock.new").write_text(f"{jump:+d}\n")
    (run.folder / "clock.new").rename(run.folder / "clock")
    return f"the clock jumped by {jump} s"


def little_memory(folder: Path, fault: Fault, megabytes: int):
    GROUPS[folder] = group = ControlGroup(round((0.2 + 0.7 * fault.pick) * megabytes * 1e6), folder.name)
    return {}, (*ENTER, str(group.folder / "cgroup.procs"))


GROUPS: dict[Path, ControlGroup] = {}


def not_root() -> str:
    return "" if os.geteuid() == 0 else "needs root"


def without(there, what: str) -> Callable[[], str]:
    return lambda: "" if there else f"no {what} here"


ENDED = {"statuses": (1,)}
ON_DISK = {"before": small_disk, "after": remove_disk, "missing": not_root, **ENDED}
KILLED = {"hit": sending(signal.SIGKILL), "statuses": (-signal.SIGKILL, 1)}
STRIKES = {
    "kill": Strike(sending(signal.SIGKILL), statuses=(-signal.SIGKILL,)),
    "kill a part": Strike(sending(signal.SIGKILL, to_part=True), **ENDED),
    "stop": Strike(sending(signal.SIGSTOP)),
    "stop a part": Strike(sending(signal.SIGSTOP, to_part=True)),
    "terminate": Strike(sending(signal.SIGTERM), statuses=(130,)),
    "interrupt": Strike(sending(signal.SIGINT), statuses=(130,)),
    "full disk": Strike(fill, mend=empty, **ON_DISK),
    "read-only disk": Strike(lock, mend=unlock, **ON_DISK),
    "folder in its place": Strike(put_folder, mend=take_folder, **ENDED),
    "truncated file": Strike(mend=damage("truncated"), **KILLED),
    "garbled file": Strike(mend=damage("garbled"), **KILLED),
    "link lost": Strike(on_link(f"ip link set {LINK} down", f"ip link set {LINK} up"), missing=not_root),
    "slow link": Strike(on_link(SLOW, f"tc qdisc del dev {LINK} root"), missing=not_root),
    "clock jumps": Strike(jump, clock, missing=without(CLOCK, "libfaketime (Debian: faketime)")),
    "memory short": Strike(
        lambda run, fault: "gave it little memory",
        little_memory,
        after=lambda folder: GROUPS.pop(folder).close(),
        statuses=(-signal.SIGKILL, 1),
        missing=not_root,
        from_start=True,
    ),
    "kernel restarted": Strike(ask),
    "tab closed": Strike(ask, missing=without(BROWSER, "Chromium")),
}
