"""One table of marks for everybody and every exercise, as CSV."""

from __future__ import annotations

from pathlib import Path

from dgc_lab.course.csv_text import write_rows
from dgc_lab.gradebook.ledger import marks_of


def marks(folder: Path, target: Path, roster: dict[str, str] | None = None, exercise: str | None = None) -> list[dict]:
    """Write the table of marks: a row for each student, and for each exercise, or for one, the marks, what can
    be reached, and remarks.

    Marks given by hand count (`dgc_lab.gradebook.by_hand`, or nbgrader's own pages), and who waits for them is among
    the remarks, as is who was late and what was decided in place of a test. Who has not handed in an exercise has an
    empty field; who handed in what could not be graded has 0 and the reason. With a roster
    (`dgc_lab.course.roster.read_roster`) there is a row for each name on it, in its order and as it is written there,
    and those who are not on it come last.
    """
    known = marks_of(folder, exercise)
    graded = {student for rows in known.values() for student in rows}
    table = []
    for student in [*(roster or ()), *sorted(graded - set(roster or ()))]:
        line, remarks = {"student": (roster or {}).get(student, student)}, []
        if roster and student not in roster:
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
