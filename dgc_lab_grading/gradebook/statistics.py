"""A class's results by task: attempted, right, mean, and the most frequent wrong answers."""

from __future__ import annotations

import html
from collections import Counter
from pathlib import Path

from dgc_lab_grading.course.files import replacing
from dgc_lab_grading.gradebook.answers import answers_of, normal_form, tasks_of, untouched
from dgc_lab_grading.gradebook.ledger import marks_of

COLUMNS = ("exercise", "task", "points", "handed in", "attempted", "right", "mean")
MOST_WRONG, MOST_LINES = 3, 12
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>How the class did</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<style>body {{ font-family: sans-serif; max-width: 60em; margin: 2em auto }} pre {{ background: #f4f4f4 }}
td, th {{ padding: 0 1em 0 0; text-align: right }} td:first-child, th:first-child {{ text-align: left }}</style>
</head><body><h1>How the class did</h1>
{parts}
</body></html>
"""


def statistics(folder: Path, exercise: str | None = None) -> tuple[list[dict], dict[str, dict[str, list]]]:
    """Return a row for each task, and the most frequent wrong answers, with counts, by exercise and task.

    *Attempted* are students who changed the answer or have points for it, perhaps by an override; *right* those with
    full points; *mean* covers all who handed in, blank answers with 0. Wrong answers with the same `normal_form` count
    as one.
    """
    rows, wrong = [], {}
    for name, marks in marks_of(folder, exercise).items():
        answers = answers_of(folder, name)
        marks = {student: mark for student, mark in marks.items() if mark.graded}
        for task in tasks_of(folder, name):
            points = {student: mark.tasks.get(task.name, (0.0, task.most))[0] for student, mark in marks.items()}
            right = {student for student, reached in points.items() if reached >= task.most}
            changed = {
                student
                for student, given in answers.items()
                if any(not untouched(given.get(answer, ""), stub) for answer, stub in task.stubs.items())
            }
            tried = changed | {student for student, reached in points.items() if reached > 0}
            mean = sum(points.values()) / len(points) if points else 0.0
            numbers = (len(points), len(tried), len(right), round(mean, 2))
            title = task.name.removeprefix("marks-")
            rows.append(dict(zip(COLUMNS, (name, title, task.most, *numbers), strict=True)))
            given = [_text(answers[student], task) for student in sorted(changed - right)]
            wrong.setdefault(name, {})[title] = most_common(given)
    return rows, wrong


def _text(answers: dict[str, str], task) -> str:
    """Return a student's text for one task."""
    return "\n\n".join(answers.get(answer, "") for answer in task.stubs)


def most_common(answers: list[str]) -> list[tuple[str, int]]:
    """Return the most frequent answers that occur more than once, in one student's words, with counts.

    Example:
        >>> most_common(["x = 1", "x=1 # one", "x = 2"])
        [('x = 1', 2)]
    """
    forms = [normal_form(answer) for answer in answers]
    first = dict(zip(reversed(forms), reversed(answers), strict=True))
    return [(first[form], count) for form, count in Counter(forms).most_common(MOST_WRONG) if count > 1]


def write_statistics(folder: Path, exercise: str | None = None) -> tuple[Path, list[dict]]:
    """Write ``statistics.csv``, and ``statistics.html`` with a chart; return the page's path and the rows."""
    import pandas

    from dgc_lab_grading.gradebook.figures import class_image

    rows, wrong = statistics(folder, exercise)
    table = pandas.DataFrame(rows, columns=COLUMNS)
    with replacing(Path(folder) / "statistics.csv") as new:
        table.to_csv(new, index=False)
    parts = []
    for name, part in table.groupby("exercise"):
        parts += [f"<h2>{html.escape(name)}</h2>", class_image(part)]
        parts.append(part.drop(columns="exercise").to_html(index=False, border=0))
        for title, answers in wrong[name].items():
            for answer, count in answers:
                lines = answer.strip().split("\n")
                text = "\n".join([*lines[:MOST_LINES], *(["..."] if len(lines) > MOST_LINES else [])])
                parts.append(f"<p>{html.escape(title)}, wrong, given {count} times:</p><pre>{html.escape(text)}</pre>")
    page = Path(folder) / "statistics.html"
    with replacing(page) as new:
        new.write_text(PAGE.format(parts="\n".join(parts)), encoding="utf-8")
    return page, rows
