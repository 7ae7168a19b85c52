"""One table of marks for all students and exercises, as CSV."""

from __future__ import annotations

from pathlib import Path

from dgc_lab_grading.course.csv_text import write_rows
from dgc_lab_grading.course.names import spelled_like
from dgc_lab_grading.gradebook.ledger import marks_of


def marks(folder: Path, target: Path, roster: dict[str, str] | None = None, exercise: str | None = None) -> list[dict]:
    """Write the table of marks: a row per student, with marks and maximum for each exercise, or for one, and remarks.

    Manual marks count, from `by_hand` or nbgrader's own pages. Remarks mention answers still to be marked by hand,
    lateness and overrides. The field is empty for a student who has not handed in. If a submission could not be graded,
    it has the points of its overrides, or 0, and the remarks give the reason. With a roster (from `read_roster`), there
    is a row for each name on it, in its order and spelling; other students come last.
    """
    known = marks_of(folder, exercise)
    graded = {student for rows in known.values() for student in rows}
    listed = {spelled_like(student, graded): name for student, name in (roster or {}).items()}
    table = []
    for student in [*listed, *sorted(graded - set(listed))]:
        line, remarks = {"student": listed.get(student, student)}, []
        if roster and student not in listed:
            remarks.append("not on the roster")
        for name, rows in known.items():
            mark = rows.get(student)
            line[name] = "" if mark is None else mark.points
            line[f"{name} of"] = next(iter(rows.values())).most
            remarks += [f"{name}: {words}" for words in ([*mark.words, *mark.remarks] if mark else [])]
        table.append(line | {"remarks": "; ".join(remarks)})
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    write_rows(Path(target), list(table[0]), table)
    return table
