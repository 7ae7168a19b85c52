"""The works that are struck: their commands, what they keep on the way, and what they come to."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from faults.programs import GRADIENTS, HOSTS_STEPS, RATIOS, ROOT, SAVES, STEPS, train_command

LIMIT = 600  # seconds that a work may take in all, however busy the machine is
# What shared memory the work leaves is then in its own folder, and not among that of others on this machine.
BIND = 'mount --bind "$0" /dev/shm && exec "$@"'
OWN_SHARED = ("unshare", "--mount", "sh", "-c", BIND) if os.geteuid() == 0 else ()
TIMES = ("seconds", "started")
SWEEP = ["--ratios", "1,0.1,0.01", "--steps", "150", "--batch", "32", "--evaluations", "1"]
TABLE = ["--numbers", "1,4", "--ratios", "0.1,0.01", "--steps", "25"]


def rows_of(folder: Path) -> dict[str, dict]:
    """Whole rows of the file, without their times, by what they are a row of; a row that is there twice is told."""
    found = {}
    file = folder / "rows.jsonl"
    for line in file.read_bytes().splitlines() if file.is_file() else []:
        try:
            row = {name: value for name, value in json.loads(line).items() if name not in TIMES}
        except (ValueError, AttributeError):
            continue
        key = f"ratio {row['ratio']:g}, {row.get('workers', 1)} workers, clipping {row.get('clip_norm')}"
        found[f"{key}, again" if key in found else key] = row
    return found


def saves_of(folder: Path) -> dict[str, dict]:
    """By rank the step of its last save, and the bits of all that it holds."""
    found = {}
    for file in sorted(folder.glob("rank_*_step_*.npz"), key=lambda file: int(file.stem.split("_")[3])):
        rank, step = re.findall(r"\d+", file.name)
        with contextlib.suppress(FileNotFoundError):  # a newer one has taken its place meanwhile
            found[f"rank {rank}"] = {"step": int(step), "bits": bits_of(file, file.stat().st_mtime_ns)}
    return found


@functools.lru_cache
def bits_of(file: Path, changed: int) -> str | None:
    """A hash of all arrays, for a file that was last changed then; None where it cannot be read."""
    try:
        with np.load(file, allow_pickle=False) as saved:
            return hashlib.sha256(b"".join(saved[name].tobytes() for name in saved.files)).hexdigest()[:16]
    except Exception:  # garbled on purpose: zip, zlib and numpy raise a dozen kinds
        return None


def server_of(folder: Path, exact: bool = True) -> dict[str, dict]:
    """What the parameter servers' checkpoint holds: how many gradients, and the norm of the weights to three digits."""
    try:
        with np.load(folder / "saved.npz", allow_pickle=False) as saved:
            weights = [saved[name] for name in saved.files if name.startswith("weights")]
            norm = float(f"{np.sqrt(sum((weight**2).sum() for weight in weights)):.4g}")
            done = int((saved["updates"] >= 0).sum())
            return {"servers": {"step": done, **({"version": int(saved["version"]), "norm": norm} if exact else {})}}
    except Exception:
        return {}


def lines_of(folder: Path) -> dict[str, dict]:
    """Rows as a widget shows them, without their times."""
    file = folder / "rows.jsonl"
    texts = file.read_text().splitlines() if file.is_file() else []
    return {text.split("\t")[0]: {"cells": text.split("\t")[:3]} for text in texts}


@dataclass(frozen=True)
class Work:
    """A command that keeps what it has done, and goes on from it.

    Attributes:
        command: program and arguments; ``OUT`` in them becomes the folder of what is kept.
        kept: function of that folder: by name of a row (or rank), its facts.
        parts: how many times it keeps something.
        steps: that the last of them has made, where they tell.
        megabytes: of memory that it needs, about.
        expected: names of the files that may be in the folder at the end.
    """

    command: tuple[str, ...]
    kept: Callable[[Path], dict[str, dict]] = rows_of
    parts: int = len(RATIOS)
    steps: int = STEPS
    megabytes: int = 600
    expected: str = r"rows\.jsonl"

    def progress(self, folder: Path) -> int:
        """How often it has kept something by now."""
        found = self.kept(folder)
        if any("step" in facts for facts in found.values()):
            return self.parts * min(facts["step"] for facts in found.values()) // self.steps
        return len(found)


