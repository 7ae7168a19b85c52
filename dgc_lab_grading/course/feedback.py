"""Write a feedback page for each student, without active content or hidden tests.

Each page is made within limits: some texts take hours to turn into HTML.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.course.report import graded_rows, without_control
from dgc_lab_grading.course.sources import BADGES, HIDDEN
from dgc_lab_grading.marking.limited import TooMuch, call_in_fork
from dgc_lab_grading.marking.nbgrader_api import course_api, reason

SECONDS_OF_A_PAGE, MEMORY_OF_A_PAGE = 60, 4 * 2**30  # of processor time, and bytes
SHOWN = ("text/plain", "text/html", "image/png", "image/jpeg")  # types of output on the page
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>{styles}</head>
<body>{body}</body></html>
"""
TAGS = re.findall(
    r"\w+",
    "a abbr b blockquote br caption code col colgroup dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img ins kbd li"
    " ol p pre s samp small span strong sub summary sup table tbody td tfoot th thead tr u ul var",
)
REMOVED_WITH_CONTENT = re.findall(
    r"\w+", "script style iframe object embed template noscript svg math title textarea select"
)
ATTRIBUTES = ("class", "id", "name", "title", "alt", "colspan", "rowspan", "scope", "start", "open")
PICTURE = re.compile(r"data:image/(png|jpeg|gif);base64,[A-Za-z0-9+/=\s]*")
LINK = re.compile(r"(https?://|mailto:|#)", re.IGNORECASE)


def feedback(
    folder: Path, assignment: str | None = None, notes: dict[tuple[str, str], tuple[float, str]] | None = None
) -> tuple[list[Path], list[str]]:
    """Write an HTML page for each student and exercise, without the hidden tests and their tracebacks.

    ``notes`` gives the points that count, which replace nbgrader's, and Markdown text for the top of the page, by
    exercise and student. The pages are ``feedback/STUDENT/NN_name/NN_name.html`` in the grading folder. Returns the
    pages, and nbgrader's message for each page that it cannot make; an older version of such a page is removed.
    """
    from nbgrader.preprocessors import GetGrades

    folder = Path(folder).resolve()
    api = course_api(folder, GenerateFeedback={"preprocessors": [GetGrades, hide_tests(), add_note(notes or {})]})
    written, failed = [], []
    for name, rows in graded_rows(folder, assignment).items():
        for student, row in sorted(rows.items()):
            page = folder / "feedback" / student / name / f"{name}.html"
            title = f"{name}: {student}"
            if row["status"] != "graded":
                page.parent.mkdir(parents=True, exist_ok=True)
                page.write_text(
                    safe_page(_not_graded(name, row, (notes or {}).get((name, student))), title), encoding="utf-8"
                )
            elif why := _failure(api, name, student, page, title):
                failed.append(f"nbgrader cannot write feedback for {student}, {name}: {without_control(why)}")
                page.unlink(missing_ok=True)
                continue
            written.append(page)
    return written, failed


def _failure(*arguments) -> str:
    """Write the page of a graded submission; return why nbgrader cannot, or an empty text."""
    try:
        call_in_fork(_make, *arguments, seconds=SECONDS_OF_A_PAGE, memory=MEMORY_OF_A_PAGE)
    except TooMuch as error:
        return f"its page {error} to make"
    except LabError as error:
        return str(error)
    return ""


def _make(api, name: str, student: str, page: Path, title: str) -> None:
    """Write a page; LabError if nbgrader cannot."""
    result = api.generate_feedback(name, student)
    if not result["success"]:
        raise LabError(reason(result))
    safe = safe_page(page.read_text(encoding="utf-8"), title)
    page.unlink()  # nbgrader makes its files read-only
    page.write_text(safe, encoding="utf-8")


def _not_graded(name: str, row: dict, note: tuple[float, str] | None) -> str:
    """Return a page with the reasons why a submission was not graded, without internal errors, and with its note."""
    reasons = row["remarks"][: row.get("read", len(row["remarks"]))]
    if "limit" in row:
        reasons.append(row["limit"])
    elif len(reasons) < len(row["remarks"]):
        reasons.append("an error in grading, which your instructor can read")
    listed = "".join(f"<li>{html.escape(each)}</li>" for each in reasons)
    points = html.escape(note[1].replace("**", "")) if note else ""
    return f"<h1>{html.escape(name)}</h1><p>This submission was not graded:</p><ul>{listed}</ul><p>{points}</p>"


def hide_tests():
    """Return an nbgrader preprocessor that removes hidden tests, and all output except text and pictures.

    It replaces CSSHTMLHeaderPreprocessor in nbgrader's list, which the exporter runs by default anyway.
    """
    from nbgrader.preprocessors import NbGraderPreprocessor

    class HideTests(NbGraderPreprocessor):
        """Remove everything that students must not see."""

        def preprocess_cell(self, cell, resources, cell_index):
            """Process one cell."""
            if cell.cell_type == "markdown":  # a badge's picture comes from the network
                cell.source = BADGES.sub("", cell.source)
            if cell.cell_type == "code":
                if cell.metadata.get("nbgrader", {}).get("grade"):
                    cell.source = HIDDEN.sub("# further tests\n", cell.source)
                for output in cell.outputs:
                    if "data" in output:
                        output.data = {kind: output.data[kind] for kind in SHOWN if kind in output.data}
                        output.metadata = {}
            return cell, resources

    return HideTests


def add_note(notes: dict[tuple[str, str], tuple[float, str]]):
    """Return an nbgrader preprocessor that puts the note at the top of a page, and its points into the page."""
    from nbformat.v4 import new_markdown_cell
    from nbgrader.preprocessors import NbGraderPreprocessor

    class AddNote(NbGraderPreprocessor):
        """Insert the note before all cells."""

        def preprocess(self, nb, resources):
            """Process the page."""
            info = resources["nbgrader"]
            if note := notes.get((info["assignment"], info["student"])):
                info["score"], words = note
                nb.cells.insert(0, new_markdown_cell(words))
            return nb, resources

    return AddNote


def safe_page(made: str, title: str) -> str:
    """Return a page with the text, tables and pictures of another, and nothing that runs or loads anything.

    Only elements known to be harmless are kept; besides, a policy forbids the browser to run or load anything.

    Example:
        >>> safe_page("<p onclick='x()'>Hi<script>x()</script><img src='http://a.b/c.png'>", "<T>").splitlines()[2:]
        ['<title>&lt;T&gt;</title></head>', '<body><p>Hi<img></p></body></html>']
    """
    from bleach.sanitizer import Cleaner
    from bs4 import BeautifulSoup

    head, _, rest = made.partition("<body")
    styles = "".join(re.findall(r"<style[^>]*>.*?</style>", head, re.DOTALL)) if rest else ""
    soup = BeautifulSoup(rest.partition(">")[2] if rest else made, "html.parser")
    for element in soup(REMOVED_WITH_CONTENT):
        element.decompose()
    cleaner = Cleaner(TAGS, _allowed, protocols=["http", "https", "mailto", "data"], strip=True)
    return PAGE.format(policy=POLICY, title=html.escape(title), styles=styles, body=cleaner.clean(str(soup)))


def _allowed(tag: str, name: str, value: str) -> bool:
    """Return whether to keep an attribute."""
    if (tag, name) == ("img", "src"):
        return bool(PICTURE.fullmatch(value))
    if (tag, name) == ("a", "href"):
        return bool(LINK.match(value))
    return name in ATTRIBUTES
