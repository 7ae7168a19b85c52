"""What goes back: a page of feedback for each student, and a table of marks for the learning platform."""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.course.report import graded_rows
from dgc_lab.marking.nbgrader_api import course_api, reason, waiting

HIDDEN = re.compile(r"^[ \t]*### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS[^\n]*\n?", re.MULTILINE | re.DOTALL)
LEAST_TELLING = 12  # characters of a line that gives a hidden test away
OUT = {"output_type": "stream", "name": "stdout", "text": "(left out: it shows tests)\n"}
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body><h1>{title}</h1><p>This submission was not graded:</p><ul>{reasons}</ul></body></html>
"""


def feedback(folder: Path, assignment: str | None = None) -> list[Path]:
    """Write an HTML page for each student and exercise; hidden tests and where they stopped are left out of it.

    They are ``feedback/STUDENT/NN_name/NN_name.html`` in the grading folder. Where nbgrader makes no page of something,
    a LabError says so in its words when all other pages are there.
    """
    from nbgrader.preprocessors import GetGrades

    folder = Path(folder).resolve()
    # What a submission shows must not run in the browser of whoever reads it.
    clean = {"HTMLExporter": {"sanitize_html": True}, "SanitizeHTML": {"enabled": True, "strip": True}}
    api = course_api(folder, GenerateFeedback={"preprocessors": [GetGrades, hide_tests()]}, **clean)
    written, failed = [], []
    for name, rows in graded_rows(folder, assignment).items():
        for student, row in sorted(rows.items()):
            page = folder / "feedback" / student / name / f"{name}.html"
            if row["status"] == "graded":
                result = api.generate_feedback(name, student)
                if not result["success"]:
                    failed.append(f"nbgrader makes no feedback for {student}, {name}: {reason(result)}")
                    continue
            else:
                page.parent.mkdir(parents=True, exist_ok=True)
                reasons = "".join(f"<li>{html.escape(each)}</li>" for each in row["remarks"])
                page.write_text(PAGE.format(title=html.escape(f"{name}: {student}"), reasons=reasons))
            written.append(page)
    if failed:
        raise LabError("\n".join(failed))
    return written


def hide_tests():
    """nbgrader's preprocessor that takes hidden tests out of a page, and their lines out of whatever was printed.

    CSSHTMLHeaderPreprocessor's work, which nbgrader has in the same list, is the exporter's own by default.
    """
    from nbgrader.preprocessors import NbGraderPreprocessor

    class HideTests(NbGraderPreprocessor):
        """Leave out what students must not see."""

        def preprocess(self, nb, resources):
            """All cells."""
            hidden = [line for cell in nb.cells for block in HIDDEN.findall(cell.source) for line in block.split("\n")]
            shown = "\n".join(HIDDEN.sub("", cell.source) for cell in nb.cells)
            telling = {line.strip() for line in hidden if len(line.strip()) >= LEAST_TELLING}
            self.lines = {line for line in telling if line not in shown}
            return super().preprocess(nb, resources)

        def preprocess_cell(self, cell, resources, cell_index):
            """One cell."""
            if cell.cell_type == "code":
                tests = bool(HIDDEN.search(cell.source))
                cell.source = HIDDEN.sub("# further tests\n", cell.source)
                for output in cell.outputs:
                    if tests and output.output_type == "error":
                        last = f"{output.ename}: {output.evalue}" if output.evalue else output.ename
                        output.traceback = [f"A test did not pass. {last}"]
                cell.outputs = [OUT if self._tells(output) else output for output in cell.outputs]
            return cell, resources

        def _tells(self, output) -> bool:
            """Whether a line of a hidden test is in an output."""
            text = json.dumps(output)
            return any(line in text or json.dumps(line)[1:-1] in text for line in self.lines)

    return HideTests


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