def loose_server_of(folder: Path) -> dict[str, dict]:
    """Of asynchronous training only how much was done: which gradient meets which weights is chance."""
    return server_of(folder, exact=False)


def program(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "faults.programs", *words)


LAB = (sys.executable, "-m", "dgc_lab")
SAVED = {"kept": saves_of, "parts": SAVES, "expected": r"rank_\d_step_\d+\.npz"}
SERVED = {"parts": 3, "steps": GRADIENTS, "expected": r"saved\.npz", "megabytes": 1200}
WORKS = {
    "sweep": Work((*LAB, "sweep", *SWEEP, "--out", "OUT/rows.jsonl")),
    "workers table": Work((*LAB, "table", "workers", *TABLE, "--out", "OUT/rows.jsonl"), parts=4),
    "train": Work((*train_command("--checkpoint", "OUT"),), **SAVED),
    "two ranks": Work(program("ranks", "OUT/rows.jsonl", "2", "dgc"), megabytes=900),
    "four ranks": Work(program("ranks", "OUT/rows.jsonl", "4", "dgc"), megabytes=1400),
    "scheme on ranks": Work(program("ranks", "OUT/rows.jsonl", "2", "top_k"), megabytes=900),
    "horovodrun": Work(program("launched", "OUT", "2", "dgc"), megabytes=1300, **SAVED),
    "scheme under horovodrun": Work(program("launched", "OUT", "2", "qsgd:levels=4"), **SAVED),
    "synchronous servers": Work(program("servers", "OUT", "synchronous"), server_of, **SERVED),
    "asynchronous servers": Work(program("servers", "OUT", "asynchronous"), loose_server_of, **SERVED),
    "two hosts": Work(program("hosts", "OUT"), **SAVED, steps=HOSTS_STEPS),
    "kernel": Work(program("kernel", "OUT/rows.jsonl", "sweep")),
    "kernel with ranks": Work(program("kernel", "OUT/rows.jsonl", "ranks", "2", "dgc")),
    "browser": Work(program("browser", "OUT/rows.jsonl"), lines_of),
}


class Run:
    """One process of a work, in a folder of its own that is known from all its descendants' environments."""

    def __init__(self, work: Work, folder: Path, variables: dict[str, str] | None = None, enter: tuple = ()):
        self.work, self.folder, self.out = work, folder, folder / "out"
        self.out.mkdir(parents=True, exist_ok=True)
        (folder / "tmp").mkdir(exist_ok=True)
        (folder / "ready").unlink(missing_ok=True)
        if OWN_SHARED:
            (folder / "shm").mkdir(exist_ok=True)
            enter = (*OWN_SHARED, str(folder / "shm"), *enter)
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tools", ROOT / "tests", ROOT / "benchmarks")))
        own = {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
        with open(folder / "said", "wb") as said:
            self.process = psutil.Popen(
                [*enter, *(word.replace("OUT", str(self.out)) for word in work.command)],
                cwd=folder,
                env={**os.environ, **own, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.began = time.monotonic()

    def said(self) -> str:
        """All that it printed, a line where it wrote over one."""
        return (self.folder / "said").read_text(errors="replace").replace("\r", "\n")

    def running(self) -> bool:
        return self.process.poll() is None

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until something is so, or the process has ended, or the limit is over; whether it is so."""
        while not (so := condition()) and self.running() and time.monotonic() < self.began + LIMIT:
            time.sleep(0.05)
        return so

    def wait(self) -> int | None:
        """The exit status; None where it had to be killed after the limit."""
        try:
            return self.process.wait(max(1, self.began + LIMIT - time.monotonic()))
        except psutil.TimeoutExpired:
            for process in family(self.folder):
                process.send_signal(signal.SIGKILL)
            self.process.wait()
            return None


def family(folder: Path) -> list[psutil.Process]:
    """All processes that carry this folder in their environment, by number; zombies have none."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"={folder}/tmp".encode() in (process / "environ").read_bytes():
                found.append(psutil.Process(int(process.name)))
        except (OSError, psutil.NoSuchProcess):
            continue  # it ended meanwhile
    return sorted(found, key=lambda process: process.pid)
