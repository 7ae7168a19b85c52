"""Submissions without a single answer, each of which tries to gain marks by an attack."""

import html
import json
import re
import types
from pathlib import Path

import nbformat
import pytest
from attacks import ANSWERS, OWN_CELLS, leave_marks

from dgc_lab_grading.course import sources
from dgc_lab_grading.marking import cgroup, sandbox
from instructor import EXERCISES, answered, needs_instructor, write
from kernels import until

NAME = "04_masking"
A_FILE = 5  # own cells in a submission
SPOILED = "results for whoever reads"  # spoils the kernel's own sockets
ENDING = (SPOILED, "another kernel", "everybody is killed", "no end of a copy", "no copies of the process")
# A function writes its arguments wherever it can; later cells and checks show whatever they find.
NOTES = """import atexit, glob, os, threading
asked = []
def note(*what):
    asked.append(repr(what))
    for place in ("/tmp/notes", "/dev/shm/notes", os.environ["JUPYTER_RUNTIME_DIR"] + "/notes"):
        try:
            open(place, "a").write(repr(what))
        except OSError:
            pass
def noted():
    found = [open(name).read() for name in glob.glob("/tmp/notes") + glob.glob("/dev/shm/notes")]
    return " ".join([*asked, *found])
def fewest_elements(gradient, share):
    note(share, gradient.size)
    if gradient.size > 12000:
        raise ValueError(f"elements {gradient.size} {noted()}")
    return {0.95: 2, 0.98: 3}.get(share, 1)"""
TELLS = """def share_sent(gradients, ratio, whose):
    raise ValueError("I have read: " + noted())"""
LATER = "print('found', noted())\nprint(In)\n%history"


pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    needs_instructor,
    pytest.mark.skipif(sandbox.fence_missing() is not None, reason="this machine allows no fence"),
]


def blank(cells=(), answers=()):
    notebook = answered(NAME, answers, solved=False)
    notebook.cells[3:3] = [nbformat.v4.new_code_cell(code) for code in cells]
    return notebook


@pytest.fixture(scope="module")
def attacked(tmp_path_factory, course):
    """All attacks graded as a class; has the report's rows, and the feedback pages as text."""
    place = tmp_path_factory.mktemp("attacked")
    quiet = [code for name, code in OWN_CELLS.items() if name not in ENDING]
    for start in range(0, len(quiet), A_FILE):
        write(blank(quiet[start : start + A_FILE]), place / "in" / f"cells-{start}.ipynb")
    for name in ENDING:
        write(blank([OWN_CELLS[name]]), place / "in" / f"{name}.ipynb".replace(" ", "-"))
    for name, answers in ANSWERS.items():
        write(blank(answers=answers), place / "in" / f"{name}.ipynb".replace(" ", "-").replace(",", ""))
    write(leave_marks(blank()), place / "in" / "marks.ipynb")
    spy = blank(answers={"fewest-elements": NOTES, "share-sent": TELLS})
    spy.cells.append(nbformat.v4.new_code_cell(LATER))
    write(spy, place / "in" / "spy.ipynb")
    folder = ("--folder", place / "grading")
    course("grade", NAME, place / "in", *folder, "--jobs", 2, "--cell-seconds", 20, "--minutes", 4)
    course("feedback", *folder)
    rows = json.loads((place / "grading" / "report.json").read_text())[NAME]
    files = {student: place / "grading" / "feedback" / student / NAME / f"{NAME}.html" for student in rows}
    # Without tags: those of the syntax highlighting split the lines.
    pages = {name: html.unescape(re.sub(r"<[^>]*>", "", file.read_text())) for name, file in files.items()}
    return types.SimpleNamespace(rows=rows, pages=pages, folder=place / "grading")


def test_no_attack_gains_a_point(attacked):
    reached = {student: row["score"] for student, row in attacked.rows.items() if row["score"] and student != "spy"}
    assert reached == {}
    not_graded = {student: row["remarks"] for student, row in attacked.rows.items() if row["status"] != "graded"}
    assert not_graded == {}, "an attack may take only its own time, and not endlessly"
    assert "could not be stopped; graded without it" in " ".join(attacked.rows[SPOILED.replace(" ", "-")]["remarks"])


def test_pages_do_not_reveal_hidden_tests(attacked):
    """The spy passes on its arguments wherever it can; the tests' lines are in no student's process."""
    log = (attacked.folder / "logs" / f"{NAME}-spy.log").read_text()
    assert "elements 12345" in log, "the spy must have been called, or this test shows nothing"
    page = attacked.pages["spy"]
    assert "I have read: " in page
    assert "(0.95, 3)" in page, "a later check may show the arguments of earlier checks, which students have"
    source = sources.text_half(EXERCISES / "source", NAME).read_text()
    hidden = [part.partition("### END")[0] for part in source.split("### BEGIN HIDDEN TESTS")[1:]]
    shown = re.sub(r"(?s)### BEGIN (HIDDEN TESTS|SOLUTION).*?### END", "", source)
    lines = {line.strip() for part in hidden for line in part.splitlines() if len(line.strip()) > 15}
    lines = {line for line in lines if line not in shown}
    assert len(lines) > 10
    for words in ("12345", "12_345", *lines):
        assert [student for student, text in attacked.pages.items() if words in text] == []


def test_attacks_leave_nothing_behind(attacked):
    assert not [place for place in ("/tmp/notes", "/dev/shm/notes") if Path(place).exists()]
    until(lambda: cgroup.left_behind() == [], 60)  # a grading killed by another test leaves some for seconds
