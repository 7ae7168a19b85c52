"""What a work may not leave behind: processes (with them go sockets and namespaces), mounts, shared memory, files."""

from __future__ import annotations

import re
import time
from pathlib import Path

from faults.works import Run, family

SECONDS_TO_END = 60  # for what notices by itself that its parent is gone
# TensorFlow's, which it removes as its process ends; nobody can where a process without a guard is killed.
TENSORFLOWS = re.compile(r"__autograph_generated_file\w+\.py")
# The browser's own, which it sometimes leaves when the program that drives it closes it.
CHROMIUMS = re.compile(r"\.org\.chromium\.Chromium\.\w+")


def mounts(folder: Path) -> set[str]:
    """Places in the folder where something is mounted."""
    places = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {place for place in places if place.startswith(str(folder))}


def left(run: Run, killed: bool, finished: bool) -> list[str]:
    """What is left of a run that has ended, one text each; what is there for a moment only is not.

    ``killed`` says that it had no chance to remove anything itself; ``finished``, that the folder of what it keeps has
    to be in order, too: a half file may lie there from a kill until the same call has gone on.
    """
    end = time.monotonic() + SECONDS_TO_END
    while (found := now_there(run, killed, finished)) and time.monotonic() < end:
        time.sleep(0.1)
    for process in family(run.folder):
        process.kill()
    return found


def now_there(run: Run, killed: bool, finished: bool) -> list[str]:
    """What is there now of what may not be left. A process that becomes another program is not seen for a moment."""
    if running := family(run.folder):
        return [f"process {process.pid}" for process in running]
    found = [f"mount {place}" for place in mounts(run.folder) - {str(run.out)}]
    for kind, folder in (("shared memory", "shm"), ("temporary file", "tmp")):
        files = (run.folder / folder).iterdir() if (run.folder / folder).exists() else ()
        for file in list(files):
            if CHROMIUMS.fullmatch(file.name) or (killed and TENSORFLOWS.fullmatch(file.name)):
                file.unlink()
            else:
                found.append(f"{kind} {file.name}")
    if finished:
        kept = (file.name for file in run.out.iterdir())
        found += [f"file {name}" for name in kept if not re.fullmatch(run.work.expected, name)]
    return found
