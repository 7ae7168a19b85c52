"""nbgrader's grades of a whole class in one query; queried one by one, two hundred students take ten seconds."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.marking.nbgrader_api import course_api


@contextmanager
def gradebook_of(folder: Path):
    """Open the gradebook of a grading folder; LabError if it is missing, or lacks an exercise."""
    path = Path(folder) / "gradebook.db"
    if not path.exists():  # nbgrader would create an empty one
        raise LabError(f"{path} is missing: run grade again, for each exercise and with all submissions")
    with course_api(folder).gradebook as gradebook:
        from nbgrader.api import MissingEntry

        try:
            yield gradebook
        except MissingEntry as error:
            raise LabError(f"{path} lacks an entry of report.json ({error}): run grade again for it") from None


class OfClass(dict):
    """Entries of the gradebook by student; LabError for a student without any."""

    def __missing__(self, student: str):
        raise LabError(f"gradebook.db has no grades for {student}, who is in report.json: run grade without --only")


def grades_of(gradebook, exercise: str) -> OfClass:
    """Return nbgrader's grades of an exercise, by student and cell name."""
    from nbgrader.api import Assignment, Grade, SubmittedAssignment, SubmittedNotebook
    from sqlalchemy.orm import joinedload, undefer

    query = (
        gradebook.db.query(SubmittedAssignment.student_id, Grade)
        .select_from(Grade)
        .join(SubmittedNotebook, Grade.notebook_id == SubmittedNotebook.id)
        .join(SubmittedAssignment, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
        .filter(Assignment.name == exercise)
        .options(joinedload(Grade.cell), undefer(Grade.max_score))
    )
    grades = OfClass()
    for student, grade in query:
        grades.setdefault(student, {})[grade.name] = grade
    return grades


def marked_by_hand(gradebook, exercise: str) -> set[str]:
    """Return the names of the answers to mark by hand: answer cells that have points."""
    notebooks = gradebook.find_assignment(exercise).notebooks
    answers = {cell.name for notebook in notebooks for cell in notebook.solution_cells}
    return answers & {cell.name for notebook in notebooks for cell in notebook.grade_cells}


def marked_by_machine(gradebook, exercise: str) -> dict:
    """Return the cells with points of all other tasks, by name."""
    by_hand = marked_by_hand(gradebook, exercise)
    cells = (cell for notebook in gradebook.find_assignment(exercise).notebooks for cell in notebook.grade_cells)
    return {cell.name: cell for cell in cells if cell.name not in by_hand}
