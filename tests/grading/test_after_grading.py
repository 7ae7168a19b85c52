"""After a small class was graded: statistics, an override for a file that is no notebook, and a changed exercise."""

import csv
import json
import types

import nbformat
import pytest

from dgc_lab_grading.course import sources
from instructor import needs_instructor

pytestmark = needs_instructor
NAME, UNICODE = "08_my_idea", "李-雷"


@pytest.fixture(scope="module")
def graded(tmp_path_factory, course):
    """An exercise with one task, handed in untouched by one student, and as something else by another."""
    place = tmp_path_factory.mktemp("class")
    source = ("--source", place / "source")
    course("new", NAME, *source)
    course("release", NAME, *source, "--to", place / "release")
    released = place / "release" / NAME / f"{NAME}.ipynb"
    (place / "in").mkdir()
    (place / "in" / "李 雷.ipynb").write_bytes(released.read_bytes())
    (place / "in" / "José.ipynb").write_text("%PDF")
    folder = ("--folder", place / "grading")
    said = course("grade", NAME, place / "in", *source, *folder, expected=1)
    return types.SimpleNamespace(place=place, source=source, folder=folder, said=said)


def table(path):
    with path.open(encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_names_are_kept_as_people_write_them(graded, course):
    assert f"{UNICODE}: 0 of 2" in graded.said
    assert "José: NOT GRADED" in graded.said
    course("marks", *graded.folder)
    assert [row["student"] for row in table(graded.place / "grading" / "marks.csv")] == ["José", UNICODE]
    course("feedback", *graded.folder)
    assert UNICODE in (graded.place / "grading" / "feedback" / UNICODE / NAME / f"{NAME}.html").read_text()
    (graded.place / "names").write_text("Jose\n李 雷\n")
    assert "2 students in" in course("marks", *graded.folder, "--roster", graded.place / "names")
    rows = table(graded.place / "grading" / "marks.csv")
    assert [(row["student"], row[NAME]) for row in rows] == [("Jose", "0.0"), ("李 雷", "0.0")]


def test_an_ungraded_submission_gets_points_by_override(graded, course):
    override = ("override", "jose", NAME, "mean")
    course(*override, "1.5", "--reason", "sent by mail", *graded.folder)
    course("marks", *graded.folder)
    [row, _] = table(graded.place / "grading" / "marks.csv")
    assert (row[NAME], "mean: 1.5 points by hand (sent by mail)" in row["remarks"]) == ("1.5", True)
    course("feedback", *graded.folder)
    page = (graded.place / "grading" / "feedback" / "José" / NAME / f"{NAME}.html").read_text()
    assert "1.5 of 2 points" in page
    assert "sent by mail" in page
    course(*override, "none", *graded.folder)
    course("marks", *graded.folder)
    assert table(graded.place / "grading" / "marks.csv")[0][NAME] == "0.0"


def test_statistics_count_those_with_points_as_attempted(graded, course):
    override = ("override", UNICODE, NAME, "mean")
    assert "mean: 0 of 1 attempted, 0 right" in course("statistics", *graded.folder)
    course(*override, "2", "--reason", "in a cell of their own", *graded.folder)
    assert "mean: 1 of 1 attempted, 1 right" in course("statistics", *graded.folder)
    course(*override, "none", *graded.folder)


def test_an_override_for_an_earlier_file_is_flagged(graded, course):
    file, override = graded.place / "in" / "李 雷.ipynb", ("override", UNICODE, NAME, "mean")
    grade, notebook = ("grade", NAME, graded.place / "in", *graded.source, *graded.folder), file.read_bytes()
    course(*override, "1", "--reason", "a list", *graded.folder)
    file.write_text("%PDF")
    course(*grade, expected=1)
    course("marks", *graded.folder)
    [_, row] = table(graded.place / "grading" / "marks.csv")
    assert row[NAME] == "1.0"
    assert "1 points by hand (a list); made for an earlier submission, please review" in row["remarks"]
    file.write_bytes(notebook)
    course(*grade, expected=1)
    course(*override, "none", *graded.folder)


def test_an_exercise_with_other_tasks_needs_another_folder(graded, course):
    text = sources.text_half(graded.place / "source", NAME)
    before, report = text.read_text(), (graded.place / "grading" / "report.json").read_text()
    text.write_text(before.replace("grade_id: marks-mean", "grade_id: marks-median"))
    grade = ("grade", NAME, graded.place / "in", *graded.source)
    course(*grade, *graded.folder, expected=2)
    assert (graded.place / "grading" / "report.json").read_text() == report
    release = nbformat.read(graded.place / "grading" / "release" / NAME / f"{NAME}.ipynb", as_version=4)
    assert "marks-mean" in json.dumps(release)
    for command in ("marks", "statistics", "feedback", "similar"):
        course(command, *graded.folder)
    assert f"{UNICODE}: 0 of 2" in course(*grade, "--folder", graded.place / "again", expected=1)
    text.write_text(before)
    assert "1 of 2 were graded before" not in course(*grade, *graded.folder, expected=1)
