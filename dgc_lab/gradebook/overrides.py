"""Points that a person gives in place of a test's, each with a reason: kept in ``overrides.csv`` in the grading folder.

The file is what counts. After each grading it is entered into nbgrader's gradebook anew, so that whoever is graded
again keeps what was decided.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.course.report import graded_rows, locked
from dgc_lab.gradebook.by_hand import points_of, version, version_in
from dgc_lab.gradebook.csv_text import read_rows, write_rows
from dgc_lab.gradebook.grades import gradebook_of, grades_of, marked_by_hand

FILE = "overrides.csv"
COLUMNS = ("student", "exercise", "task", "points", "reason", "version", "when")


def read_overrides(folder: Path) -> list[dict]:
    """All that was decided, a dict for each row of the file."""
    path = Path(folder) / FILE
    if not path.exists():
        return []
    rows = read_rows(path, COLUMNS)
    for number, row in enumerate(rows, 2):
        points_of(row["points"] or "nothing", None, f"{path}, line {number}")
        row["version"] = version_in(row["version"])
    return rows


def override(folder: Path, student: str, exercise: str, task: str, points: float | None, reason: str) -> list[dict]:
    """Decide on a student's points for a task of an exercise, or take that back (``points`` None); all that holds now.

    ``task`` is the ``grade_id`` of a marks cell, or what comes after ``marks-`` in it.

    Raises:
        LabError: there is no such student, exercise, task or override, the points cannot be, or the reason is empty.
    """
    folder = Path(folder).resolve()
    rows = graded_rows(folder, exercise)[exercise]
    if rows.get(student, {}).get("status") != "graded":
        raise LabError(f"{student!r} has no graded hand-in of {exercise}; there are: {', '.join(sorted(rows))}")
    with gradebook_of(folder) as gradebook:
        by_hand = marked_by_hand(gradebook, exercise)
        grades = grades_of(gradebook, exercise)[student]
        grades = {name: grade for name, grade in grades.items() if name not in by_hand}
        name = next((each for each in (task, f"marks-{task}") if each in grades), None)
        if name is None:
            tasks = ", ".join(sorted(each.removeprefix("marks-") for each in grades))
            raise LabError(f"a machine marks no task {task!r} of {exercise}; there are: {tasks}")
        most = grades[name].max_score
    if points is not None and not 0 <= points <= most:
        raise LabError(f"points for {task} must be from 0 to {most:g}, got {points:g}")
    if points is not None and not reason.strip():
        raise LabError("an override needs a reason: --reason TEXT")
    with locked(folder):
        before = read_overrides(folder)
        kept = [row for row in before if (row["student"], row["exercise"], row["task"]) != (student, exercise, name)]
        if points is None and kept == before:
            raise LabError(f"there is no override of {student}'s points for {task} of {exercise} to take back")
        if points is not None:
            made = version(folder / "submitted" / student / exercise / f"{exercise}.ipynb")
            now = dt.datetime.now().isoformat(timespec="minutes")
            kept.append(
                dict(zip(COLUMNS, (student, exercise, name, f"{points:g}", reason.strip(), made, now), strict=True))
            )
        path = folder / FILE
        write_rows(path.with_suffix(".new"), COLUMNS, kept)
        path.with_suffix(".new").replace(path)
        enter(folder)
    return kept


def enter(folder: Path) -> None:
    """Enter what was decided into the gradebook, and take out what no longer holds."""
    folder, decided = Path(folder).resolve(), {}
    for row in read_overrides(folder):
        decided[row["student"], row["exercise"], row["task"]] = float(row["points"])
    with gradebook_of(folder) as gradebook:
        known = {assignment.name for assignment in gradebook.assignments}  # the others are yet to be graded again
        for exercise in graded_rows(folder).keys() & known:
            by_hand = marked_by_hand(gradebook, exercise)
            for student, grades in grades_of(gradebook, exercise).items():
                for task in grades.keys() - by_hand:
                    points, grade = decided.get((student, exercise, task)), grades[task]
                    if (points, False) != (grade.manual_score, grade.needs_manual_grade):
                        grade.manual_score, grade.needs_manual_grade = points, False
        gradebook.db.commit()


def words_of(folder: Path, overrides: list[dict], student: str, exercise: str) -> list[str]:
    """What was decided for one hand-in, in words; also where another version has been handed in since."""
    said = []
    for row in overrides:
        if (row["student"], row["exercise"]) == (student, exercise):
            path = Path(folder) / "submitted" / student / exercise / f"{exercise}.ipynb"
            since = "" if version(path) == row["version"] else "; for an earlier hand-in, look at it again"
            said.append(
                f"{row['task'].removeprefix('marks-')}: {row['points']} points by hand ({row['reason']}){since}"
            )
    return said
