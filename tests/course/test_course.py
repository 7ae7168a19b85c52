"""From submissions to marks: an instructor's commands on what students hand in, hostile and broken things among it."""

import csv
import html
import json
import re
import socket
import subprocess
import types
import zipfile
from pathlib import Path

import nbformat
import psutil
import pytest

from dgc_lab.course import grading, sources
from dgc_lab.marking import sandbox
from instructor import EXERCISES, PYTHON, ROOT, answered, index, needs_instructor, write

FIRST, SECOND, BY_HAND = "04_masking", "05_accumulation", "07_own_model"
pytestmark = needs_instructor


def hostile(outside, port):
    """A solved exercise whose first cells do what they must not; all but the two answers they stand in are right."""
    notebook = answered(FIRST)
    code = nbformat.v4.new_code_cell
    notebook.cells[4:4] = [
        code(f"import pathlib; pathlib.Path({str(outside / 'written')!r}).write_text('here')"),
        code(f"print(open({str(EXERCISES / 'source' / FIRST / 'text' / f'{FIRST}.md')!r}).read())"),
        code(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"),
        code(f"import subprocess; subprocess.Popen(['sleep', '{outside.stat().st_ino}12345'], start_new_session=True)"),
        code("import numpy as np; np.ones(10**10)"),
        code("while True:\n    print('x' * 1000)"),
    ]
    notebook.cells[index(notebook, "split")].source = "def split(gradient, mask):\n    import os\n    os._exit(0)"
    notebook.cells[
        index(notebook, "fewest-elements")
    ].source = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
    return notebook


def damaged():
    """A solved exercise: a test deleted, another changed, an answer copied, names used twice, all metadata lost."""
    notebook = answered(FIRST)
    del notebook.cells[index(notebook, "marks-split")]
    notebook.cells[index(notebook, "marks-top-k-mask")].source += "\npassed = True"
    place = index(notebook, "share-sent")
    notebook.cells.insert(place, nbformat.v4.new_code_cell(notebook.cells[place].source))
    for cell in notebook.cells:
        cell.metadata = {}
    notebook.cells.insert(place, nbformat.v4.new_code_cell("sum, np = 1, 2\nVARIANT = 7"))
    return notebook


CUNNING = """
import dgc_lab
dgc_lab.check = lambda *answer: True
# %%
import ast
class NoAssert(ast.NodeTransformer):
    def visit_Assert(self, node):
        return ast.Pass()
get_ipython().ast_transformers.append(NoAssert())
# %%
get_ipython().events.register("pre_run_cell", lambda info: print(info.raw_cell))
# %%
get_ipython().showtraceback = lambda *error, **more: None
# %%
from IPython.display import HTML
HTML("<script>alert(1)</script><table><tr><td>kept</td></tr></table>")
# %%
import json, os, pathlib
folder = pathlib.Path(os.environ["JUPYTER_RUNTIME_DIR"])
for spec in [*folder.rglob("kernel.json"), *folder.parent.rglob("kernel.json")]:
    spec.write_text(json.dumps({"argv": ["touch", "OUTSIDE/escaped"], "display_name": "x", "language": "python"}))
os._exit(0)
"""


# Prints more than it may, and the interrupt takes a second to come, as it can on a busy machine.
INTERRUPTED_LATE = """import time
kernel = get_ipython().kernel
send = kernel._send_interrupt_children
kernel._send_interrupt_children = lambda: (time.sleep(1), send())
print("x" * 30_000_000)"""


def interrupted_late():
    """A solved exercise with such a cell; an interrupt that is not waited for strikes an answer after it."""
    notebook = answered(FIRST)
    place = index(notebook, "fewest-elements")
    notebook.cells[place].source = f"time.sleep(2)\n{notebook.cells[place].source}"
    notebook.cells.insert(3, nbformat.v4.new_code_cell(INTERRUPTED_LATE))
    return notebook


# Prints the test that called it, and gives the test's cell the number 4 as its result.
FOUR_POINTS = """def top_k_mask(gradient, k):
    import linecache, sys
    frame = sys._getframe()
    while frame:
        if "/ipykernel_" in frame.f_code.co_filename:
            print("".join(linecache.getlines(frame.f_code.co_filename)))
        frame = frame.f_back
    get_ipython().displayhook(4)"""


def cunning(outside):
    """An untouched exercise whose own cells try to get marks all the same, and the tests, and out."""
    notebook = answered(FIRST, {"top-k-mask": FOUR_POINTS}, solved=False)
    own = CUNNING.strip().replace("OUTSIDE", str(outside)).split("\n# %%\n")
    notebook.cells[3:3] = [nbformat.v4.new_code_cell(code) for code in own]
    # While a test runs nothing is put back: this one replaces what it is tested with.
    notebook.cells[index(notebook, "share-sent")].source = (
        "def share_sent(gradients, ratio, whose):\n    import dgc_lab.exercises.masking as checks, numpy\n"
        "    checks.expect = lambda *words: None\n    numpy.isclose = lambda *numbers: True\n    return 0.5"
    )
    notebook.cells.append(nbformat.v4.new_code_cell("print(In)\n%history"))
    return notebook


def number_in(notebook):
    return next(int(cell.source.split("= ")[1]) for cell in notebook.cells if cell.source.startswith("VARIANT ="))


def stopped_in_the_middle(place, *arguments):
    """Grade from the command line, and be killed after the first mark; what was printed until then."""
    command = [PYTHON, "-m", "dgc_lab.course", "grade", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    printed = []
    while " of 18" not in "".join(printed[-1:]):
        printed.append(process.stdout.readline())
        assert printed[-1], printed
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=60)
    return "".join(printed), alive


@pytest.fixture(scope="module")
def graded(tmp_path_factory, course):
    """Two exercises graded from what a class handed in.

    The folder, what was printed for each, whether a student's code reached a port of this machine, and of a first run
    that was killed in the middle its report and which of its processes lived on.
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
    write(cunning(place), handed / "cunning.ipynb")
    write(damaged(), handed / "04_masking_damaged.ipynb")
    chatty = answered(FIRST)
    chatty.cells.insert(3, nbformat.v4.new_code_cell("print('x' * 30_000_000)"))
    write(chatty, handed / "chatty.ipynb")
    write(interrupted_late(), handed / "late.ipynb")
    (handed / "pdf.ipynb").write_bytes(b"%PDF-1.7 \xff\xfe")
    write(answered(SECOND), handed / "other_exercise.ipynb")
    (handed / "odd.ipynb").write_text(
        '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": 7}]}'
    )
    (handed / "essay_1_2_answers.docx").write_text("I could not open it")
    folder = ("--folder", place / "grading", "--jobs", 2)
    options = (FIRST, handed, *folder, "--cell-seconds", 20)
    killed = stopped_in_the_middle(place, *options)
    before = rows(place, FIRST)
    first = course("grade", *options, expected=1)

    (place / "roster.csv").write_text("student\nSolved\nblank\nAbsent Ann\n")
    names = ("--secret", place / "secret", "--roster", place / "roster.csv")
    course("release", SECOND, *names, "--to", place / "variants")
    released = [nbformat.read(place / "variants" / name / f"{SECOND}.ipynb", 4) for name in ("Solved", "blank")]
    numbers = [number_in(notebook) for notebook in released]
    archive = place / "second.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("class/final version.ipynb", nbformat.writes(answered(SECOND, variant=numbers[0])))
        file.writestr("class/blank_1_2_05.ipynb", nbformat.writes(released[1]))
        file.writestr("../escaped.ipynb", "{}")
    second = course("grade", SECOND, archive, *folder, *names)
    listener.settimeout(0)
    try:
        reached = bool(listener.accept())
    except BlockingIOError:
        reached = False
    listener.close()
    return types.SimpleNamespace(
        place=place, first=first, second=second, reached=reached, killed=killed, before=before, numbers=numbers
    )


def rows(place, name):
    return json.loads((place / "grading" / "report.json").read_text())[name]


# In the damaged one np and sum are other things where the last values are calculated.
SCORES = {
    "solved": 18,
    "blank": 0,
    "Wrong-Answers": 14,
    "damaged": 14,
    "hostile": 15,
    "cunning": 0,
    "chatty": 18,
    "late": 18,
}


@pytest.mark.parametrize(("student", "score"), SCORES.items())
def test_each_gets_the_marks_that_are_due(graded, student, score):
    row = rows(graded.place, FIRST)[student]
    assert (row["status"], row["score"], row["most"]) == ("graded", score, 18), row["remarks"]


@pytest.mark.parametrize(
    ("student", "words"),
    [
        ("pdf", "no notebook"),
        ("other_exercise", "another exercise's"),
        ("essay", "no notebook (.ipynb)"),
        ("odd", "no notebook"),
    ],
)
def test_what_cannot_be_graded_is_said_and_holds_up_nobody(graded, student, words):
    row = rows(graded.place, FIRST)[student]
    assert row["status"] == "not graded"
    assert words in " ".join(row["remarks"])
    assert f"{student}: NOT GRADED" in graded.first


@pytest.mark.parametrize(
    ("student", "remarks"),
    [
        (
            "damaged",
            "metadata lost|sets VARIANT|put back: marks-split|more than once, all of which were run: share-sent",
        ),
        ("hostile", "could not be stopped|ended its process|printed more than"),
        ("cunning", "read it before you believe|ended its process"),
    ],
)
def test_the_report_says_what_happened(graded, student, remarks):
    said = " ".join(rows(graded.place, FIRST)[student]["remarks"])
    for words in remarks.split("|"):
        assert words in said


def test_what_a_cell_printed_over_its_limit_is_not_held_against_those_after_it(graded):
    (said,) = rows(graded.place, FIRST)["chatty"]["remarks"]
    assert said == "cell 4 (the student's own) printed more than 1,000,000 characters and was stopped"


def test_nothing_lives_on_or_leaves_the_folder(graded):
    place = graded.place
    assert "leads out of it; left out: ../escaped.ipynb" in graded.second
    mine = {"handed_in", "grading", "second.zip", "roster.csv", "secret", "variants"}
    assert {path.name for path in place.iterdir()} - {"written"} == mine
    running = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not any(f"{place.stat().st_ino}12345" in command for command in running)
    assert not list(Path("/tmp").glob(f"{grading.home_prefix(place.resolve() / 'grading')}*"))


def test_what_was_killed_leaves_nothing_and_goes_on_where_it_was(graded):
    printed, alive = graded.killed
    assert not alive
    done = [name for name, row in graded.before.items() if row["status"] == "graded"]
    assert 1 <= len(done) < len(SCORES)
    now = rows(graded.place, FIRST)
    assert all(now[name] == graded.before[name] for name in graded.before)
    told = re.findall(r"\] ([\w-]+): ([\d.]+) of 18", printed)  # the report may know one more than was printed yet
    assert told
    assert all(graded.before[name]["score"] == float(score) for name, score in told)


@pytest.mark.skipif(sandbox.fence_missing() is not None, reason="this machine allows no fence")
def test_nothing_gets_out(graded):
    assert not (graded.place / "written").exists()
    assert not graded.reached
    notebook = (graded.place / "grading" / "autograded" / "hostile" / FIRST / f"{FIRST}.ipynb").read_text()
    for error in ("FileNotFoundError", "ConnectionRefusedError", "MemoryError"):
        assert error in notebook
    assert "jupytext_version" not in notebook  # it is in the source that the student tried to print


def test_the_second_time_nothing_is_graded_again(graded, course):
    before = (graded.place / "grading" / "report.json").read_text()
    printed = course("grade", FIRST, graded.place / "handed_in", "--folder", graded.place / "grading", expected=1)
    assert (graded.place / "grading" / "report.json").read_text() == before
    assert "8 graded, 4 not: essay, odd, other_exercise, pdf" in printed


def test_a_variant_of_ones_own(graded):
    assert len({0, *graded.numbers}) == 3
    assert "Solved: 20 of 20" in graded.second  # the number in the notebook tells whose it is
    assert "handed in as final-version" in graded.second
    assert "blank: 0 of 20" in graded.second


def test_from_marks_to_feedback_and_a_table(graded, course):
    folder = graded.place / "grading"
    assert "14 pages" in course("feedback", "--folder", folder)
    pages = {path.parts[-3]: path.read_text() for path in (folder / "feedback").glob(f"*/{FIRST}/*.html")}
    assert "not kept" in pages["Wrong-Answers"] or "must be True" in pages["Wrong-Answers"]
    assert "no notebook" in pages["pdf"]
    assert "<script>alert(1)" not in pages["cunning"]
    assert "<td>kept</td>" in pages["cunning"]
    source = sources.text_half(EXERCISES / "source", FIRST).read_text()
    blocks = r"(?s)### BEGIN HIDDEN TESTS\n(.*?)### END"
    shown = re.sub(blocks, "", source)
    tests = {line.strip() for block in re.findall(blocks, source) for line in block.splitlines()}
    tests = {line for line in tests if len(line) > 15 and line not in shown}
    assert len(tests) > 10
    for page in pages.values():
        text = html.unescape(re.sub(r"<[^>]*>", "", page))
        assert not [line for line in tests if line in text]

    course("marks", "--folder", folder, "--to", folder / "marks.csv", "--roster", graded.place / "roster.csv")
    lines = table(folder / "marks.csv")
    assert [line["student"] for line in lines][:3] == ["Solved", "blank", "Absent Ann"]
    by_name = {line["student"]: line for line in lines}
    assert len(by_name) == 3 + 11
    assert [by_name["Solved"][each] for each in (FIRST, SECOND, f"{SECOND} of")] == ["", "20.0", "20.0"]
    assert (by_name["blank"][FIRST], by_name["blank"][SECOND]) == ("0.0", "0.0")
    assert (by_name["Absent Ann"][FIRST], by_name["Absent Ann"]["remarks"]) == ("", "")
    assert (by_name["pdf"][FIRST], by_name["pdf"][SECOND]) == ("0.0", "")
    assert by_name["solved"][FIRST] == "18.0"
    assert by_name["solved"]["remarks"] == "not on the roster"


def test_what_failed_is_tried_again_within_other_limits_and_not_within_the_same(tmp_path, course):
    write(answered(FIRST), tmp_path / "in" / "jane.ipynb")
    grade = ("grade", FIRST, tmp_path / "in", "--folder", tmp_path / "grading")
    short = (*grade, "--minutes", "0.02")  # a second, in which no Python gets as far as that
    assert "longer than 1 s in all" in course(*short, expected=1)
    before, log = rows(tmp_path, FIRST), tmp_path / "grading" / "logs" / f"{FIRST}-jane.log"
    log.unlink()
    assert "longer than 1 s in all" in course(*short, expected=1)
    assert rows(tmp_path, FIRST) == before
    assert not log.exists(), "it was not run again"
    assert "jane: 18 of 18" in course(*grade)
    assert "1 of 1 were graded before and have not changed" in course(*short), "what was graded stays so"
    assert rows(tmp_path, FIRST)["jane"]["score"] == 18


def test_the_release_is_what_is_committed(tmp_path, course):
    course("release", "--to", tmp_path)
    for name in sources.assignments(EXERCISES / "source"):
        made = (tmp_path / name / f"{name}.ipynb").read_text()
        assert made == (EXERCISES / "release" / name / f"{name}.ipynb").read_text()


def test_each_students_copy_has_no_badge_and_says_once_whose_it_is(tmp_path, course):
    (tmp_path / "roster.csv").write_text("ann\nben\n")
    names = ("--secret", tmp_path / "secret", "--roster", tmp_path / "roster.csv")
    said = course("release", *names, "--to", tmp_path / "variants")
    assert said.startswith(
        f"01_aggregation.ipynb: 2 students in {tmp_path / 'variants'}\n02_replicas.ipynb: 2 students"
    )
    for name in sources.assignments(EXERCISES / "source"):
        for student in ("ann", "ben"):
            text = (tmp_path / "variants" / student / f"{name}.ipynb").read_text()
            assert ("badge" in text, text.count("This copy is yours")) == (False, 1)


def test_each_students_folder_has_an_exercises_files(tmp_path, course):
    course("new", "08_my_idea", "--source", tmp_path / "source")
    (tmp_path / "source" / "08_my_idea" / "rows.csv").write_text("1,2\n")
    (tmp_path / "roster.csv").write_text("ann\nben\n")
    names = ("--secret", tmp_path / "secret", "--roster", tmp_path / "roster.csv")
    course("release", "--source", tmp_path / "source", *names, "--to", tmp_path / "variants")
    assert sorted(path.parent.name for path in tmp_path.glob("variants/*/rows.csv")) == ["ann", "ben"]


def table(path):
    with path.open(encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_what_a_person_marks_goes_into_the_table_and_onto_the_page(tmp_path, course):
    handed, sheet, marks = tmp_path / "in", tmp_path / "points.csv", tmp_path / "marks.csv"
    folder = ("--folder", tmp_path / "grading")
    enter = ("marks", *folder, "--by-hand", sheet, "--to", marks)
    write(answered(BY_HAND), handed / "jane.ipynb")
    printed = course("grade", BY_HAND, handed, *folder)
    assert "jane: 20 of 40" in printed
    assert "to be marked by hand: bytes, conclusion, experiment, question, text-and-code" in printed
    assert f"0 answers with points in {sheet}, 5 without" in course(*enter)
    assert table(marks)[0][BY_HAND] == "20.0"
    empty = sheet.read_text()
    assert empty.count("jane,07_own_model,") == 5

    filled = empty.replace(",6,,", ",6,5,a *clear* plan").replace(",4,,", ",4,2.5,")
    sheet.write_text(filled.replace(".", ",").replace(",", ";").replace("2;5", "2,5"))  # as other countries' do
    assert "4 answers with points" in course(*enter)
    [jane] = table(marks)
    assert jane[BY_HAND] == "32.5"
    assert jane["remarks"] == f"{BY_HAND}: to be marked by hand: text-and-code"
    course("feedback", *folder)
    assert "a <em>clear</em> plan" in (tmp_path / "grading/feedback/jane" / BY_HAND / f"{BY_HAND}.html").read_text()

    # What was marked is no longer there; where there never was an answer, nothing waits.
    write(answered(BY_HAND, {"question": "Another one."}, solved=False), handed / "jane.ipynb")
    course("grade", BY_HAND, handed, *folder)
    assert f"0 answers with points in {sheet}, 4 without" in course(*enter)
    [jane] = table(marks)
    assert jane[BY_HAND] == "12.5"
    assert jane["remarks"] == f"{BY_HAND}: to be marked by hand: bytes, conclusion, experiment, question"
    assert sheet.read_text().count("jane;") == 5 + 4
    assert "taken back" not in course(*enter), "until a newer version has points, those of the older one count"
    assert table(marks)[0][BY_HAND] == "12.5"

    # Then a file that cannot be graded: the others' points can be entered all the same.
    before = sheet.read_text()
    (handed / "jane.ipynb").write_text("%PDF")
    course("grade", BY_HAND, handed, *folder, expected=1)
    assert f"0 answers with points in {sheet}, 0 without" in course(*enter)
    assert sheet.read_text() == before
