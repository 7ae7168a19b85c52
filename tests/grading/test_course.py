"""An instructor's commands from submissions to marks, with broken and hostile submissions."""

import csv
import json
import re
import socket
import types
import zipfile
from pathlib import Path

import nbformat
import psutil
import pytest
from hand_ins import (
    FIRST,
    assert_no_hidden_test,
    cunning,
    damaged,
    grade_and_kill,
    hostile,
    interrupted_late,
    variant_of,
)

from dgc_lab_grading.course import grading, sources
from dgc_lab_grading.marking import sandbox
from instructor import EXERCISES, answered, needs_instructor, write

SECOND, BY_HAND = "05_accumulation", "07_own_model"
pytestmark = [needs_instructor, pytest.mark.nightly]  # test_small_class.py grades a smaller class in the first tier


@pytest.fixture(scope="module")
def graded(tmp_path_factory, course):
    """Two exercises graded for a class.

    Has the folder, the output of each grading, whether a student's code reached a port of this machine, and for a first
    run that was killed, its report and the processes that survived it.
    """
    place = tmp_path_factory.mktemp("class")
    handed = place / "handed_in"
    handed.mkdir()
    wrong = {"top-k-mask": "def top_k_mask(gradient, k):\n    return gradient > 0", "split": "x ="}
    write(answered(FIRST), handed / "04_masking_solved.ipynb")
    write(answered(FIRST, solved=False), handed / "04_masking_blank.ipynb")
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
    (handed / "essay.docx").write_text("I could not open it")
    folder = ("--folder", place / "grading", "--jobs", 2)
    options = (FIRST, handed, *folder, "--cell-seconds", 20)
    killed = grade_and_kill(*options)
    before = rows(place, FIRST)
    first = course("grade", *options, expected=1)

    (place / "roster.csv").write_text("student\nSolved\nblank\nAbsent Ann\n")
    names = ("--secret", place / "secret", "--roster", place / "roster.csv")
    course("release", SECOND, *names, "--to", place / "variants")
    released = [nbformat.read(place / "variants" / name / f"{SECOND}.ipynb", 4) for name in ("Solved", "blank")]
    numbers = [variant_of(notebook) for notebook in released]
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


SCORES = {
    "solved": 15,
    "blank": 0,
    "Wrong-Answers": 12,
    "damaged": 15,
    "hostile": 13,
    "cunning": 0,
    "chatty": 15,
    "late": 15,
}


@pytest.mark.parametrize(("student", "score"), SCORES.items())
def test_each_student_gets_the_marks_due(graded, student, score):
    row = rows(graded.place, FIRST)[student]
    assert (row["status"], row["score"], row["most"]) == ("graded", score, 18), row["remarks"]


@pytest.mark.parametrize(
    ("student", "words"),
    [
        ("pdf", "not a notebook"),
        ("other_exercise", "is it from another exercise?"),
        ("essay", "no notebook (.ipynb)"),
        ("odd", "no answer of 04_masking"),
    ],
)
def test_ungradable_submission_is_reported_and_delays_nobody(graded, student, words):
    row = rows(graded.place, FIRST)[student]
    assert row["status"] == "not graded"
    assert words in " ".join(row["remarks"])
    assert f"{student}: NOT GRADED" in graded.first


@pytest.mark.parametrize(
    ("student", "remarks"),
    [
        (
            "damaged",
            "metadata lost|sets VARIANT|restored: marks-split|more than once, all of which were run: share-sent",
        ),
        ("hostile", "could not be stopped|ended its process|printed more than"),
        ("cunning", "read it before you trust|ended its process"),
    ],
)
def test_the_report_describes_what_happened(graded, student, remarks):
    said = " ".join(rows(graded.place, FIRST)[student]["remarks"])
    for words in remarks.split("|"):
        assert words in said


def test_excess_output_does_not_count_against_later_cells(graded):
    (said,) = rows(graded.place, FIRST)["chatty"]["remarks"]
    assert said == "cell 4 (the student's own) printed more than 1,000,000 characters and was stopped"


