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
from collections.abc import Callable, Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
SECONDS_TO_END = 5


def parents(groups: Path = GROUPS, own: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """Groups below which ours would be made: the one of this process, in one tree or in one for each kind of limit."""
    try:
        mine = dict(re.findall(r"(?m)^\d+:([^:]*):/?(.*)$", own.read_text()))
    except OSError:
        return []
    if (groups / "cgroup.controllers").exists():
        return [groups / mine.get("", "")]
    return [groups / kind / mine[kind] for kind in ("memory", "pids") if kind in mine]


def settings(group: Path, memory: int, processes: int) -> dict[str, int]:
    """What is written into a group's files, as far as the machine has them."""
    wanted = {"memory.max": memory, "memory.swap.max": 0, "memory.limit_in_bytes": memory, "pids.max": processes}
    return {name: value for name, value in wanted.items() if (group / name).exists()}


@contextlib.contextmanager
def limited(memory: int, processes: int) -> Iterator[Callable[[int], None]]:
    """A function that puts a process, and all that it starts from then on, under limits; it does nothing without any.

    When the block ends, so does every process in there.
    """
    made = []
    for parent in parents():
        group = parent / f"dgc-{os.getpid()}-{time.monotonic_ns()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            made.append(group)
            for name, value in settings(group, memory, processes).items():
                (group / name).write_text(str(value))

    def join(process: int) -> None:
        for group in made:
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text(str(process))

    try:
        yield join
    finally:
        for group in made:
            _end(group)


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
