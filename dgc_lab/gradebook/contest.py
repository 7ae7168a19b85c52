"""The table of exercise 8's contest: who reached which accuracy with the bytes that were allowed, the best first."""

from __future__ import annotations

import re
from pathlib import Path

from dgc_lab.course.csv_text import write_rows
from dgc_lab.course.report import graded_rows

EXERCISE, CELLS = "08_other_compressors", ("marks-contest-very-good", "marks-contest-good")
# From the beginning of what a check has printed, where nothing of a student's stands.
REACHED = re.compile(r"\S contest_(?:very_)?good: right: accuracy (\d\.\d{3}) with at most")
COLUMNS = ("place", "student", "accuracy")


def contest(folder: Path) -> list[dict]:
    """A row for each student who got a point for the contest, hidden tests passed and all.

    Who reached the same accuracy shares a place. A LabError where the exercise was not graded.
    """
    import nbformat

    reached = {}
    for student, row in graded_rows(folder, EXERCISE)[EXERCISE].items():
        if row["status"] == "graded":
            path = Path(folder) / "autograded" / student / EXERCISE / f"{EXERCISE}.ipynb"
            for cell in nbformat.read(path, as_version=4).cells:
                passed = not any(output.output_type == "error" for output in cell.get("outputs", ()))
                if cell.metadata.get("nbgrader", {}).get("grade_id") in CELLS and passed:
                    printed = "".join(output.get("text", "") for output in cell.outputs[:1])
                    if found := REACHED.match(printed):
                        reached[student] = float(found[1])
    order = sorted(reached.values(), reverse=True)
    rows = ((order.index(accuracy) + 1, student, accuracy) for student, accuracy in sorted(reached.items()))
    return [dict(zip(COLUMNS, row, strict=True)) for row in sorted(rows)]


def write_contest(folder: Path) -> tuple[Path, list[dict]]:
    """Write the table as ``contest.csv`` into the grading folder; its path and its rows."""
    rows, path = contest(folder), Path(folder) / "contest.csv"
    write_rows(path, COLUMNS, rows)
    return path, rows
