"""The report of a grading folder, ``report.json``: for each exercise, a row per student."""

from __future__ import annotations

import fcntl
import json
import re
from contextlib import contextmanager
from pathlib import Path

from dgc_lab.common import LabError, read_text
from dgc_lab_grading.course.files import replacing

# Control characters, changes of text direction, and lone surrogates, which files and terminals cannot handle.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def line_of(row: dict, number: int, of: int) -> str:
    """Format a student's line of the progress report."""
    marks = f"{row['score']:g} of {row['most']:g}" if row["status"] == "graded" else "NOT GRADED"
    remarks = [*row["remarks"]]
    if row.get("by_hand"):
        remarks.append(f"to be marked by hand: {', '.join(row['by_hand'])}")
    return f"[{number}/{of}] {row['student']}: {marks}, {row['seconds']:.0f} s{''.join('; ' + r for r in remarks)}"


def without_control(text: str) -> str:
    """Remove control characters, so that a student's text cannot control a terminal or stop the output."""
    return CONTROL.sub("", re.sub(r"\s", " ", text))


@contextmanager
def locked(folder: Path):
    """Lock the grading folder; LabError if another process is grading in it."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"another process is grading in {folder}") from None
        yield


def read_report(folder: Path) -> dict:
    """Return the report so far: for each exercise, a row per student."""
    path = Path(folder) / "report.json"
    if not path.exists():
        return {}
    try:
        report = json.loads(read_text(path))
        report.get("exercises", {}).keys()
        rows = [row for name, every in report.items() if name != "exercises" for row in every.values()]
        for row in rows:  # check the presence and types of the fields that are read later
            texts = (row["student"], row["status"], row.get("handed_in", ""), row.get("number", ""))
            "".join([*texts, *row["remarks"], *row.get("by_hand", [])])
            f"{row['score']:g} {row['most']:g} {row['seconds']:g}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        words = f"{type(error).__name__}: {error}"
        raise LabError(f"{path} is damaged ({words}): grade again into another folder") from None
    return report


def submitted(folder: Path, student: str, exercise: str) -> Path:
    """Return the path of the notebook that was graded: the submission after repair."""
    return Path(folder) / "submitted" / student / exercise / f"{exercise}.ipynb"


def graded_rows(folder: Path, assignment: str | None = None) -> dict[str, dict]:
    """Return the rows by student of each graded exercise, or of one; LabError if there are none."""
    report = read_report(folder)
    report.pop("exercises", None)
    report = {name: rows for name, rows in report.items() if rows and assignment in (None, name)}
    if not report:
        what = f"no submission of {assignment}" if assignment else "nothing"
        raise LabError(f"{what} has been graded in {folder}: run grade first, or pass another --folder")
    return report


def outdated(folder: Path, assignment: str | None = None) -> list[str]:
    """Return a warning for each exercise that has changed since submissions were graded."""
    now, words = read_report(folder).get("exercises", {}), []
    for name, rows in sorted(graded_rows(folder, assignment).items()):
        graded = [row for row in rows.values() if row["status"] == "graded"]
        if count := sum(row.get("exercise", now.get(name)) != now.get(name) for row in graded):
            were = "submissions were" if count > 1 else "submission was"
            words.append(f"{count} {were} graded with an earlier version of {name}: run grade without --only")
    return words


def write_report(folder: Path, report: dict) -> None:
    """Replace the report."""
    with replacing(Path(folder) / "report.json") as new:
        new.write_text(json.dumps(report, indent=1, sort_keys=True))
