"""Rank exercise 8's contest by the accuracy reached with the allowed bytes, best first."""

from __future__ import annotations

import re
from pathlib import Path

from dgc_lab_grading.course.csv_text import write_rows
from dgc_lab_grading.course.report import graded_rows

EXERCISE, CELLS = "08_other_compressors", ("marks-contest-very-good", "marks-contest-good")
# Matched at the beginning of a check's output, which students cannot change.
REACHED = re.compile(r"\S contest_(?:very_)?good: right: accuracy (\d\.\d{3}) with at most")
COLUMNS = ("place", "student", "accuracy")


def contest(folder: Path) -> list[dict]:
    """Return a row for each student with a point for the contest, for which hidden tests must pass, too.

    Students with equal accuracy share a place. Raises a LabError if the exercise was not graded.
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
    """Write the ranking to ``contest.csv`` in the grading folder; return its path and its rows."""
    rows, path = contest(folder), Path(folder) / "contest.csv"
    write_rows(path, COLUMNS, rows)
    return path, rows
