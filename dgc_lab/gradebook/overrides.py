"""Points that a person gives in place of a test's, each with a reason: kept in ``overrides.csv`` in the grading folder.

The file is what counts. Whenever marks are asked for it is entered into nbgrader's gradebook anew, so that whoever is
graded again keeps what was decided, and what is edited by hand counts.
"""

from __future__ import annotations

import datetime as dt
import functools
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.course.csv_text import read_rows, write_rows
from dgc_lab.course.report import graded_rows, locked, read_report, submitted
from dgc_lab.course.submissions import meant
from dgc_lab.gradebook.by_hand import points_of, version, version_in
from dgc_lab.gradebook.grades import gradebook_of, grades_of, marked_by_hand, marked_by_machine

FILE = "overrides.csv"
COLUMNS = ("student", "exercise", "task", "points", "reason", "version", "when")


def read_overrides(folder: Path) -> list[dict]:
    """All that was decided, a dict for each row of the file."""
    path = Path(folder) / FILE
    if not path.exists():
        return []
    rows, _ = read_rows(path, COLUMNS)
    for number, row in enumerate(rows, 2):
        points = points_of(row["points"].strip() or "nothing", None, f"{path}, line {number}")
        row["points"] = f"{points:g}"
        row["version"] = version_in(row["version"])
    return rows


def checked_overrides(folder: Path, gradebook) -> list[dict]:
    """What was decided for those who are in the report, with the whole names of tasks.

    The file is edited by hand, too: a task that there is not, or more points than it has, is a LabError with its line.
    """
    report, prepared, checked = graded_rows(folder), {each.name for each in gradebook.assignments}, []
    tasks_of = functools.cache(lambda exercise: marked_by_machine(gradebook, exercise))
    for number, row in enumerate(read_overrides(folder), 2):
        exercise, place = row["exercise"], f"{folder / FILE}, line {number}"
        if exercise in prepared and row["student"] in report.get(exercise, ()):
            tasks = tasks_of(exercise)
            name = _whole_name(row["task"], tasks, exercise, f"{place}: ")
            points_of(row["points"], tasks[name], place)
            checked.append(row | {"task": name})
    return checked


def unmatched(folder: Path) -> list[str]:
    """Rows of the file that are about nothing that was handed in, in words: perhaps not yet, perhaps never."""
    report = read_report(folder)
    return [
        f"{FILE}, line {number}: {row['student']} has handed in no {row['exercise']}, so this does not count"
        for number, row in enumerate(read_overrides(folder), 2)
        if row["student"] not in report.get(row["exercise"], ())
    ]


def _whole_name(task: str, tasks: dict, exercise: str, place: str = "") -> str:
    """A task's name, of which ``marks-`` may be left out; a LabError where there is no such task."""
    for name in (task, f"marks-{task}"):
        if name in tasks:
            return name
    there = ", ".join(sorted(each.removeprefix("marks-") for each in tasks))
    raise LabError(f"{place}{task!r} is not a machine-marked task of {exercise}; there are: {there}")


def override(folder: Path, student: str, exercise: str, task: str, points: float | None, reason: str) -> list[dict]:
    """Decide on a student's points for a task of an exercise, or take that back (``points`` None); all that holds now.

    ``task`` is the ``grade_id`` of a marks cell, or what comes after ``marks-`` in it.

    Raises:
        LabError: there is no such student, exercise, task or override, the points cannot be, or the reason is empty.
    """
    folder = Path(folder).resolve()
    rows = graded_rows(folder, exercise)[exercise]
    graded = [name for name, row in rows.items() if row["status"] == "graded"]
    student = meant(student, graded, f"graded hand-in of {exercise}")
    with gradebook_of(folder) as gradebook:
        tasks = marked_by_machine(gradebook, exercise)
        name = _whole_name(task, tasks, exercise)
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
            raise LabError(f"there is no override of {student}'s points for {task} of {exercise} to take back")
        if points is not None:
            made = version(submitted(folder, student, exercise))
            now = dt.datetime.now().isoformat(timespec="minutes")
            kept.append(
                dict(zip(COLUMNS, (student, exercise, name, f"{points:g}", reason.strip(), made, now), strict=True))
            )
        path = folder / FILE
        write_rows(path.with_suffix(".new"), COLUMNS, kept)
        path.with_suffix(".new").replace(path)
        with gradebook_of(folder) as gradebook:
            enter(folder, gradebook)
    return kept


def enter(folder: Path, gradebook) -> list[dict]:
    """Enter what was decided into the gradebook, and take out what no longer holds; the rows of `checked_overrides`."""
    rows = checked_overrides(folder, gradebook)
    decided = {(row["student"], row["exercise"], row["task"]): float(row["points"]) for row in rows}
    known = {assignment.name for assignment in gradebook.assignments}  # the others are yet to be graded again
    for exercise in graded_rows(folder).keys() & known:
        by_hand = marked_by_hand(gradebook, exercise)
        for student, grades in grades_of(gradebook, exercise).items():
            for task in grades.keys() - by_hand:
                points, grade = decided.get((student, exercise, task)), grades[task]
                if (points, False) != (grade.manual_score, grade.needs_manual_grade):
                    grade.manual_score, grade.needs_manual_grade = points, False
    gradebook.db.commit()
    return rows


def words_of(folder: Path, overrides: list[dict], student: str, exercise: str) -> list[str]:
    """What was decided for one hand-in, in words; also where another version has been handed in since."""
    said = []
    for row in overrides:
        if (row["student"], row["exercise"]) == (student, exercise):
            made = version(submitted(folder, student, exercise))
            since = "" if made == row["version"] else "; for an earlier hand-in, look at it again"
            said.append(
                f"{row['task'].removeprefix('marks-')}: {row['points']} points by hand ({row['reason']}){since}"
            )
    return said
