"""What goes back to each student: a page of feedback."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.course.report import graded_rows
from dgc_lab.marking.nbgrader_api import course_api, reason

HIDDEN = re.compile(r"^[ \t]*### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS[^\n]*\n?", re.MULTILINE | re.DOTALL)
LEAST_TELLING = 12  # characters of a line that gives a hidden test away
OUT = {"output_type": "stream", "name": "stdout", "text": "(left out: it shows tests)\n"}
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body><h1>{title}</h1><p>This submission was not graded:</p><ul>{reasons}</ul></body></html>
"""


def feedback(
    folder: Path, assignment: str | None = None, notes: dict[tuple[str, str], str] | None = None
) -> list[Path]:
    """Write an HTML page for each student and exercise; hidden tests and where they stopped are left out of it.

    At the top of each stands what ``notes`` has for its exercise and student, as Markdown. They are
    ``feedback/STUDENT/NN_name/NN_name.html`` in the grading folder. Where nbgrader makes no page of something, a
    LabError says so in its words when all other pages are there.
    """
    from nbgrader.preprocessors import GetGrades

    folder = Path(folder).resolve()
    # What a submission shows must not run in the browser of whoever reads it.
    clean = {"HTMLExporter": {"sanitize_html": True}, "SanitizeHTML": {"enabled": True, "strip": True}}
    api = course_api(
        folder, GenerateFeedback={"preprocessors": [GetGrades, hide_tests(), add_note(notes or {})]}, **clean
    )
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


def add_note(notes: dict[tuple[str, str], str]):
    """nbgrader's preprocessor that begins a page with the note that there is for it."""
    from nbformat.v4 import new_markdown_cell
    from nbgrader.preprocessors import NbGraderPreprocessor

    class AddNote(NbGraderPreprocessor):
        """Put it before all cells."""

        def preprocess(self, nb, resources):
            """The page."""
            whose = resources["nbgrader"]
            note = notes.get((whose["assignment"], whose["student"]))
            nb.cells[:0] = [new_markdown_cell(note)] if note else []
            return nb, resources

    return AddNote
