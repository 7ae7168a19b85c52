"""Marks that persons give: sheets of the answers that wait for them, and from the sheets into nbgrader's gradebook.

A sheet is a CSV with a row for each answer: fill in ``points`` and, if you like, ``comment``, which the student's
page of feedback shows. A row holds for the version of the hand-in that was read, and for no later one. Several markers
have a sheet each: a student's answers go to one marker, and each marker gets as many as the others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.course.csv_text import read_rows, write_rows
from dgc_lab.course.report import graded_rows, locked, submitted
from dgc_lab.gradebook.grades import gradebook_of

COLUMNS = ("student", "exercise", "answer", "version", "of", "points", "comment")


def by_hand(folder: Path, sheets: list[Path], say: Callable[[str], None] = print) -> tuple[int, int]:
    """Enter the points of all sheets, and share out answers that wait and are in none; sheets not there yet are made.

    Returns how many answers have points by the sheets, and how many still wait. A row of no answer, points that cannot
    be, or an answer that two sheets give different points is a LabError, and nothing at all is entered then. Rows of a
    student whose newest hand-in could not be graded are passed over. Points that a row no longer has are taken back,
    which is said, as is which sheets are new.
    """
    folder, read = Path(folder).resolve(), {}
    for sheet in map(Path, sheets):
        if sheet.suffix.lower() != ".csv":
            raise LabError(f"a sheet for points ends in .csv, got {sheet}; an exercise stands before --by-hand")
        read[sheet] = read_sheet(sheet) if sheet.exists() else ([], ",")
    with locked(folder), gradebook_of(folder) as gradebook:
        report = graded_rows(folder)
        each = ((who, name, row["status"]) for name, rows in report.items() for who, row in rows.items())
        ungraded = {(who, name) for who, name, status in each if status != "graded"}
        grades, comments = _answers(gradebook, folder, report)
        answers = {key[:3] for key in grades}
        entered, places, empty = {}, {}, {}
        for sheet, (rows, _) in read.items():
            for number, row in enumerate(rows, 2):
                place, key = f"{sheet}, line {number}", tuple(row[name] for name in COLUMNS[:4])
                if key[:2] in ungraded:
                    continue
                if key[:3] not in answers:
                    raise LabError(f"{place}: {key[0]} has handed in no {key[2]!r} of {key[1]!r}")
                points = points_of(row["points"], grades.get(key), place)
                if key not in grades:
                    continue
                if points is None:
                    empty[key] = sheet
                    continue
                if entered.setdefault(key, (points, row["comment"]))[0] != points:
                    raise LabError(f"{place}: {points:g} points, and {entered[key][0]:g} in {places[key]}")
                places.setdefault(key, place)
        for key, (points, comment) in entered.items():
            grades[key].manual_score, grades[key].needs_manual_grade = points, False
            comments[key].manual_comment = comment or None
        for key in sorted(empty.keys() - entered.keys()):
            grade, (student, name, answer, _) = grades[key], key
            # What still waits has the points of an earlier version, which count until there are new ones.
            if grade.manual_score is not None and not grade.needs_manual_grade:
                which = f"{student}'s {grade.manual_score:g} points for {answer} of {name}"
                say(f"taken back, for {empty[key]} has none now: {which}")
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
            say(f"new sheet {sheet}, {len(rows)} answers")
    return len(entered), len(waiting)


def share_out(keys: list[tuple], sheets: dict) -> dict:
    """Of answers those that go to each sheet: a student's to where the student is, else to the shortest sheet.

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
    rows, delimiter = read_rows(sheet, COLUMNS)
    rows = [row for row in rows if row["student"].strip()]
    for row in rows:
        row["version"] = version_in(row["version"])
    return rows, delimiter


def write_sheet(sheet: Path, rows: list[dict], delimiter: str) -> None:
    """Replace the sheet in one go."""
    sheet.parent.mkdir(parents=True, exist_ok=True)
    new = sheet.with_name(sheet.name + ".new")
    write_rows(new, COLUMNS, rows, delimiter=delimiter)
    new.replace(sheet)


def _answers(gradebook, folder, report):
    """nbgrader's grades and comments of all answers that a person marks, by student, exercise, answer and version."""
    grades, comments = {}, {}
    for name, rows in report.items():
        for student, row in rows.items():
            if row["status"] != "graded":
                continue
            mark = version(submitted(folder, student, name))
            for notebook in gradebook.find_submission(name, student).notebooks:
                written = {comment.name: comment for comment in notebook.comments}
                for grade in notebook.grades:
                    if grade.name in written:  # an answer with points of its own, which is what a machine cannot mark
                        grades[student, name, grade.name, mark] = grade
                        comments[student, name, grade.name, mark] = written[grade.name]
    return grades, comments


def version(path: Path) -> str:
    """What tells one version of a hand-in from another: by all that is the student's own in it.

    It begins with a letter, or a spreadsheet would read ``12345e67`` as a number and write another one.
    """
    import nbformat

    cells = nbformat.read(path, as_version=4).cells
    own = [cell.source for cell in cells if cell.metadata.get("nbgrader", {"solution": True})["solution"]]
    return f"v{hashlib.sha256(json.dumps(own).encode()).hexdigest()[:8]}"


def version_in(text: str) -> str:
    """A version as a file has it; older files have it without the letter."""
    return f"v{text}" if re.fullmatch("[0-9a-f]{8}", text) else text
