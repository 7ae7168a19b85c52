"""What has been struck so far: the rows of ``results/faults.jsonl``, and the table of them by kind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd

from faults.plan import KINDS

FILE = Path(__file__).resolve().parents[2] / "results" / "faults.jsonl"


def read(file: Path = FILE) -> list[dict]:
    """All rows of the file; of one that is not there, none. A last line that was cut short is no row."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def add(row: dict, file: Path = FILE) -> None:
    """Write a row at the end, in place of a line that was cut short."""
    with open(file, "a+b") as out:
        out.seek(0)
        out.truncate(out.read().rfind(b"\n") + 1)
        out.write(json.dumps(row).encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())


def by_kind(file: Path = FILE) -> pd.DataFrame:
    """A line for each kind of fault, and one for all: how many, and how many of them broke which promise.

    Columns: kind, faults, too late (the work had ended), rows lost, hangs, left behind, unexplained, failures (any of
    these), seconds (the median).
    Faults that this machine does not allow are not counted.
    """
    rows = pd.DataFrame(read(file), columns=["kind", "verdict", "broken", "seconds", "struck"])
    rows = rows[rows["verdict"] != "left out"]
    names = {"rows": "rows lost", "hang": "hangs", "left": "left behind", "message": "unexplained"}
    found = rows[["kind"]].assign(faults=1)
    found["too late"] = rows["struck"].str.startswith("nothing")
    found = found.assign(**{name: rows["broken"] == what for what, name in names.items()})
    found["failures"] = rows["verdict"] != "kept"
    table = found.groupby("kind").sum().reindex([kind for kind in KINDS if kind in set(rows["kind"])]).astype(int)
    table.loc["all"] = table.sum()
    table["seconds"] = rows.groupby("kind")["seconds"].median()
    table.loc["all", "seconds"] = rows["seconds"].median()
    return table.rename_axis("kind").reset_index()
