"""Which lines and branches of `dgc_lab` the tests run, in all of their processes, room by room.

python tools/measure_coverage.py [ROOM...]        such as dgc; the rooms of tests/ that are not measured yet without

A room's measurement is kept in ``build/coverage`` until the room is named again or the folder is removed. What
coverage.py does is in ``pyproject.toml``; ``save_often.py`` has it save what killed processes ran. Behind the fence
around a student's code nothing can be saved: what is run there alone counts as not run. So does what TensorFlow traces
with AutoGraph, which runs a copy of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import psutil

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "coverage.json"
WORK = ROOT / "build" / "coverage"
COUNTED = {"num_statements": "lines", "covered_lines": "lines_run", "num_branches": "branches"}
COUNTED |= {"covered_branches": "branches_run"}
ROOMS = tuple(sorted(folder.name for folder in (ROOT / "tests").iterdir() if list(folder.glob("test_*.py"))))


def coverage_table(file: Path = RESULTS) -> pd.DataFrame:
    """A line for each room of the library and one for all: lines, branches, and the percentage of both that was run."""
    table = pd.DataFrame(json.loads(file.read_text(encoding="utf-8"))["rooms"])
    table = pd.concat([table, pd.DataFrame([{"room": "all", **table.sum(numeric_only=True)}])], ignore_index=True)
    run = (table.lines_run + table.branches_run) / (table.lines + table.branches)
    return table.assign(percent=(100 * run).round(1))


def main(rooms: list[str]) -> None:
    """Measure the rooms, and write what all measurements together come to."""
    if unknown := set(rooms) - set(ROOMS):
        sys.exit(f"ROOM must be one of {', '.join(ROOMS)}, got {' '.join(sorted(unknown))}")
    for room in rooms or [room for room in ROOMS if not (WORK / f"{room}.data").exists()]:
        measure(room)
        write()
    print(coverage_table().to_string(index=False))


def measure(room: str) -> None:
    """Run a room's tests and the examples of its docstrings, and keep the files of all their processes as one."""
    parts, kept = WORK / room, WORK / f"{room}.data"
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir(parents=True)
    tests = [name for name in (f"tests/{room}", f"dgc_lab/{room}") if (ROOT / name).is_dir()]
    command = ["run", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *tests]
    coverage(*command, data=parts / "data", check=False)  # a test that fails has run its lines
    wait_for_the_last(parts / "data")
    coverage("combine", "--quiet", *map(str, parts.glob("data.*")), data=kept)
    shutil.rmtree(parts)


def wait_for_the_last(data: Path) -> None:
    """Wait for processes that end after the tests, such as a kernel: they still write and rename their files."""
    others = [each for each in psutil.process_iter(["environ"]) if each.info["environ"]]
    psutil.wait_procs([each for each in others if each.info["environ"].get("COVERAGE_FILE") == str(data)], timeout=60)


def write() -> None:
    """Lines and branches by room of the library, from all that was measured, and the lines that were not run."""
    every, report = WORK / "all", WORK / "report.json"
    coverage("combine", "--quiet", "--keep", *map(str, WORK.glob("*.data")), data=every)
    coverage("json", "--quiet", "-o", str(report), data=every)
    rooms, missing = {}, {}
    for name, file in json.loads(report.read_text())["files"].items():
        _, *inside, _ = Path(name).parts
        room = rooms.setdefault(inside[0] if inside else "dgc_lab", dict.fromkeys(COUNTED.values(), 0))
        for theirs, ours in COUNTED.items():
            room[ours] += file["summary"][theirs]
        if file["missing_lines"]:
            missing[name] = file["missing_lines"]
    told = {
        "command": "make coverage",
        "measured": sorted(each.stem for each in WORK.glob("*.data")),
        "rooms": [{"room": room, **counts} for room, counts in sorted(rooms.items())],
        "missing": missing,
    }
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def coverage(*arguments: str, data: Path, check: bool = True) -> None:
    """Run coverage.py on a data file, with the modules of the tests and the tools to be found."""
    path = os.pathsep.join(str(ROOT / name) for name in ("", "tests", "tools"))
    variables = os.environ | {"COVERAGE_FILE": str(data), "PYTHONPATH": path}
    subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, env=variables, check=check)


if __name__ == "__main__":
    main(sys.argv[1:])
