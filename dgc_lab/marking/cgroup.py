"""Limits that the machine itself holds all processes of a submission to, where we may make a control group.

Root may, mostly, and whoever was given a group of their own (`cgroups(7)`). They count what no process seems to hold:
files in memory, pages of ended processes. Elsewhere `dgc_lab.marking.supervision` looks four times a second.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
SECONDS_TO_END = 5


def parents(groups: Path = GROUPS, own: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """Groups below which ours would be made: the one of this process, in a tree for each kind of limit.

    In version 2, with one tree for all, it is the one above: a group that holds processes hands no limits on, but for
    the topmost.
    """
    try:
        mine = dict(re.findall(r"(?m)^\d+:([^:]*):/?(.*)$", own.read_text()))
    except OSError:
        return []
    if (groups / "cgroup.controllers").exists():
        return [groups / mine[""] / ".."] if mine.get("") else [groups]
    return [groups / kind / mine[kind] for kind in ("memory", "pids") if kind in mine]


def settings(group: Path, memory: int, processes: int) -> dict[str, int]:
    """What is written into a group's files, as far as the machine has them."""
    wanted = {"memory.max": memory, "memory.swap.max": 0, "memory.limit_in_bytes": memory, "pids.max": processes}
    return {name: value for name, value in wanted.items() if (group / name).exists()}


@dataclass(frozen=True)
class Limited:
    """Groups with the same limits, one for each kind; none where none could be made."""

    groups: tuple[Path, ...]

    def join(self, process: int) -> None:
        """Put a process, and all that it starts from now on, under the limits."""
        for group in self.groups:
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text(str(process))

    def overrun(self) -> bool:
        """Whether the machine has killed somebody in there for memory."""
        counts = ""
        for group in self.groups:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    counts += (group / name).read_text()
        return any(int(count) for count in re.findall(r"(?m)^oom_kill (\d+)$", counts))


@contextlib.contextmanager
def limited(memory: int, processes: int) -> Iterator[Limited]:
    """Make groups with these limits, as far as we may; when the block ends, so does every process in there."""
    made = []
    for group in left_behind():
        _end(group)
    for parent in parents():
        group = parent / f"dgc-{os.getpid()}-{time.monotonic_ns()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            made.append(group)
            for name, value in settings(group, memory, processes).items():
                (group / name).write_text(str(value))
    try:
        yield Limited(tuple(made))
    finally:
        for group in made:
            _end(group)


def left_behind() -> list[Path]:
    """Groups of processes that are no more: a run that was killed could not remove them."""
    found = [group for parent in parents() if parent.is_dir() for group in parent.glob("dgc-[0-9]*-[0-9]*")]
    return [group for group in found if not os.path.exists(f"/proc/{group.name.split('-')[1]}")]


def _end(group: Path) -> None:
    """Kill whoever is in a group, and remove it."""
    deadline = time.monotonic() + SECONDS_TO_END
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            for number in (group / "cgroup.procs").read_text().split():
                os.kill(int(number), signal.SIGKILL)
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)
