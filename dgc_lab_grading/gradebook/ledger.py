"""Everyone's marks for every exercise, from tests, manual marks, overrides and late days."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dgc_lab_grading.course.report import graded_rows
from dgc_lab_grading.gradebook.grades import gradebook_of, grades_of, marked_by_hand
from dgc_lab_grading.gradebook.late import Lateness, lateness, read_rules
from dgc_lab_grading.gradebook.overrides import enter, words_of


@dataclass(frozen=True)
class Mark:
    """One student's marks for one exercise.

    Attributes:
        points: the points that count, from 0 to ``most``; those of overrides if it could not be graded.
        reached: the points before any deduction for lateness.
        graded: whether it could be graded.
        late: how late it was; None if in time.
        waiting: answers still to be marked by hand.
        overrides: descriptions of the overrides.
        tasks: points reached and maximum points of each autograded task.
        handed_in: the file's name on the platform.
        number: the platform's number or name for the student; "" if there is none.
        remarks: remarks from grading.
    """

    points: float
    reached: float
    most: float
    graded: bool
    late: Lateness | None
    waiting: tuple[str, ...]
    overrides: tuple[str, ...]
    tasks: dict[str, tuple[float, float]]
    handed_in: str
    number: str
    remarks: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """Everything that a reader of the marks should know, except remarks from grading."""
        by_hand = [f"to be marked by hand: {', '.join(self.waiting)}"] if self.waiting else []
        return [*by_hand, *([self.late.words] if self.late else []), *self.overrides]


def marks_of(folder: Path, exercise: str | None = None) -> dict[str, dict[str, Mark]]:
    """Return everyone's marks, by exercise and student; LabError if nothing has been graded.

    First enters the current ``overrides.csv`` into nbgrader's gradebook, from which feedback pages are made.
    """
    folder = Path(folder).resolve()
    report, rules, marks = graded_rows(folder, exercise), read_rules(folder), {}
    with gradebook_of(folder) as gradebook:
        decided = enter(folder, gradebook)
        for name, rows in sorted(report.items()):
            most, by_hand = gradebook.find_assignment(name).max_score, marked_by_hand(gradebook, name)
            every = grades_of(gradebook, name)
            for student, row in sorted(rows.items()):
                graded = row["status"] == "graded"
                grades = every[student] if graded else {}
                own = [each for each in decided if (each["student"], each["exercise"]) == (student, name)]
                points = {each["task"]: float(each["points"]) for each in own}
                reached = float(sum(grade.score for grade in grades.values()) if graded else sum(points.values()))
                late = lateness(rules, student, name, row.get("time"), reached, most)
                marks.setdefault(name, {})[student] = Mark(
                    points=late.points if late else reached,
                    reached=reached,
                    most=most,
                    graded=graded,
                    late=late,
                    waiting=tuple(sorted(task for task in grades.keys() & by_hand if grades[task].needs_manual_grade)),
                    overrides=tuple(words_of(folder, own)),
                    tasks={task: (grades[task].score, grades[task].max_score) for task in grades.keys() - by_hand},
                    handed_in=row.get("handed_in", ""),
                    number=row.get("number", ""),
                    remarks=tuple(row["remarks"]),
                )
    return marks


def note(mark: Mark) -> str:
    """Return the line of Markdown at the top of a feedback page: the points that count, and why."""
    points = f"**{mark.points:g} of {mark.most:g} points.**"
    return " ".join([points, *(f"{words[0].upper()}{words[1:]}." for words in mark.words)])
