"""A small class from release to marks and feedback, with a hostile submission and a grading that is killed."""

import csv
import json
import re
import socket
import sys
import types
from pathlib import Path

import nbformat
import psutil
import pytest
from hand_ins import FIRST, assert_no_hidden_test, cunning, grade_and_kill, hostile, variant_of

from dgc_lab_grading.course import grading, sources
from dgc_lab_grading.marking import sandbox
from dgc_lab_grading.marking.nbgrader_api import STUB
from instructor import answered, index, needs_instructor, write

pytestmark = needs_instructor
SCORES = {"Ann": 15, "Bo-Wrong": 11, "cunning": 0, "hostile": 14}
# Lines on top of answers: two that run, and some that end their cell.
ON_TOP = {
    "fewest-elements": "!echo written in a terminal\nfrom google.colab import drive\ndrive.mount('/content/drive')\n",
    "top-k-mask": "%matplotlib widget\n",
    "split": "assert math.pi > 3\nname = input('Who are you? ')\n",
    "my-threshold": "import nowhere\n",
    "share-sent": "!pip install seaborn\n%pip install seaborn\n",
}
# A widget that captures output, and messages that no notebook can hold. The label and the character are one string,
# because IPython may send two writes as two outputs.
FRONT_END = """import json, ipywidgets
out = ipywidgets.Output()
display(out)
with out:
    print("captured")
exit()
# %%
from ipykernel.kernelapp import IPKernelApp
kernel = IPKernelApp.instance().kernel
kernel.session.pack = lambda content: json.dumps(content, default=str).encode()
def publish(kind, content):
    kernel.session.send(kernel.iopub_socket, kind, content, parent=kernel.get_parent())
half = "\\udcff"
print(f"half a character: {half}")
publish("display_data", {"data": {"text/plain": 7, "text/html": ["\\ud800"]}, "metadata": half})
publish("display_data", {"data": "x", "metadata": {}, "transient": {"display_id": "x"}})
publish("stream", {"name": "stdout", "text": {"a": [None]}})
publish("execute_input", {"execution_count": "seven", "code": ""})"""


@pytest.fixture(scope="module")
def graded(tmp_path_factory, course):
    """An exercise released to a roster, and graded: the first run is killed, the second completes it."""
    place = tmp_path_factory.mktemp("class")
    (place / "roster.csv").write_text("student\nAnn\nBo Wrong\ncunning\nhostile\nPia\nAbsent Al\n")
    names = ("--secret", place / "secret", "--roster", place / "roster.csv")
    course("release", FIRST, *names, "--to", place / "variants")
    variants = {path.parent.name: variant_of(nbformat.read(path, 4)) for path in place.glob("variants/*/*.ipynb")}
    wrong = {"top-k-mask": "def top_k_mask(gradient, k):\n    return gradient > 0", "split": "x ="}
    wrong |= {"share-sent": "def share_sent(gradients, ratio, whose):\n    return 0.5"}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        submissions = {
            "final version": solved_in_a_hurry(variants["Ann"]),
            "Bo Wrong": answered(FIRST, wrong, variant=variants["Bo-Wrong"]),
            "cunning": sources.with_variant(cunning(place), variants["cunning"]),
            "hostile": hostile(place, port, variants["hostile"], endless=False),
        }
        for name, notebook in submissions.items():
            write(notebook, place / "in" / f"{name}.ipynb")
        (place / "in" / "Pia.ipynb").write_bytes(b"%PDF-1.7 \xff\xfe")
        grade = (FIRST, place / "in", *names, "--folder", place / "grading")
        killed, alive = grade_and_kill(*grade)
        before = rows(place)
        said = course("grade", *grade, expected=1)
        listener.settimeout(0)
        try:
            reached = bool(listener.accept())
        except BlockingIOError:
            reached = False
    return types.SimpleNamespace(
        place=place, variants=variants, said=said, killed=killed, alive=alive, before=before, reached=reached
    )


def solved_in_a_hurry(variant):
    """A solved exercise as an editor on Windows writes it, with lines that have nothing to do with its answers."""
    notebook = answered(FIRST, variant=variant)
    notebook.cells[3:3] = [nbformat.v4.new_code_cell(source) for source in FRONT_END.split("\n# %%\n")]
    notebook.cells[index(notebook, "setup")].source += "\nimport math"
    for name, line in ON_TOP.items():
        cell = notebook.cells[index(notebook, name)]
        cell.source = line + cell.source
    below, place = index(notebook, "guaranteed-threshold"), index(notebook, "marks-guaranteed-threshold")
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(notebook.cells[below].source))
    notebook.cells[below].source = f"def guaranteed_threshold(gradient, ratio, stride):\n    {STUB}"
    for cell in notebook.cells:
        cell.source = cell.source.replace("\n", "\r\n")
    return notebook


