"""All tests, run after run, each in a fresh clone with an environment of its own: does none fail by chance?

python tools/full_runs.py RUNS        such as 10; each takes 40 to 80 minutes on two cores

What is tested is the commit that is checked out. A run's row is added to ``results/full_runs.jsonl`` as it ends, and
its output stays under ``build/full_runs``. The first run in which a test fails is the last: the cause is to be mended.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "full_runs.jsonl"
WORK = ROOT / "build" / "full_runs"
ENDS = ("passed", "skipped", "failed")


def full_runs_table():
    """A line for each run, a DataFrame: when it began (UTC), its commit, how its tests ended, and its minutes.

    pandas is imported here alone: whatever Python is at hand can make the runs.
    """
    import pandas as pd

    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    return pd.DataFrame(rows)[["began", "commit", *ENDS, "minutes"]]


def counts(output: str) -> dict[str, int]:
    """How many tests passed, were left out, and failed (with those that could not run), in all parts of a run."""
    told = dict.fromkeys(ENDS, 0)
    for line in re.findall(r"^=+ (.+) in [\d.]+s", output, re.MULTILINE):
        for number, end in re.findall(r"(\d+) (passed|skipped|failed|error)", line):
            told["failed" if end == "error" else end] += int(number)
    return told


def run() -> dict:
    """One run: its row. Its clone is there until the next one begins."""
    clone, began = WORK / "clone", time.time()
    shutil.rmtree(clone, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=clone, text=True).strip()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began))
    log = WORK / f"{stamp.replace(' ', '_')}.log"
    print(f"{stamp} {commit}, see {log}", flush=True)
    # Neither the modules of the environment that this runs in, nor what make was given.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAKE", "MFLAGS"))}
    with log.open("w", encoding="utf-8") as output:
        ended = subprocess.run(
            [".ci/run"], cwd=clone, env=clean, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ).returncode
    told = counts(log.read_text(encoding="utf-8", errors="replace"))
    if ended and not told["failed"]:
        sys.exit(f"the tests did not come to their end, see {log}")
    return {"began": stamp, "commit": commit, **told, "minutes": round((time.time() - began) / 60)}


def main(arguments: list[str]) -> int:
    """Make the runs; 1 where a test failed."""
    if len(arguments) != 1 or not re.fullmatch("[1-9][0-9]*", arguments[0]):
        sys.exit(f"RUNS must be one whole number from 1, got {' '.join(arguments) or 'nothing'}")
    WORK.mkdir(parents=True, exist_ok=True)
    for _ in range(int(arguments[0])):
        row = run()
        with RESULTS.open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        if row["failed"]:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
