"""What goes back to the learning platform: a table of marks."""

from __future__ import annotations

import csv
from pathlib import Path

from dgc_lab.course.report import graded_rows
from dgc_lab.marking.nbgrader_api import course_api, waiting


def marks(folder: Path, target: Path, roster: dict[str, str] | None = None) -> list[dict]:
    """Write the table of marks: a row for each student, for each exercise the marks, what can be reached, and remarks.

    Marks given by hand count (`dgc_lab.course.by_hand`, or nbgrader's own pages), and who waits for them is among the
    remarks. Who has not handed in an exercise has an empty field; who handed in what could not be graded has 0 and the
    reason. With a roster (`dgc_lab.course.roster.read_roster`) there is a row for each name on it, in its order and as
    it is written there, and those who are not on it come last.
    """
    folder = Path(folder).resolve()
    report = graded_rows(folder)
    graded = {student for rows in report.values() for student in rows}
    students = [*(roster or ()), *sorted(graded - set(roster or ()))]
    table = []
    with course_api(folder).gradebook as gradebook:
        for student in students:
            line, remarks = {"student": (roster or {}).get(student, student)}, []
            if roster and student not in roster:
                remarks.append("not on the roster")
            for name, rows in sorted(report.items()):
                most = gradebook.find_assignment(name).max_score
                row = rows.get(student)
                line[name] = "" if row is None else 0.0
                if row is not None and row["status"] == "graded":
                    submission = gradebook.find_submission(name, student)
                    line[name] = submission.score
                    if by_hand := waiting(submission):
                        remarks.append(f"{name}: to be marked by hand: {', '.join(by_hand)}")
                line[f"{name} of"] = most
                remarks += [f"{name}: {remark}" for remark in (row or {}).get("remarks", ())]
            table.append(line | {"remarks": "; ".join(remarks)})
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    with Path(target).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return table