def test_no_process_or_file_is_left_outside_the_folder(graded):
    place = graded.place
    assert "contains a path outside its folder; left out: ../escaped.ipynb" in graded.second
    mine = {"handed_in", "grading", "second.zip", "roster.csv", "secret", "variants"}
    assert {path.name for path in place.iterdir()} - {"written"} == mine
    running = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not any(f"{place.stat().st_ino}12345" in command for command in running)
    assert not list(Path("/tmp").glob(f"{grading.home_prefix(place.resolve() / 'grading')}*"))


def test_killed_grade_command_leaves_nothing_and_resumes(graded):
    printed, alive = graded.killed
    assert not alive
    done = [name for name, row in graded.before.items() if row["status"] == "graded"]
    assert 1 <= len(done) < len(SCORES)
    now = rows(graded.place, FIRST)
    assert all(now[name] == graded.before[name] for name in graded.before)
    printed_rows = re.findall(r"\] ([\w-]+): ([\d.]+) of 18", printed)  # the report may be one row ahead
    assert printed_rows
    assert all(graded.before[name]["score"] == float(score) for name, score in printed_rows)


@pytest.mark.skipif(sandbox.fence_missing() is not None, reason="this machine allows no sandbox")
def test_nothing_leaks_out_of_a_submission(graded):
    assert not (graded.place / "written").exists()
    assert not graded.reached
    notebook = (graded.place / "grading" / "autograded" / "hostile" / FIRST / f"{FIRST}.ipynb").read_text()
    for error in ("FileNotFoundError", "ConnectionRefusedError", "MemoryError"):
        assert error in notebook
    assert "jupytext_version" not in notebook  # it is in the source that the student tried to print


def test_unchanged_submissions_are_not_graded_again(graded, course):
    before = (graded.place / "grading" / "report.json").read_text()
    printed = course("grade", FIRST, graded.place / "handed_in", "--folder", graded.place / "grading", expected=1)
    assert (graded.place / "grading" / "report.json").read_text() == before
    assert "8 graded, 4 not graded: essay, odd, other_exercise, pdf" in printed


def test_each_student_has_an_own_variant(graded):
    assert len({0, *graded.numbers}) == 3
    assert "Solved: 17 of 20" in graded.second  # the variant in the notebook identifies the student
    assert "handed in as final-version" in graded.second
    assert "blank: 0 of 20" in graded.second


def test_feedback_and_the_table_of_marks(graded, course):
    folder = graded.place / "grading"
    assert "14 pages" in course("feedback", "--folder", folder)
    pages = {path.parts[-3]: path.read_text() for path in (folder / "feedback").glob(f"*/{FIRST}/*.html")}
    assert "not kept" in pages["Wrong-Answers"] or "must be True" in pages["Wrong-Answers"]
    assert "not a notebook" in pages["pdf"]
    assert "<script>alert(1)" not in pages["cunning"]
    assert "<td>kept</td>" in pages["cunning"]
    assert_no_hidden_test(pages.values())

    course("marks", "--folder", folder, "--to", folder / "marks.csv", "--roster", graded.place / "roster.csv")
    lines = table(folder / "marks.csv")
    assert [line["student"] for line in lines][:3] == ["Solved", "blank", "Absent Ann"]
    by_name = {line["student"]: line for line in lines}
    assert len(by_name) == 3 + 11
    assert [by_name["Solved"][each] for each in (FIRST, SECOND, f"{SECOND} of")] == ["", "17.0", "20.0"]
    assert (by_name["blank"][FIRST], by_name["blank"][SECOND]) == ("0.0", "0.0")
    assert (by_name["Absent Ann"][FIRST], by_name["Absent Ann"]["remarks"]) == ("", "")
    assert (by_name["pdf"][FIRST], by_name["pdf"][SECOND]) == ("0.0", "")
    assert by_name["solved"][FIRST] == "15.0"
    assert by_name["solved"]["remarks"] == "not on the roster"


