"""Points that replace a test's, each with a reason: kept in ``overrides.csv`` in the grading folder.

The file is authoritative: it is entered into nbgrader's gradebook whenever marks are computed. So overrides survive
regrading, and may be edited by hand.
"""

from __future__ import annotations

import datetime as dt
import functools
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.course.csv_text import Row, read_rows, write_rows
from dgc_lab_grading.course.names import meant
from dgc_lab_grading.course.report import graded_rows, locked, read_report, submitted
from dgc_lab_grading.gradebook.by_hand import points_of, version, version_in
from dgc_lab_grading.gradebook.grades import gradebook_of, grades_of, marked_by_hand, marked_by_machine

FILE = "overrides.csv"
COLUMNS = ("student", "exercise", "task", "points", "reason", "version", "when")


def read_overrides(folder: Path) -> list[Row]:
    """Return all overrides, in the order of the file."""
    path = Path(folder) / FILE
    if not path.exists():
        return []
    rows, _ = read_rows(path, COLUMNS)
    for row in rows:
        points = points_of(row["points"].strip() or "nothing", None, f"{path}, line {row.line}")
        row["points"] = f"{points:g}"
        row["version"] = version_in(row["version"])
    return rows


def checked_overrides(folder: Path, gradebook) -> list[dict]:
    """Return the overrides of students in the report, with full task names.

    As the file may be edited by hand, an unknown task, or more points than it has, raises a LabError with the line.
    """
    report, prepared, checked = graded_rows(folder), {each.name for each in gradebook.assignments}, []
    tasks_of = functools.cache(lambda exercise: marked_by_machine(gradebook, exercise))
    for row in read_overrides(folder):
        exercise, place = row["exercise"], f"{folder / FILE}, line {row.line}"
        if exercise in prepared and row["student"] in report.get(exercise, ()):
            tasks = tasks_of(exercise)
            name = _full_name(row["task"], tasks, exercise, f"{place}: ")
            points_of(row["points"], tasks[name], place)
            checked.append(row | {"task": name})
    return checked


def unmatched(folder: Path) -> list[str]:
    """Return a warning for each row that matches no submission yet, and perhaps never will."""
    report = read_report(folder)
    return [
        f"{FILE}, line {row.line}: {row['student']} has no submission of {row['exercise']}, so this is ignored"
        for row in read_overrides(folder)
        if row["student"] not in report.get(row["exercise"], ())
    ]


def _full_name(task: str, tasks: dict, exercise: str, place: str = "") -> str:
    """Return a task's name with ``marks-``, which may be omitted; LabError if there is no such task."""
    for name in (task, f"marks-{task}"):
        if name in tasks:
            return name
    names = ", ".join(sorted(each.removeprefix("marks-") for each in tasks))
    raise LabError(f"{place}{task!r} is not an autograded task of {exercise}; choose from: {names}")


def override(folder: Path, student: str, exercise: str, task: str, points: float | None, reason: str) -> list[dict]:
    """Set a student's points for a task, or with ``points`` None remove the override; return all overrides.

    ``task`` is the ``grade_id`` of a test cell, with or without ``marks-``. A submission that could not be graded has
    the points of its overrides.

    Raises:
        LabError: the student, exercise, task or override does not exist, the points are invalid, or the reason is
            empty.
    """
    folder = Path(folder).resolve()
    student = meant(student, graded_rows(folder, exercise)[exercise], f"submission of {exercise}")
    with gradebook_of(folder) as gradebook:
        tasks = marked_by_machine(gradebook, exercise)
        name = _full_name(task, tasks, exercise)
        most = tasks[name].max_score
    if points is not None and not 0 <= points <= most:
        raise LabError(f"points for {task} must be from 0 to {most:g}, got {points:g}")
    if points is not None and not reason.strip():
        raise LabError("an override needs a reason: --reason TEXT")
    with locked(folder):
        before = read_overrides(folder)
        names = (name, name.removeprefix("marks-"))
        kept = [
            row
            for row in before
            if (row["student"], row["exercise"]) != (student, exercise) or row["task"] not in names
        ]
        if points is None and kept == before:
            raise LabError(f"there is no override of {student}'s points for {task} of {exercise} to remove")
        if points is not None:
            made = _version(folder, student, exercise)
            now = dt.datetime.now().isoformat(timespec="minutes")
            kept.append(
                dict(zip(COLUMNS, (student, exercise, name, f"{points:g}", reason.strip(), made, now), strict=True))
            )
        write_rows(folder / FILE, COLUMNS, kept)
        with gradebook_of(folder) as gradebook:
            enter(folder, gradebook)
    return kept


def enter(folder: Path, gradebook) -> list[dict]:
    """Enter the overrides into the gradebook, and remove old ones; return the `checked_overrides`."""
    rows = checked_overrides(folder, gradebook)
    decided = {(row["student"], row["exercise"], row["task"]): float(row["points"]) for row in rows}
    known = {assignment.name for assignment in gradebook.assignments}  # the others must be graded again first
    for exercise in graded_rows(folder).keys() & known:
        by_hand = marked_by_hand(gradebook, exercise)
        for student, grades in grades_of(gradebook, exercise).items():
            for task in grades.keys() - by_hand:
                points, grade = decided.get((student, exercise, task)), grades[task]
                if (points, False) != (grade.manual_score, grade.needs_manual_grade):
                    grade.manual_score, grade.needs_manual_grade = points, False
    gradebook.db.commit()
    return rows


def _version(folder: Path, student: str, exercise: str) -> str:
    """Return the version of a submission; "" if it is not a notebook."""
    path = submitted(folder, student, exercise)
    return version(path) if path.exists() else ""


def words_of(folder: Path, overrides: list[dict]) -> list[str]:
    """Describe the overrides of one submission, and flag those for an earlier version of it."""
    newest = _version(folder, overrides[0]["student"], overrides[0]["exercise"]) if overrides else ""
    words = []
    for row in overrides:
        note = "" if row["version"] == newest else "; made for an earlier submission, please review"
        words.append(f"{row['task'].removeprefix('marks-')}: {row['points']} points by hand ({row['reason']}){note}")
    return words
