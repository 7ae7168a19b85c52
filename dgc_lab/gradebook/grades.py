"""nbgrader's grades of a whole class at once: asked for one by one, two hundred students take ten seconds."""

from __future__ import annotations

from collections import defaultdict


def grades_of(gradebook, exercise: str) -> dict[str, dict]:
    """By student nbgrader's grades of an exercise by their cells' names."""
    from nbgrader.api import Assignment, Grade, SubmittedAssignment, SubmittedNotebook
    from sqlalchemy.orm import joinedload, undefer

    asked = (
        gradebook.db.query(SubmittedAssignment.student_id, Grade)
        .select_from(Grade)
        .join(SubmittedNotebook, Grade.notebook_id == SubmittedNotebook.id)
        .join(SubmittedAssignment, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
        .filter(Assignment.name == exercise)
        .options(joinedload(Grade.cell), undefer(Grade.max_score))
    )
    grades: dict[str, dict] = defaultdict(dict)
    for student, grade in asked:
        grades[student][grade.name] = grade
    return dict(grades)


def marked_by_hand(gradebook, exercise: str) -> set[str]:
    """Names of the answers that a person marks: those that are an answer and have points."""
    notebooks = gradebook.find_assignment(exercise).notebooks
    answers = {cell.name for notebook in notebooks for cell in notebook.solution_cells}
    return answers & {cell.name for notebook in notebooks for cell in notebook.grade_cells}
