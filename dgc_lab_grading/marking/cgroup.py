"""Control groups that limit all processes of a submission together, if we may create them.

Usually root may, and users with a group of their own (`cgroups(7)`). Groups also count memory that no process seems to
hold: files in memory, pages of ended processes. Without them, `supervision` checks four times a second.
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
    """Return the groups in which to create ours: this process's group, in each hierarchy.

    In version 2, which has one hierarchy, it is the group above: a group that contains processes cannot pass limits on,
    except the root.
    """
    try:
        mine = dict(re.findall(r"(?m)^\d+:([^:]*):/?(.*)$", own.read_text()))
    except OSError:
        return []
    if (groups / "cgroup.controllers").exists():
        return [groups / mine[""] / ".."] if mine.get("") else [groups]
    return [groups / kind / mine[kind] for kind in ("memory", "pids") if kind in mine]


def settings(group: Path, memory: int, processes: int) -> dict[str, int]:
    """Return the values for a group's files, for those files that exist."""
    wanted = {"memory.max": memory, "memory.swap.max": 0, "memory.limit_in_bytes": memory, "pids.max": processes}
    return {name: value for name, value in wanted.items() if (group / name).exists()}


@dataclass(frozen=True)
class ControlGroups:
    """Groups with the same limits, one per hierarchy; empty if none could be created."""

    groups: tuple[Path, ...]

    def join(self, process: int) -> None:
        """Put a process and its future children under the limits."""
        for group in self.groups:
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text(str(process))

    def overrun(self) -> bool:
        """Return whether Linux has killed a process of these groups for using too much memory."""
        counts = ""
        for group in self.groups:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    counts += (group / name).read_text()
        return any(int(count) for count in re.findall(r"(?m)^oom_kill (\d+)$", counts))


@contextlib.contextmanager
def limited_groups(memory: int, processes: int) -> Iterator[ControlGroups]:
    """Create groups with these limits if possible; the end of the block kills every process in them."""
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
        yield ControlGroups(tuple(made))
    finally:
        for group in made:
            _end(group)


def left_behind() -> list[Path]:
    """Return the groups of processes that no longer exist: runs that were killed could not remove them."""
    found = [group for parent in parents() if parent.is_dir() for group in parent.glob("dgc-[0-9]*-[0-9]*")]
    return [group for group in found if not os.path.exists(f"/proc/{group.name.split('-')[1]}")]


def _end(group: Path) -> None:
    """Kill all processes in a group, and remove it."""
    deadline = time.monotonic() + SECONDS_TO_END
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            for number in (group / "cgroup.procs").read_text().split():
                os.kill(int(number), signal.SIGKILL)
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)
