"""The quick tests with the oldest and the newest allowed version of every dependency, on each Python (needs uv).

python tools/versions.py [LANE...]        such as 3.11-oldest; all without

A lane is an environment of its own under ``build/versions``, which uv fills from the bounds in ``pyproject.toml``.
Horovod is not built there: what runs needs none. A lane's row in ``results/versions.json`` is replaced as it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "versions.json"
WORK = ROOT / "build" / "versions"
PYENV = Path.home() / ".pyenv" / "versions"
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
LANES = tuple(f"{python}-{end}" for python in ("3.11", "3.12", "3.13") for end in RESOLUTIONS)
TESTS = (
    "dgc_lab",
    "tests/compression/test_boundaries.py",
    "tests/compression/test_everywhere.py",
    "tests/compression/test_one_gradients_way.py",
    "tests/compression/test_state.py",
    "tests/workloads",
    "tests/aggregation/test_aggregation.py",
    "tests/exercises",
    "tests/replicas/test_replicas.py",
    "tests/training/test_steps_at_once.py",
)
LEFT_OUT = ("dgc_lab/course", "dgc_lab/gradebook", "dgc_lab/marking")  # an environment of its own has what they need
SHOWN = ("python", "tensorflow", "keras", "numpy", "pandas", "ipython", "ipywidgets", "matplotlib")


def versions_table():
    """A line for each lane, a DataFrame: its Python, versions that matter most, and how many tests passed and failed.

    pandas is imported here alone: whatever Python is at hand can run the lanes.
    """
    import pandas as pd

    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    return pd.DataFrame([{"lane": row["lane"], **row["versions"], **row["tests"]} for row in rows])[
        ["lane", *SHOWN, "passed", "skipped", "failed"]
    ]


def main(lanes: list[str]) -> int:
    """Run the lanes; 1 where a test failed in one."""
    if unknown := set(lanes) - set(LANES):
        sys.exit(f"LANE must be one of {', '.join(LANES)}, got {' '.join(sorted(unknown))}")
    rows = {}
    if RESULTS.exists():
        rows = {row["lane"]: row for row in json.loads(RESULTS.read_text(encoding="utf-8"))}
    for lane in lanes or LANES:
        rows[lane] = run(lane)
        told = [rows[name] for name in LANES if name in rows]
        RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        print(lane, json.dumps(rows[lane]["tests"]), flush=True)
    return int(any(rows[lane]["tests"]["failed"] for lane in lanes or LANES))


def run(lane: str) -> dict:
    """Make a lane's environment and run the tests in it: lane, versions by name, and tests by how they ended."""
    python, end = lane.split("-")
    place, report = WORK / lane, WORK / f"{lane}.xml"
    binary = place / "bin" / "python"
    uv("venv", "--quiet", "--clear", "--python", interpreter(python), str(place))
    pins = str(WORK / f"{lane}.txt")
    # Wheels alone: the oldest scipy would otherwise be built, by a Fortran compiler, where no wheel is for this Python.
    bounds = ("--resolution", RESOLUTIONS[end], "--only-binary", ":all:", "--extra", "lab", "--extra", "dev")
    uv("pip", "compile", "--quiet", "--python", str(binary), *bounds, f"{ROOT}/pyproject.toml", "--output-file", pins)
    uv("pip", "sync", "--quiet", "--python", str(binary), pins)
    uv("pip", "install", "--quiet", "--python", str(binary), "--no-deps", "--editable", str(ROOT))
    # The lane's own modules, and the tree's; not those of the environment that this runs in.
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    subprocess.run([binary, "-m", "dgc_lab", "build-native"], cwd=ROOT, env=clean)  # as `make lab` does
    report.unlink(missing_ok=True)
    ignored = [f"--ignore={folder}" for folder in LEFT_OUT]
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not alone and not long", f"--junitxml={report}"]
    subprocess.run([binary, *command, *ignored, *TESTS], cwd=ROOT, env=clean)
    if not report.exists():
        sys.exit(f"{lane}: the tests did not end")
    return {"lane": lane, "versions": versions(binary), "tests": counts(report)}


def interpreter(python: str) -> str:
    """A Python of that version: pyenv's, whose shims uv does not follow; else whatever uv finds or fetches."""
    return next((str(found) for found in PYENV.glob(f"{python}.*/bin/python{python}")), python)


def uv(*arguments: str) -> str:
    """What a command of uv prints; it ends the program with uv's own words where it fails."""
    done = subprocess.run(["uv", *arguments], stdout=subprocess.PIPE, text=True)
    return done.stdout if done.returncode == 0 else sys.exit(done.returncode)


def versions(binary) -> dict[str, str]:
    """The version of Python, and of each package that ``pyproject.toml`` names, as they are in a lane."""
    listed = json.loads(uv("pip", "list", "--format", "json", "--python", str(binary)))
    there = {package["name"]: package["version"] for package in listed}
    python = subprocess.run([binary, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    return {"python": python, **{name: there[name] for name in sorted(named()) if name in there}}


def named() -> set[str]:
    """The packages that the lab and its extras "lab" and "dev" ask for."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = tables["optional-dependencies"]
    return {bound.split(">=")[0] for bound in (*tables["dependencies"], *extras["lab"], *extras["dev"])}


def counts(report: Path) -> dict[str, int]:
    """How many tests passed, were left out, and failed (with those that could not run), by pytest's report.

    The names of those that failed come last, so that the table says what is to be looked at.
    """
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = [f"{case.get('classname')}.{case.get('name')}" for case in failed]
    told = {"passed": len(cases) - skipped - len(failed), "skipped": skipped, "failed": len(failed)}
    return told | ({"names": names} if names else {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
