"""From submissions to marks: an instructor's commands on what students hand in, hostile and broken things among it."""

import csv
import json
import os
import socket
import subprocess
import zipfile
from pathlib import Path

import nbformat
import psutil
import pytest

from dgc_lab.course import sandbox, sources

ROOT = Path(__file__).resolve().parent.parent
EXERCISES = ROOT / "notebooks" / "exercises"
FIRST, SECOND, BY_HAND = "04_masking", "05_accumulation", "07_own_model"
PYTHON = Path(os.environ.get("DGC_LAB_COURSE_PYTHON", ROOT / ".venv-course" / "bin" / "python"))
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no instructors' environment: make course")


def course(*arguments, expected=0, cwd=ROOT):
    """An instructor's command; what it printed."""
    command = [PYTHON, "-m", "dgc_lab.course", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=540, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


def answered(name, answers=(), solved=True, variant=0):
    """A student's notebook: the release with these answers, and for all others the solutions or nothing."""
    notebook = nbformat.read(EXERCISES / "release" / name / f"{name}.ipynb", as_version=4)
    source = sources.notebook(EXERCISES / "source", name)
    for cell, given in zip(notebook.cells, source.cells, strict=True):
        grading = cell.metadata.get("nbgrader", {})
        if grading.get("solution"):
            cell.source = dict(answers).get(grading["grade_id"], given.source if solved else cell.source)
    return sources.with_variant(notebook, variant)


def index(notebook, grade_id):
    return next(i for i, c in enumerate(notebook.cells) if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def hostile(outside, port):
    """A solved exercise whose first cells do what they must not; all but the two answers they stand in are right."""
    notebook = answered(FIRST)
    code = nbformat.v4.new_code_cell
    notebook.cells[4:4] = [
        code(f"import pathlib; pathlib.Path({str(outside / 'written')!r}).write_text('here')"),
        code(f"print(open({str(EXERCISES / 'source' / FIRST / f'{FIRST}.md')!r}).read())"),
        code(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"),
        code(f"import subprocess; subprocess.Popen(['sleep', '{outside.stat().st_ino}12345'], start_new_session=True)"),
        code("import numpy as np; np.ones(10**10)"),
        code("while True:\n    print('x' * 1000)"),
    ]
    notebook.cells[index(notebook, "split")].source = "def split(gradient, mask):\n    import os\n    os._exit(0)"
    notebook.cells[
        index(notebook, "elements-to-keep")
    ].source = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
    return notebook


def damaged():
    """A solved exercise with a test deleted, another changed, an answer copied and all metadata lost."""
    notebook = answered(FIRST)
    del notebook.cells[index(notebook, "marks-split")]
    notebook.cells[index(notebook, "marks-top-k-mask")].source += "\npassed = True"
    place = index(notebook, "share-sent")
    notebook.cells.insert(place, nbformat.v4.new_code_cell(notebook.cells[place].source))
    for cell in notebook.cells:
        cell.metadata = {}
    notebook.cells.insert(place, nbformat.v4.new_code_cell("mine = 1\nVARIANT = 7"))
    return notebook


def write(notebook, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Two exercises graded from what a class handed in.

    The folder, what was printed for each, and whether a student's code reached a port of this machine.
    """
    place = tmp_path_factory.mktemp("class")
    handed = place / "handed_in"
    handed.mkdir()
    wrong = {"top-k-mask": "def top_k_mask(gradient, k):\n    return gradient > 0", "split": "x ="}
    write(answered(FIRST), handed / "solved_11_22_04_masking.ipynb")
    write(answered(FIRST, solved=False), handed / "blank_33_44_04_masking-1.ipynb")
    write(answered(FIRST, wrong), handed / "Wrong Answers_5_assignsubmission_file_" / "a.ipynb")
    listener = socket.create_server(("127.0.0.1", 0))
    write(hostile(place, listener.getsockname()[1]), handed / "hostile.ipynb")
    write(damaged(), handed / "04_masking_damaged.ipynb")
    (handed / "pdf.ipynb").write_bytes(b"%PDF-1.7 \xff\xfe")
    write(answered(SECOND), handed / "other_exercise.ipynb")
    (handed / "odd.ipynb").write_text(
        '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": 7}]}'
    )
    (handed / "essay_1_2_answers.docx").write_text("I could not open it")
    options = ("--folder", place / "grading", "--cell-seconds", 8)
    first = course("grade", FIRST, handed, *options, expected=1)
    archive = place / "second.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for student, solved in {"solved": True, "blank": False}.items():
            file.writestr(f"{student}_1_2_05.ipynb", nbformat.writes(answered(SECOND, solved=solved)))
        file.writestr("../escaped.ipynb", "{}")
    second = course("grade", SECOND, archive, *options)
    listener.settimeout(0)
    try:
        reached = bool(listener.accept())
    except BlockingIOError:
        reached = False
    listener.close()
    return place, first, second, reached


def rows(graded, name):
    return json.loads((graded[0] / "grading" / "report.json").read_text())[name]


@pytest.mark.parametrize(
    ("student", "score"), [("solved", 18), ("blank", 0), ("Wrong-Answers", 13), ("damaged", 18), ("hostile", 5)]
)
def test_each_gets_the_marks_that_are_due(graded, student, score):
    row = rows(graded, FIRST)[student]
    assert (row["status"], row["score"], row["most"]) == ("graded", score, 18)


@pytest.mark.parametrize(
    ("student", "words"),
    [("pdf", "no notebook"), ("other_exercise", "another exercise's"), ("essay", "no notebook (.ipynb)"), ("odd", "")],
)
def test_what_cannot_be_graded_is_said_and_holds_up_nobody(graded, student, words):
    row = rows(graded, FIRST)[student]
    assert row["status"] == "not graded"
    assert words in " ".join(row["remarks"])
    assert f"{student}: NOT GRADED" in graded[1]


def test_the_report_says_what_happened(graded):
    damaged, hostile = (" ".join(rows(graded, FIRST)[student]["remarks"]) for student in ("damaged", "hostile"))
    for words in (
        "metadata lost",
        "sets VARIANT",
        "put back: marks-split",
        "more than once, all of which were run: share-sent",
    ):
        assert words in damaged
    for words in ("could not be stopped", "ended its process", "printed more than"):
        assert words in hostile


def test_nothing_lives_on_or_leaves_the_folder(graded):
    place = graded[0]
    assert "leads out of it; left out: ../escaped.ipynb" in graded[2]
    assert {path.name for path in place.iterdir()} - {"written"} == {"handed_in", "grading", "second.zip"}
    running = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not any(f"{place.stat().st_ino}12345" in command for command in running)


@pytest.mark.skipif(sandbox.fence_missing() is not None, reason="this machine allows no fence")
def test_nothing_gets_out(graded):
    place, *_, reached = graded
    assert not (place / "written").exists()
    assert not reached
    notebook = (place / "grading" / "autograded" / "hostile" / FIRST / f"{FIRST}.ipynb").read_text()
    for error in ("FileNotFoundError", "ConnectionRefusedError", "MemoryError"):
        assert error in notebook
    assert "jupytext_version" not in notebook  # it is in the source that the student tried to print


def test_the_second_time_nothing_is_graded_again(graded):
    before = (graded[0] / "grading" / "report.json").read_text()
    printed = course("grade", FIRST, graded[0] / "handed_in", "--folder", graded[0] / "grading", expected=1)
    assert (graded[0] / "grading" / "report.json").read_text() == before
    assert "5 graded, 4 not: essay, odd, other_exercise, pdf" in printed


def test_from_marks_to_feedback_and_a_table(graded):
    place, grading = graded[0], graded[0] / "grading"
    assert "11 pages" in course("feedback", "--folder", grading)
    page = (grading / "feedback" / "Wrong-Answers" / FIRST / f"{FIRST}.html").read_text()
    assert "not kept" in page or "must be True" in page
    assert "HIDDEN" not in page
    assert "no notebook" in (grading / "feedback" / "pdf" / FIRST / f"{FIRST}.html").read_text()
    course("marks", "--folder", grading, "--to", place / "grading" / "marks.csv")
    with (grading / "marks.csv").open() as file:
        table = {row["student"]: row for row in csv.DictReader(file)}
    assert len(table) == 9
    assert [table["solved"][each] for each in (FIRST, SECOND, f"{SECOND} of")] == ["18.0", "20.0", "20.0"]
    assert (table["blank"][FIRST], table["blank"][SECOND]) == ("0.0", "0.0")
    assert (table["pdf"][FIRST], table["pdf"][SECOND]) == ("0.0", "")
    assert "NOT" not in table["solved"]["remarks"]


def test_the_release_is_what_is_committed(tmp_path):
    course("release", "--to", tmp_path)
    for name in sources.assignments(EXERCISES / "source"):
        made = (tmp_path / name / f"{name}.ipynb").read_text()
        assert made == (EXERCISES / "release" / name / f"{name}.ipynb").read_text()


def test_a_variant_of_ones_own(tmp_path):
    (tmp_path / "roster.csv").write_text("student\nJane Doe\njohn\n")
    secret, roster = ("--secret", tmp_path / "secret"), ("--roster", tmp_path / "roster.csv")
    course("release", FIRST, *secret, *roster, "--to", tmp_path / "variants")
    numbers = set()
    for student in ("Jane-Doe", "john"):
        notebook = nbformat.read(tmp_path / "variants" / student / f"{FIRST}.ipynb", as_version=4)
        numbers.add(next(int(c.source.split("= ")[1]) for c in notebook.cells if c.source.startswith("VARIANT")))
    assert len(numbers) == 2
    assert 0 not in numbers
    hers = tmp_path / "variants" / "Jane-Doe" / f"{FIRST}.ipynb"
    number = next(c.source for c in nbformat.read(hers, 4).cells if c.source.startswith("VARIANT")).split("= ")[1]
    write(answered(FIRST, variant=int(number)), tmp_path / "in" / "final version.ipynb")  # the number tells whose it is
    printed = course("grade", FIRST, tmp_path / "in", "--folder", tmp_path / "grading", *secret, *roster)
    assert "Jane-Doe: 18 of 18" in printed


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_what_a_person_marks_goes_into_the_table_and_onto_the_page(tmp_path):
    handed, sheet, marks = tmp_path / "in", tmp_path / "points.csv", tmp_path / "marks.csv"
    folder = ("--folder", tmp_path / "grading")
    enter = ("marks", *folder, "--by-hand", sheet, "--to", marks)
    write(answered(BY_HAND), handed / "jane.ipynb")
    printed = course("grade", BY_HAND, handed, *folder)
    assert "jane: 20 of 40" in printed
    assert "to be marked by hand: bytes, conclusion, experiment, question, text-and-code" in printed
    assert f"0 answers have points in {sheet}, 5 wait for them" in course(*enter)
    assert table(marks)[0][BY_HAND] == "20.0"
    empty = sheet.read_text()
    assert empty.count("jane,07_own_model,") == 5

    filled = empty.replace(",6,,", ",6,5,a *clear* plan").replace(",4,,", ",4,2.5,")
    sheet.write_text(filled.replace(".", ",").replace(",", ";").replace("2;5", "2,5"))  # as other countries' do
    assert "4 answers have points" in course(*enter)
    [jane] = table(marks)
    assert jane[BY_HAND] == "32.5"
    assert jane["remarks"] == f"{BY_HAND}: to be marked by hand: text-and-code"
    course("feedback", *folder)
    assert "a <em>clear</em> plan" in (tmp_path / "grading/feedback/jane" / BY_HAND / f"{BY_HAND}.html").read_text()

    # What was marked is no longer there; where there never was an answer, nothing waits.
    write(answered(BY_HAND, {"question": "Another one."}, solved=False), handed / "jane.ipynb")
    course("grade", BY_HAND, handed, *folder)
    assert f"0 answers have points in {sheet}, 4 wait for them" in course(*enter)
    [jane] = table(marks)
    assert jane[BY_HAND] == "12.5"
    assert jane["remarks"] == f"{BY_HAND}: to be marked by hand: bytes, conclusion, experiment, question"
    assert sheet.read_text().count("jane;") == 5 + 4
