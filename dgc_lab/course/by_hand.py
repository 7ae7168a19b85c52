"""Marks that a person gives: a sheet of the answers that wait for them, and from the sheet into nbgrader's gradebook.

The sheet is a CSV with a row for each answer: fill in ``points`` and, if you like, ``comment``, which the student's
page of feedback shows. A row holds for the version of the hand-in that was read, and for no later one.
"""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.course.report import graded_rows, locked
from dgc_lab.marking.nbgrader_api import course_api

COLUMNS = ("student", "exercise", "answer", "version", "of", "points", "comment")


def by_hand(folder: Path, sheet: Path) -> tuple[int, int]:
    """Enter a sheet's points, and add rows for answers that wait and are not in it; it is made if it is not there.

    Returns how many answers have points by the sheet, and how many still wait. A row of no answer, or with points that
    cannot be, is a LabError, and nothing at all is entered then.
    """
    folder, sheet = Path(folder).resolve(), Path(sheet)
    rows, delimiter = read_sheet(sheet) if sheet.exists() else ([], ",")
    with locked(folder), course_api(folder).gradebook as gradebook:
        grades, comments = _answers(gradebook, folder)
        entered = {}
        for number, row in enumerate(rows, 2):
            key = tuple(row[name] for name in COLUMNS[:4])
            if key[:3] not in {each[:3] for each in grades}:
                raise LabError(f"{sheet}, line {number}: {key[0]} has handed in no {key[2]!r} of {key[1]!r}")
            points = points_of(row["points"], grades.get(key), f"{sheet}, line {number}")
            if points is not None and key in grades:
                entered[key] = points, row["comment"]
        for key, (points, comment) in entered.items():
            grades[key].manual_score, grades[key].needs_manual_grade = points, False
            comments[key].manual_comment = comment or None
        gradebook.db.commit()
        waiting = [key for key, grade in grades.items() if grade.needs_manual_grade]
        known = {tuple(row[name] for name in COLUMNS[:4]) for row in rows}
        new = [(*key, f"{grades[key].max_score:g}", "", "") for key in sorted(set(waiting) - known)]
    if new or not sheet.exists():
        rows += [dict(zip(COLUMNS, row, strict=True)) for row in new]
        write_sheet(sheet, rows, delimiter)
    return len(entered), len(waiting)


def points_of(text: str, grade, place: str) -> float | None:
    """The points that a row gives, from 0 to what can be reached; None where it gives none.

    Example:
        >>> points_of(" 2,5 ", None, "points.csv, line 2"), points_of("", None, "points.csv, line 3")
        (2.5, None)
    """
    if not text.strip():
        return None
    try:
        points = float(text.replace(",", "."))
    except ValueError:
        points = -1.0
    most = float("inf") if grade is None else grade.max_score
    if not 0 <= points <= most:
        raise LabError(f"{place}: points must be a number from 0 to {most:g}, got {text.strip()!r}")
    return points


def read_sheet(sheet: Path) -> tuple[list[dict], str]:
    """A sheet's rows, and what parts its columns: where a comma is in numbers, spreadsheets write ``;``."""
    with sheet.open(newline="", encoding="utf-8-sig") as file:
        head = file.readline()
        delimiter = ";" if head.count(";") > head.count(",") else ","
        file.seek(0)
        rows = list(csv.DictReader(file, delimiter=delimiter, restval=""))
    missing = [
        name for name in COLUMNS if name not in next(csv.reader([head.lstrip("\ufeff")], delimiter=delimiter), [])
    ]
    if missing:
        raise LabError(f"{sheet} needs the columns {', '.join(COLUMNS)}; {', '.join(missing)} is not there")
    return [row for row in rows if row["student"].strip()], delimiter


def write_sheet(sheet: Path, rows: list[dict], delimiter: str) -> None:
    """Replace the sheet in one go."""
    sheet.parent.mkdir(parents=True, exist_ok=True)
    new = sheet.with_name(sheet.name + ".new")
    with new.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, delimiter=delimiter, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    new.replace(sheet)


def _answers(gradebook, folder):
    """nbgrader's grades and comments of all answers that a person marks, by student, exercise, answer and version."""
    grades, comments = {}, {}
    for name, rows in graded_rows(folder).items():
        for student, row in rows.items():
            if row["status"] != "graded":
                continue
            mark = version(folder / "submitted" / student / name / f"{name}.ipynb")
            for notebook in gradebook.find_submission(name, student).notebooks:
                written = {comment.name: comment for comment in notebook.comments}
                for grade in notebook.grades:
                    if grade.name in written:  # an answer with points of its own, which is what a machine cannot mark
                        grades[student, name, grade.name, mark] = grade
                        comments[student, name, grade.name, mark] = written[grade.name]
    return grades, comments


def version(path: Path) -> str:
    """Eight digits that tell one version of a hand-in from another: by all that is the student's own in it."""
    import nbformat

    cells = nbformat.read(path, as_version=4).cells
    own = [cell.source for cell in cells if cell.metadata.get("nbgrader", {"solution": True})["solution"]]
    return hashlib.sha256(json.dumps(own).encode()).hexdigest()[:8]
