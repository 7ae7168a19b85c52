"""Run a command under supervision: enforce its limits of time and memory, and leave no process behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from dgc_lab_grading.marking import cgroup
from dgc_lab_grading.marking.sandbox import MOST_THREADS

SECONDS_BETWEEN_LOOKS = 0.25
MOST_PROCESSES = 64
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True)
class Limits:
    """Resource limits of one submission."""

    seconds: int = 300  # of the whole submission
    cell_seconds: int = 60
    memory: int = 3 * 2**30  # bytes per process; all processes together may use a gigabyte more
    disk: int = 256 * 2**20  # bytes of files, which are in memory


def run(command: list[str], limits: Limits, log: Path) -> tuple[str, str | None]:
    """Run a command that writes to ``log``, until it ends or exceeds a limit; then kill its processes.

    Returns its standard output, and what went wrong: why it was stopped, or its exit code; None if it succeeded.
    """
    adopt_orphans(True)
    before = set(psutil.Process().children(recursive=True))
    with (
        cgroup.limited_groups(limits.memory + 2**30, MOST_THREADS) as group,
        log.open("wb") as errors,
        tempfile.TemporaryFile() as answer,  # a pipe would block after 64 kB
    ):
        process = subprocess.Popen(command, stdout=answer, stderr=errors, start_new_session=True)
        try:
            group.join(process.pid)
            reason = _watch(process, limits, before, group)
        finally:
            end_all_but(before)
            process.wait()
            adopt_orphans(False)
        answer.seek(0)
        output = answer.read()
    if reason is None and process.returncode != 0:
        reason = f"grading ended with exit code {process.returncode}"
    return output.decode(errors="replace"), reason


def _watch(process, limits, before, group) -> str | None:
    """Wait for a process; return why it must be stopped, or None if it has ended."""
    deadline = time.monotonic() + limits.seconds
    too_much = f"it used more than {limits.memory / 2**30:.1f} GB of memory"
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_BETWEEN_LOOKS)
            return too_much if group.overrun() else None  # Linux may have killed this process
        if time.monotonic() > deadline:
            return f"it took longer than {limits.seconds} s in total"
        family = set(psutil.Process().children(recursive=True)) - before
        if len(family) > MOST_PROCESSES:
            return f"it started more than {MOST_PROCESSES} processes"
        if group.overrun() or memory_of(family, limits.memory + 2**30) > limits.memory + 2**30:
            return too_much


def memory_of(processes, enough: int) -> int:
    """Return the bytes that processes use together; shared pages count once if it matters."""
    resident, shares = 0, 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            resident += process.memory_info().rss
    resident += unmapped_of(processes)
    if resident <= enough:
        return resident
    for process in processes:  # proportional shares take longer to compute
        with contextlib.suppress(psutil.Error):
            full = process.memory_full_info()
            shares += getattr(full, "pss", full.rss)
    return shares + unmapped_of(processes)


def unmapped_of(processes) -> int:
    """Return the bytes of unnamed files in memory (``memfd_create(2)``), which count for no process."""
    found = {}
    for process in processes:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{process.pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith("/memfd:"):
                        state = os.stat(entry.path)
                        found[state.st_ino] = 512 * state.st_blocks
    return sum(found.values())


def end_all_but(before: set[psutil.Process]) -> None:
    """Kill all processes started or adopted since ``before``, and their children; wait until they end."""
    for _ in range(20):
        family = set(psutil.Process().children(recursive=True)) - before
        if not family:
            return
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=1)


def adopt_orphans(whether: bool) -> None:
    """Become the parent of orphaned descendants (Linux), so that none is lost; or stop doing so."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0)
