"""List answers that two students share and few others have, to be reviewed: the similarity may have any cause."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations
from pathlib import Path

from dgc_lab_grading.course.csv_text import write_rows
from dgc_lab_grading.gradebook.answers import Task, answers_of, normal_form, size, tasks_of, untouched
from dgc_lab_grading.gradebook.ledger import marks_of

LEAST_SIZE = 30  # nodes of a syntax tree; shorter answers are alike by chance
COMMON = 0.1  # answers that a larger share of the class gives are obvious; those of only two students are always listed
COLUMNS = ("exercise", "first", "second", "bits", "answers", "of them wrong")


def similar(folder: Path, exercise: str | None = None) -> list[dict]:
    """Return pairs of students with similar answers, the most conspicuous first.

    Answers are compared in their `normal_form`. Answers that a task suggests are left out: those like our solution,
    short ones, and those of more than a tenth of the class. Each remaining answer counts ``log2(class / how many have
    it)`` bits, the information that it gives about its author.
    """
    rows = []
    for name, marks in marks_of(folder, exercise).items():
        answers = answers_of(folder, name)
        shared: dict[tuple[str, str], list[tuple[str, float, bool]]] = defaultdict(list)
        tests: dict[str, list[Task]] = defaultdict(list)  # by answer: several tests may test the same one
        for task in tasks_of(folder, name):
            for answer in task.stubs:
                tests[answer].append(task)
        for answer, tasks in tests.items():
            texts = {who: given.get(answer, "") for who, given in answers.items()}
            for students in groups(texts, tasks[0].stubs[answer], tasks[0].solutions[answer]).values():
                bits = math.log2(len(answers) / len(students))
                for pair in combinations(students, 2):
                    points = marks[pair[0]].tasks
                    wrong = any(points.get(task.name, (0.0, task.most))[0] < task.most for task in tasks)
                    shared[pair].append((answer, bits, wrong))
        for (first, second), every in shared.items():
            names, wrong = [each[0] for each in every], [each[0] for each in every if each[2]]
            bits = round(sum(each[1] for each in every), 1)
            row = (name, first, second, bits, ", ".join(names), ", ".join(wrong))
            rows.append(dict(zip(COLUMNS, row, strict=True)))
    return sorted(rows, key=lambda row: (-row["bits"], row["first"], row["second"]))


def groups(answers: dict[str, str], stub: str, solution: str) -> dict[str, list[str]]:
    """Group the students by normal form, for answers to one question that some share and most do not.

    Example:
        >>> odd = "def f(x):\\n    s = 0\\n    for i in range(9):\\n        s += x[i] * x[i] - i\\n    return s"
        >>> alike = odd.replace("s ", "total ").replace("return s", "return total")
        >>> list(groups({"a": odd, "b": alike, "c": "def f(x): return x"}, "...", "f = sum").values())
        [['a', 'b']]
    """
    by_form = defaultdict(list)
    forced = normal_form(solution)
    for student, answer in sorted(answers.items()):
        if not untouched(answer, stub) and size(answer) >= LEAST_SIZE:
            by_form[normal_form(answer)].append(student)
    most = max(2, int(COMMON * len(answers)))
    return {form: who for form, who in by_form.items() if form != forced and 2 <= len(who) <= most}


def write_similar(folder: Path, exercise: str | None = None) -> tuple[Path, list[dict]]:
    """Write the list to ``similar.csv`` in the grading folder; return its path and its rows."""
    rows, path = similar(folder, exercise), Path(folder) / "similar.csv"
    write_rows(path, COLUMNS, rows)
    return path, rows
