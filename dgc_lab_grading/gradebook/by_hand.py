"""Manual marks: sheets of the answers to mark, and their points in nbgrader's gradebook.

A sheet is a CSV with a row for each answer: fill in ``points`` and, optionally, ``comment``, which the student's
feedback page shows. A row applies only to the version of the submission that was read. Each of several markers has a
sheet: a student's answers go to one marker, and all markers get equal shares.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.course.csv_text import Row, read_rows, write_rows
from dgc_lab_grading.course.report import graded_rows, locked, submitted
from dgc_lab_grading.gradebook.grades import gradebook_of

COLUMNS = ("student", "exercise", "answer", "version", "of", "points", "comment")


def by_hand(folder: Path, sheets: list[Path]) -> tuple[int, int]:
    """Enter the points of all sheets, and add unmarked answers that are in none; missing sheets are created.

    Returns how many answers have points in the sheets, and how many are still unmarked. Raises a LabError, and enters
    nothing, if a row matches no answer, if points are invalid, or if two sheets disagree. Rows of students whose newest
    submission could not be graded are skipped. Points removed from a row are removed from the gradebook. A line is
    printed for each such removal and for each new sheet.
    """
    folder, read = Path(folder).resolve(), {}
    for sheet in map(Path, sheets):
        if sheet.suffix.lower() != ".csv":
            raise LabError(f"a sheet's name must end in .csv, got {sheet}; EXERCISE goes before --by-hand")
        read[sheet] = read_sheet(sheet) if sheet.exists() else ([], ",")
    with locked(folder), gradebook_of(folder) as gradebook:
        report = graded_rows(folder)
        each = ((who, name, row["status"]) for name, rows in report.items() for who, row in rows.items())
        ungraded = {(who, name) for who, name, status in each if status != "graded"}
        grades, comments = _answers(gradebook, folder, report)
        answers = {key[:3] for key in grades}
        entered, places, empty = {}, {}, {}
        for sheet, (rows, _) in read.items():
            for row in rows:
                place, key = f"{sheet}, line {row.line}", tuple(row[name] for name in COLUMNS[:4])
                if key[:2] in ungraded:
                    continue
                if key[:3] not in answers:
                    raise LabError(f"{place}: {key[0]} has no answer {key[2]!r} to {key[1]!r}")
                points = points_of(row["points"], grades.get(key), place)
                if key not in grades:
                    continue
                if points is None:
                    empty[key] = sheet
                    continue
                if entered.setdefault(key, (points, row["comment"]))[0] != points:
                    raise LabError(f"{place}: {points:g} points, but {entered[key][0]:g} in {places[key]}")
                places.setdefault(key, place)
        for key, (points, comment) in entered.items():
            grades[key].manual_score, grades[key].needs_manual_grade = points, False
            comments[key].manual_comment = comment or None
        for key in sorted(empty.keys() - entered.keys()):
            grade, (student, name, answer, _) = grades[key], key
            # Unmarked answers keep the points of an earlier version until new ones are entered.
            if grade.manual_score is not None and not grade.needs_manual_grade:
                which = f"{student}'s {grade.manual_score:g} points for {answer} of {name}"
                print(f"removed {which}: {empty[key]} has none now")
                grade.manual_score, grade.needs_manual_grade = None, True
                comments[key].manual_comment = None
        gradebook.db.commit()
        waiting = [key for key, grade in grades.items() if grade.needs_manual_grade]
        most = {key: f"{grades[key].max_score:g}" for key in waiting}
    known = {tuple(row[name] for name in COLUMNS[:4]) for rows, _ in read.values() for row in rows}
    new = share_out(sorted(set(waiting) - known), {sheet: rows for sheet, (rows, _) in read.items()})
    for sheet, (rows, delimiter) in read.items():
        made = not sheet.exists()
        if new[sheet] or made:
            rows += [dict(zip(COLUMNS, (*key, most[key], "", ""), strict=True)) for key in new[sheet]]
            write_sheet(sheet, rows, delimiter)
        if made:
            print(f"new sheet {sheet} with {len(rows)} answers")
    return len(entered), len(waiting)


def share_out(keys: list[tuple], sheets: dict) -> dict:
    """Assign answers to sheets: to a sheet that has the student already, else to the shortest one.

    Example:
        >>> share_out([("a", 1), ("a", 2), ("b", 1), ("c", 1)], {"x": [], "y": [{"student": "c"}]})
        {'x': [('a', 1), ('a', 2)], 'y': [('b', 1), ('c', 1)]}
    """
    shared = {sheet: [] for sheet in sheets}
    marker = {row["student"]: sheet for sheet, rows in sheets.items() for row in rows}
    for key in keys:
        lengths = {sheet: len(rows) + len(shared[sheet]) for sheet, rows in sheets.items()}
        shared[marker.setdefault(key[0], min(lengths, key=lengths.get))].append(key)
    return shared


def points_of(text: str, grade, place: str) -> float | None:
    """Parse the points of a row, from 0 to the maximum; None if it has none.

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


def read_sheet(sheet: Path) -> tuple[list[Row], str]:
    """Return a sheet's rows and delimiter: with decimal commas, spreadsheets write ``;``."""
    rows, delimiter = read_rows(sheet, COLUMNS)
    rows = [row for row in rows if row["student"].strip()]
    for row in rows:
        row["version"] = version_in(row["version"])
    return rows, delimiter


def write_sheet(sheet: Path, rows: list[dict], delimiter: str) -> None:
    """Write a sheet; create its folder if it is missing."""
    sheet.parent.mkdir(parents=True, exist_ok=True)
    write_rows(sheet, COLUMNS, rows, delimiter=delimiter)


def _answers(gradebook, folder, report):
    """Return grades and comments of manually marked answers, by student, exercise, answer and version."""
    grades, comments = {}, {}
    for name, rows in report.items():
        for student, row in rows.items():
            if row["status"] != "graded":
                continue
            mark = version(submitted(folder, student, name))
            for notebook in gradebook.find_submission(name, student).notebooks:
                comment_of = {comment.name: comment for comment in notebook.comments}
                for grade in notebook.grades:
                    if grade.name in comment_of:  # an answer with its own points is marked by hand
                        grades[student, name, grade.name, mark] = grade
                        comments[student, name, grade.name, mark] = comment_of[grade.name]
    return grades, comments


def version(path: Path) -> str:
    """Return the version of a submission, a hash of everything that the student wrote.

    It begins with a letter, because a spreadsheet would read ``12345e67`` as a number and change it.
    """
    import nbformat

    cells = nbformat.read(path, as_version=4).cells
    own = [cell.source for cell in cells if cell.metadata.get("nbgrader", {"solution": True})["solution"]]
    return f"v{hashlib.sha256(json.dumps(own).encode()).hexdigest()[:8]}"


def version_in(text: str) -> str:
    """Return a version as read from a file; older files lack the letter."""
    return f"v{text}" if re.fullmatch("[0-9a-f]{8}", text) else text