def rows(place):
    return json.loads((place / "grading" / "report.json").read_text())[FIRST]


def test_each_student_gets_the_marks_due(graded):
    assert len({0, *graded.variants.values()}) == 1 + 6
    found = {student: row for student, row in rows(graded.place).items() if row["status"] == "graded"}
    assert {student: row["score"] for student, row in found.items()} == SCORES, found
    assert {row["most"] for row in found.values()} == {18}
    assert "handed in as final-version" in found["Ann"]["remarks"]


def test_lines_on_top_of_an_answer_cost_no_points(graded):
    remarks = rows(graded.place)["Ann"]["remarks"]
    said = " ".join(remarks)
    assert "lines that the student added to setup were kept" in said
    for task, line, before in (("top-k-mask", 1, "def top_k_mask"), ("split", 2, "def split")):
        assert re.search(rf"\({task}\) ended at line {line}, before {before}; the definitions below", said), said
    assert "(my-threshold) ended at line 1, before my_threshold" in said
    assert "fewest-elements" not in said
    assert "more than once, all of which were run: guaranteed-threshold" in said, "the answer is in a cell below"
    assert "accesses checks" not in said
    page = (graded.place / "grading" / "autograded" / "Ann" / FIRST / f"{FIRST}.ipynb").read_text()
    for words in ("written in a terminal", "captured", "half a character: ?"):
        assert words in page, words
    assert "(the student's own) sent a message that was left out" in said


def test_cells_that_are_not_valid_python_are_named(graded):
    """The student's Python may be newer than the instructor's."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"(split) is not valid in Python {version}" in " ".join(rows(graded.place)["Bo-Wrong"]["remarks"])


def test_a_wrong_function_costs_only_its_own_task(graded):
    said = " ".join(rows(graded.place)["Bo-Wrong"]["remarks"])
    assert "(marks-my-counts) right with the reference answer in place of share_sent, split, top_k_mask" in said


def test_a_file_that_is_no_notebook_is_named(graded):
    row = rows(graded.place)["Pia"]
    assert row["status"] == "not graded"
    assert "not a notebook" in " ".join(row["remarks"])
    assert "4 graded, 1 not graded: Pia" in graded.said


def test_killed_grading_leaves_nothing_and_resumes(graded):
    assert not graded.alive
    done = [name for name, row in graded.before.items() if row["status"] == "graded"]
    assert 1 <= len(done) < len(SCORES)
    now = rows(graded.place)
    assert all(now[name] == graded.before[name] for name in graded.before)
    printed = re.findall(r"\] ([\w-]+): ([\d.]+) of 18", graded.killed)  # the report may be one row ahead
    assert printed
    assert all(graded.before[name]["score"] == float(score) for name, score in printed)
    assert not list(Path("/tmp").glob(f"{grading.home_prefix(graded.place.resolve() / 'grading')}*"))


@pytest.mark.skipif(sandbox.fence_missing() is not None, reason="this machine allows no sandbox")
def test_a_submission_stays_in_its_sandbox(graded):
    assert {path.name for path in graded.place.iterdir()} == {"in", "grading", "roster.csv", "secret", "variants"}
    assert not graded.reached
    running = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not any(f"{graded.place.stat().st_ino}12345" in command for command in running)
    notebook = (graded.place / "grading" / "autograded" / "hostile" / FIRST / f"{FIRST}.ipynb").read_text()
    for error in ("FileNotFoundError", "ConnectionRefusedError", "MemoryError", "Read-only file system"):
        assert error in notebook
    assert "jupytext_version" not in notebook  # it is in the source that the student tried to print


def test_feedback_has_points_and_no_hidden_test(graded, course):
    folder = graded.place / "grading"
    assert "5 pages" in course("feedback", "--folder", folder)
    pages = {path.parts[-3]: path.read_text() for path in (folder / "feedback").glob(f"*/{FIRST}/*.html")}
    assert "11 of 18 points" in pages["Bo-Wrong"]
    assert "not a notebook" in pages["Pia"]
    assert "<script>alert(1)" not in pages["cunning"]
    assert "<td>kept</td>" in pages["cunning"]
    assert_no_hidden_test(pages.values())


def test_the_table_of_marks_has_the_whole_roster(graded, course):
    target = graded.place / "grading" / "marks.csv"
    course("marks", "--folder", graded.place / "grading", "--to", target, "--roster", graded.place / "roster.csv")
    with target.open(encoding="utf-8-sig") as file:
        marks = {row["student"]: row[FIRST] for row in csv.DictReader(file)}
    assert marks == {
        **{"Ann": "15.0", "Bo Wrong": "11.0", "cunning": "0.0", "hostile": "14.0", "Pia": "0.0", "Absent Al": ""}
    }