def test_a_failure_is_retried_only_with_other_limits(tmp_path, course):
    write(answered(FIRST), tmp_path / "in" / "jane.ipynb")
    grade = ("grade", FIRST, tmp_path / "in", "--folder", tmp_path / "grading")
    short = (*grade, "--minutes", "0.02")  # about a second, too short to start everything
    assert "longer than 1 s in total" in course(*short, expected=1)
    before, log = rows(tmp_path, FIRST), tmp_path / "grading" / "logs" / f"{FIRST}-jane.log"
    log.unlink()
    assert "longer than 1 s in total" in course(*short, expected=1)
    assert rows(tmp_path, FIRST) == before
    assert not log.exists(), "it was not run again"
    assert "jane: 15 of 18" in course(*grade)
    assert "1 of 1 were graded before and have not changed" in course(*short), "what was graded stays so"
    assert rows(tmp_path, FIRST)["jane"]["score"] == 15


def test_the_committed_release_is_up_to_date(tmp_path, course):
    course("release", "--to", tmp_path)
    for name in sources.assignments(EXERCISES / "source"):
        made = (tmp_path / name / f"{name}.ipynb").read_text()
        assert made == (EXERCISES / "release" / name / f"{name}.ipynb").read_text()


def test_copies_with_variants_have_no_badge(tmp_path, course):
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


def test_each_students_folder_has_the_exercises_files(tmp_path, course):
    course("new", "08_my_idea", "--source", tmp_path / "source")
    (tmp_path / "source" / "08_my_idea" / "rows.csv").write_text("1,2\n")
    (tmp_path / "roster.csv").write_text("ann\nben\n")
    names = ("--secret", tmp_path / "secret", "--roster", tmp_path / "roster.csv")
    course("release", "--source", tmp_path / "source", *names, "--to", tmp_path / "variants")
    assert sorted(path.parent.name for path in tmp_path.glob("variants/*/rows.csv")) == ["ann", "ben"]


def table(path):
    with path.open(encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_points_given_by_hand_reach_the_table_and_the_page(tmp_path, course):
    handed, sheet, marks = tmp_path / "in", tmp_path / "points.csv", tmp_path / "marks.csv"
    folder = ("--folder", tmp_path / "grading")
    enter = ("marks", *folder, "--by-hand", sheet, "--to", marks)
    write(answered(BY_HAND, texts=True), handed / "jane.ipynb")
    printed = course("grade", BY_HAND, handed, *folder)
    assert "jane: 20 of 40" in printed
    assert "to be marked by hand: bytes, conclusion, experiment, question, text-and-code" in printed
    assert f"0 answers with points in {sheet}, 5 without" in course(*enter)
    assert table(marks)[0][BY_HAND] == "20.0"
    empty = sheet.read_text()
    assert empty.count("jane,07_own_model,") == 5

    filled = empty.replace(",6,,", ",6,5,a *clear* plan").replace(",4,,", ",4,2.5,")
    sheet.write_text(
        filled.replace(".", ",").replace(",", ";").replace("2;5", "2,5")
    )  # as in countries with decimal commas
    assert "4 answers with points" in course(*enter)
    [jane] = table(marks)
    assert jane[BY_HAND] == "32.5"
    assert jane["remarks"] == f"{BY_HAND}: to be marked by hand: text-and-code"
    course("feedback", *folder)
    assert "a <em>clear</em> plan" in (tmp_path / "grading/feedback/jane" / BY_HAND / f"{BY_HAND}.html").read_text()

    # The marked version is replaced; an answer that was never given needs no marks.
    write(answered(BY_HAND, {"question": "Another one."}, solved=False), handed / "jane.ipynb")
    course("grade", BY_HAND, handed, *folder)
    assert f"0 answers with points in {sheet}, 4 without" in course(*enter)
    [jane] = table(marks)
    assert jane[BY_HAND] == "12.5"
    assert jane["remarks"] == f"{BY_HAND}: to be marked by hand: bytes, conclusion, experiment, question"
    assert sheet.read_text().count("jane;") == 5 + 4
    assert "has none now" not in course(*enter), "until a newer version has points, those of the older one count"
    assert table(marks)[0][BY_HAND] == "12.5"

    # A file that cannot be graded does not stop the others' points from being entered.
    before = sheet.read_text()
    (handed / "jane.ipynb").write_text("%PDF")
    course("grade", BY_HAND, handed, *folder, expected=1)
    assert f"0 answers with points in {sheet}, 0 without" in course(*enter)
    assert sheet.read_text() == before
