"""From Moodle's zip of submissions to its worksheet and its feedback zip, with all steps in between."""

import csv
import html
import json
import re
import shutil
import subprocess
import types
import zipfile

import nbformat
import pytest

from dgc_lab_grading.course import sources
from instructor import EXERCISES, PYTHON, ROOT, answered, index, needs_instructor, write

FIRST, BY_HAND = "04_masking", "07_own_model"
NAMES = {
    "Jane Doe": 4711,
    "José O'Neill": 4712,
    "Kim Late": 4713,
    "Ann Likewise": 4714,
    "Bo Likewise": 4715,
    "Pdf Pia": 4716,
}
HEAD = 'Identifier,"Full name",Status,Grade,"Maximum grade","Grade can be changed","Last modified (grade)"\r\n'
RULES = f"""percent_a_day = 10
[due]
{FIRST} = 2026-11-20 12:00:00
[[student]]
name = "Kim-Late"
exercise = "{FIRST}"
handed_in = 2026-11-21 11:00:00
"""
WRONG = """def top_k_mask(gradient, k):
    # {0}
    {1} = np.sort(np.abs(gradient).ravel())
    if len({1}) == 0 or k > len({1}):
        return np.ones(gradient.shape, bool)
    return gradient >= {1}[len({1}) - k]"""
pytestmark = [needs_instructor, pytest.mark.nightly]


def folder_of(name):
    return f"{name}_{NAMES[name]}_assignsubmission_file_"


def rows_of(path):
    with path.open(encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def graded(tmp_path_factory, course):
    """A class's zip, graded; has the folder, the grading folder and the output."""
    place = tmp_path_factory.mktemp("class")
    folder = place / "grading"
    folder.mkdir()
    (folder / "late.toml").write_text(RULES)
    handed = {name: answered(FIRST) for name in NAMES}
    handed["José O'Neill"] = answered(FIRST, {"split": "def split(gradient, mask):\n    return gradient, mask"})
    handed["Ann Likewise"] = answered(FIRST, {"top-k-mask": WRONG.format("sorted", "ordered")})
    handed["Bo Likewise"] = answered(FIRST, {"top-k-mask": WRONG.format("mine", "s")}, solved=False)
    with zipfile.ZipFile(place / "all.zip", "w") as file:
        for name, notebook in handed.items():
            when = (2026, 11, 23, 8, 0, 0)  # the time of the download, for all files in Moodle's zip
            content = "%PDF" if name == "Pdf Pia" else nbformat.writes(notebook)
            file.writestr(zipfile.ZipInfo(f"{folder_of(name)}/my work.ipynb", when), content)
    said = course("grade", FIRST, place / "all.zip", "--folder", folder, "--jobs", 2, expected=1)
    return types.SimpleNamespace(place=place, folder=folder, said=said)


def test_the_report_names_late_students_and_keeps_a_log(graded):
    assert "Kim-Late: 1 day late: 1.8 points off" in graded.said
    log = (graded.folder / "grading.log").read_text()
    assert re.search(r"(?m)^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  \[6/6\] ", log)
    rows = json.loads((graded.folder / "report.json").read_text())[FIRST]
    assert "Moodle's zip has no submission times" in graded.said
    assert (rows["Kim-Late"]["time"], rows["Kim-Late"]["number"]) == (None, "4713")
    assert graded.said.count("late: ") == 1, "the time of the download makes nobody late"


def worksheet(place):
    """Write Moodle's file as PHP does."""
    path = place / "Grades-Lab.csv"
    lines = [f'"Participant {number}","{name}","Submitted",,18.00,Yes,-\r\n' for name, number in NAMES.items()]
    path.write_bytes(("\ufeff" + HEAD + "".join(lines)).encode())
    return path


def test_marks_fill_moodles_worksheet(graded, course):
    original = worksheet(graded.place)
    said = course("marks", FIRST, "--folder", graded.folder, "--moodle", original, expected=1)
    assert "5 marks in" in said
    assert "not filled: Pdf-Pia, 04_masking: not graded: the file is not a notebook" in said
    filled = (graded.folder / original.name).read_bytes()
    assert b'"Jane Doe","Submitted",15,18.00' in filled
    assert b'"Kim Late","Submitted",13.2,18.00' in filled
    emptied = re.sub(rb'("Submitted"),[\d.]*,', rb"\1,,", filled)
    assert emptied == original.read_bytes()


def test_the_feedback_zip_has_moodles_names(graded, course):
    assert f"feedback-{FIRST}.zip" in course("feedback", "--zip", "--folder", graded.folder)
    with zipfile.ZipFile(graded.folder / f"feedback-{FIRST}.zip") as packed:
        assert sorted(packed.namelist()) == sorted(f"{folder_of(name)}/my work.html" for name in NAMES)
        pages = {name: packed.read(f"{folder_of(name)}/my work.html").decode() for name in NAMES}
    assert "13.2 of 18 points" in pages["Kim Late"]
    assert "1 day late: 1.8 points off" in pages["Kim Late"]
    assert "not a notebook" in pages["Pdf Pia"]
    # as Moodle reads a name (mod/assign/feedback/file/importziplib.php): full name, number, plugin's type and name
    for name, number in NAMES.items():
        assert folder_of(name).split("_", 4)[:4] == [name, str(number), "assignsubmission", "file"]


def test_a_missing_page_keeps_no_other_from_the_zip(graded, course, tmp_path):
    folder = tmp_path / "grading"
    shutil.copytree(graded.folder, folder)
    shutil.rmtree(folder / "autograded" / "Kim-Late")
    said = course("feedback", "--zip", "--folder", folder, expected=1)
    assert f"nbgrader cannot write feedback for Kim-Late, {FIRST}" in said
    assert f"Kim-Late, {FIRST}: not in the zip" in said
    with zipfile.ZipFile(folder / f"feedback-{FIRST}.zip") as packed:
        assert len(packed.namelist()) == len(NAMES) - 1


def test_a_platforms_file_is_not_overwritten(graded, course):
    original = graded.folder / "worksheet.csv"
    original.write_bytes(HEAD.encode())
    course("marks", FIRST, "--moodle", original, "--folder", graded.folder, expected=2)
    assert original.read_bytes() == HEAD.encode()


def test_a_feedback_page_has_one_total_and_no_broken_picture(graded, course):
    course("feedback", "--folder", graded.folder)
    page = (graded.folder / "feedback" / "Kim-Late" / FIRST / f"{FIRST}.html").read_text()
    assert re.findall(r"Score: ([\d.]+) / 18.0", page) == ["13.2"]
    assert "13.2 of 18 points" in page
    assert "Exercise 4: masking" in page
    assert not re.findall("<img(?![^>]*src)[^>]*>", page)


def test_an_override_survives_regrading_and_can_be_removed(graded, course):
    folder = ("--folder", graded.folder)
    student, reason = "José-O-Neill", "right, but handed back the mask"
    before = mark_of(graded, course, student)
    course("override", student, FIRST, "split", "0.5", "--reason", reason, *folder)
    assert mark_of(graded, course, student) == before + 0.5
    log = graded.folder / "logs" / f"{FIRST}-{student}.log"
    log.unlink()
    said = course("grade", FIRST, graded.place / "all.zip", *folder, "--only", student, expected=1)
    assert log.exists(), "it was graded again"
    assert f"[1/1] {student}: {before + 0.5:g} of 18" in said
    assert "to be marked by hand" not in said
    assert mark_of(graded, course, student) == before + 0.5
    course("feedback", *folder)
    page = html.unescape((graded.folder / "feedback" / student / FIRST / f"{FIRST}.html").read_text())
    assert f"split: 0.5 points by hand ({reason})" in page.replace("Split", "split")
    course("override", student, FIRST, "split", "none", *folder)
    course("override", student, FIRST, "split", "none", *folder, expected=2)  # none is left
    assert mark_of(graded, course, student) == before
    for wrong in (("Nobody", "split", "1"), (student, "no-such", "1"), (student, "split", "7")):
        course("override", wrong[0], FIRST, *wrong[1:], "--reason", "x", *folder, expected=2)
    course("override", student, FIRST, "split", "1", *folder, expected=2)  # no reason
    assert mark_of(graded, course, student) == before


def test_overrides_edited_by_hand_are_checked_by_line(graded, course):
    folder, file = ("--folder", graded.folder), graded.folder / "overrides.csv"
    head, before = "student,exercise,task,points,reason,version,when\n", mark_of(graded, course, "José-O-Neill")
    grade = ("grade", FIRST, graded.place / "all.zip", *folder)
    file.write_text(f'{head}José-O-Neill,{FIRST},split,"0,5",half right,x,\n')
    course(*grade, expected=1)
    assert mark_of(graded, course, "José-O-Neill") == before + 0.5
    course("override", "José-O-Neill", FIRST, "split", "none", *folder)
    assert mark_of(graded, course, "José-O-Neill") == before
    for row, words in (
        (f"José-O-Neill,{FIRST},split,100,x,x,", "line 2: points must be a number from 0 to 1, got '100'"),
        (
            f"José-O-Neill,{FIRST},splitt,1,x,x,",
            "line 2: 'splitt' is not an autograded task of 04_masking; choose from: ",
        ),
    ):
        file.write_text(f"{head}{row}\n")
        for command in (grade, ("marks", *folder), ("feedback", *folder)):
            assert words in refused(command)
    file.write_text(f"{head}José-O-Neil,{FIRST},split,1,x,x,\n")
    words = "overrides.csv, line 2: José-O-Neil has no submission of 04_masking, so this is ignored"
    assert words in course(*grade, expected=1)
    assert words in course("marks", *folder)
    assert mark_of(graded, course, "José-O-Neill") == before
    file.unlink()


def test_overrides_edited_by_hand_take_effect_at_once(graded, course):
    folder, file, student = ("--folder", graded.folder), graded.folder / "overrides.csv", "José-O-Neill"
    page = graded.folder / "feedback" / student / FIRST / f"{FIRST}.html"
    before = mark_of(graded, course, student)
    file.write_text(f"student,exercise,task,points,reason,version,when\n{student},{FIRST},split,0.5,half,x,\n")
    assert mark_of(graded, course, student) == before + 0.5
    course("statistics", *folder)
    assert {row["task"]: row["mean"] for row in rows_of(graded.folder / "statistics.csv")}["split"] == "0.7"
    course("feedback", *folder)
    assert f"Score: {before + 0.5} / 18.0" in page.read_text()
    file.unlink()
    course("feedback", *folder)
    assert f"Score: {before} / 18.0" in page.read_text()
    assert mark_of(graded, course, student) == before


def test_an_override_keeps_extra_columns(graded, course):
    file, override = graded.folder / "overrides.csv", ("override", "jane doe", FIRST, "split")
    head = "student,exercise,task,points,reason,version,when,decided by"
    file.write_text(f"{head}\nKim-Late,{FIRST},split,1,a list,x,,Ann\n")
    course(*override, "0.5", "--reason", "half right", "--folder", graded.folder)
    assert [(row["student"], row["decided by"]) for row in rows_of(file)] == [("Kim-Late", "Ann"), ("Jane-Doe", "")]
    course(*override, "none", "--folder", graded.folder)
    assert not list(graded.folder.glob("*.new"))
    file.unlink()


def refused(command):
    """Return the error of a command that is refused."""
    line = [PYTHON, "-m", "dgc_lab_grading", *map(str, command)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    return done.stderr


def mark_of(graded, course, student):
    course("marks", "--folder", graded.folder)
    [row] = [row for row in rows_of(graded.folder / "marks.csv") if row["student"] == student]
    return float(row[FIRST])


def test_a_single_student_can_be_regraded(graded, course):
    before = json.loads((graded.folder / "report.json").read_text())[FIRST]
    again = ("grade", FIRST, graded.place / "all.zip", "--folder", graded.folder, "--only")
    for log in (graded.folder / "logs").iterdir():
        log.unlink()
    course(*again, "Jane-Doe", expected=1)
    assert [log.name for log in (graded.folder / "logs").iterdir()] == [f"{FIRST}-Jane-Doe.log"]
    after = json.loads((graded.folder / "report.json").read_text())[FIRST]
    same = {name for name in before if before[name] == after[name]}
    assert same >= set(before) - {"Jane-Doe"}
    assert after["Jane-Doe"]["score"] == 15
    course(*again, "Nobody", expected=2)


def test_grades_from_an_earlier_version_are_reported(tmp_path, course):
    folder, names = ("--folder", tmp_path / "grading"), ("ann", "bo", "cy")
    course("new", "08_my_idea", "--source", tmp_path / "source")
    text = sources.text_half(tmp_path / "source", "08_my_idea")
    for name in names:
        (tmp_path / "in").mkdir(exist_ok=True)
        nbformat.write(sources.notebook(tmp_path / "source", "08_my_idea"), tmp_path / "in" / f"{name}.ipynb")
    grade = ("grade", "08_my_idea", tmp_path / "in", "--source", tmp_path / "source", *folder)
    assert "earlier version" not in course(*grade)
    report = tmp_path / "grading" / "report.json"
    older = json.loads(report.read_text())
    for row in older["08_my_idea"].values():
        assert row.pop("exercise")  # older reports lack it
    report.write_text(json.dumps(older))
    assert "earlier version" not in course("marks", *folder)
    text.write_text(text.read_text().replace("  points: 2", "  points: 5"))
    words = "2 submissions were graded with an earlier version of 08_my_idea: run grade without --only\n"
    for command in ((*grade, "--only", "bo"), ("marks", *folder), ("feedback", *folder)):
        assert words in course(*command)
    assert "earlier version" not in course(*grade)
    assert "earlier version" not in course("marks", *folder)


def test_a_lost_gradebook_is_rebuilt(tmp_path, course):
    folder = ("--folder", tmp_path / "grading")
    for name in ("08_one", "09_two"):
        course("new", name, "--source", tmp_path / "source")
        for student in ("ann", "bo"):
            path = tmp_path / name / f"{student}.ipynb"
            path.parent.mkdir(exist_ok=True)
            nbformat.write(sources.notebook(tmp_path / "source", name), path)
        course("grade", name, tmp_path / name, "--source", tmp_path / "source", *folder)
    gone = tmp_path / "grading" / "gradebook.db"
    gone.unlink()
    for command in ("marks", "feedback", "statistics"):
        course(command, *folder, expected=2)
        assert not gone.exists()
    again = ("grade", "08_one", tmp_path / "08_one", "--source", tmp_path / "source", *folder)
    said = course(*again, "--only", "ann", expected=2)  # bo's grades are lost
    assert "gradebook.db lacks this exercise: everyone is graded again" in said
    assert "[2/2] bo: 2 of 2" in course(*again)
    course("marks", *folder, expected=2)
    course("grade", "09_two", tmp_path / "09_two", "--source", tmp_path / "source", *folder)
    assert "2 students in" in course("marks", *folder)
    course("marks", "09_two", *folder)
    assert set(rows_of(tmp_path / "grading" / "marks.csv")[0]) == {"student", "09_two", "09_two of", "remarks"}


def test_statistics_count_tasks_and_show_wrong_answers(graded, course):
    said = course("statistics", "--folder", graded.folder)
    rows = {row["task"]: row for row in rows_of(graded.folder / "statistics.csv")}
    counts = {name: [int(rows[name][each]) for each in ("handed in", "attempted", "right")] for name in rows}
    assert counts["top-k-mask"] == [5, 5, 3]
    assert counts["split"] == [5, 4, 3]
    assert float(rows["top-k-mask"]["mean"]) == pytest.approx(float(rows["top-k-mask"]["points"]) * 3 / 5)
    assert "04_masking split: 4 of 5 attempted, 3 right, mean 0.6 of 1\n" in said
    page = (graded.folder / "statistics.html").read_text()
    assert "top-k-mask, wrong, given 2 times" in page
    assert "gradient &gt;= ordered[len(ordered) - k]" in page
    assert "split: 3 right, 1 not, 1 not attempted" in page
    assert not [name for name in NAMES if name.split()[1] in re.sub('src="[^"]*"', "", page)]


def test_a_roster_that_matches_nobody_is_reported(graded, course):
    (graded.place / "ids.csv").write_text("Email,Full name\njd@x.org,Jane Doe\nkl@x.org,Kim Late\n")
    (graded.place / "names.csv").write_text("Full name,Email\nJane Doe,jd@x.org\nAbsent Ann,aa@x.org\n")
    marks = ("marks", "--folder", graded.folder, "--roster")
    words = f"0 of 2 students on the roster have handed in; names come from the first column of {graded.place}/ids.csv"
    assert f"{words}, like 'jd@x.org'" in course(*marks, graded.place / "ids.csv", expected=1)
    assert "0 of 2" not in course(*marks, graded.place / "names.csv")


def test_similar_lists_only_pairs_with_an_unusual_answer(graded, course):
    said = course("similar", "--folder", graded.folder)
    [row] = rows_of(graded.folder / "similar.csv")
    assert (row["first"], row["second"], row["answers"]) == ("Ann-Likewise", "Bo-Likewise", "top-k-mask")
    assert row["of them wrong"] == "top-k-mask"
    assert "similar does not mean copied" in said


def test_solutions_are_complete_and_have_no_hidden_tests(tmp_path, course):
    course("solutions", FIRST, "--to", tmp_path)
    notebook = nbformat.read(tmp_path / f"{FIRST}_solutions.ipynb", as_version=4)
    nbformat.validate(notebook)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert not re.search("HIDDEN|SOLUTION|# your answer", text)
    assert "# The largest come first. Squares add up" in text, "solutions explain themselves"
    source = sources.notebook(EXERCISES / "source", FIRST)
    hidden = source.cells[index(source, "marks-split")].source.split("### BEGIN HIDDEN TESTS")[1]
    assert not [line for line in hidden.split("\n") if len(line) > 30 and line in text]
    space = {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and "%pip" not in cell.source:
            exec(cell.source, space)
    assert space["passed"] is True


@pytest.fixture(scope="module")
def waiting(tmp_path_factory, course):
    """A grading folder in which five answers of jane and five of john have to be marked by hand."""
    place = tmp_path_factory.mktemp("waiting")
    for student in ("jane", "john"):
        write(answered(BY_HAND, texts=True), place / "in" / f"{student}.ipynb")
    course("grade", BY_HAND, place / "in", "--folder", place / "grading", "--jobs", 2)
    return place / "grading"


def by_hand_marks(folder):
    return [float(row[BY_HAND]) for row in rows_of(folder / "marks.csv")]


def test_points_removed_from_a_sheet_are_taken_back(tmp_path, waiting, course):
    sheet = tmp_path / "points.csv"
    enter = ("marks", "--folder", waiting, "--by-hand", sheet)
    assert f"new sheet {sheet} with 10 answers" in course(*enter)
    empty = sheet.read_text()
    jane, john = (re.search(f"(?m)^{name},{BY_HAND},question,.*,,$", empty)[0] for name in ("jane", "john"))
    sheet.write_text(empty.replace(jane, f"{jane[:-1]}4,well seen"))
    assert "has none now" not in course(*enter)
    assert by_hand_marks(waiting) == [24, 20]
    sheet.write_text(empty.replace(john, f"{john[:-1]}4,"))
    said = course(*enter)
    assert f"removed jane's 4 points for question of {BY_HAND}: {sheet} has none now\n" in said
    assert "1 answer with points" in said
    assert ", 9 without" in said
    assert by_hand_marks(waiting) == [20, 24]
    course("feedback", "--folder", waiting)
    assert "well seen" not in (waiting / "feedback" / "jane" / BY_HAND / f"{BY_HAND}.html").read_text()
    sheet.write_text(empty)
    assert ", 10 without" in course(*enter)


def test_a_sheet_for_points_must_be_a_csv(tmp_path, waiting, course):
    said = refused(("marks", "--folder", waiting, "--by-hand", tmp_path / "points.csv", tmp_path / BY_HAND))
    assert f"a sheet's name must end in .csv, got {tmp_path / BY_HAND}; EXERCISE goes before --by-hand" in said
    assert not list(tmp_path.iterdir())


def test_two_markers_share_answers_and_merge_their_sheets(tmp_path, waiting, course):
    sheets = [tmp_path / "ann.csv", tmp_path / "ben.csv"]
    enter = ("marks", "--folder", waiting, "--by-hand", *sheets)
    assert "0 answers with points" in course(*enter)
    assert [{row["student"] for row in rows_of(sheet)} for sheet in sheets] == [{"jane"}, {"john"}]
    for sheet in sheets:
        sheet.write_text(re.sub(r"(?m),(\d),,$", r",\1,\1,read", sheet.read_text()))
    assert "10 answers with points" in course(*enter)
    assert by_hand_marks(waiting) == [40, 40]
    both = sheets[0].read_text() + sheets[1].read_text().split("\n")[1].replace(",read", "").rsplit(",", 1)[0] + ",1,\n"
    sheets[0].write_text(both)  # two markers gave the same answer different points
    course(*enter, expected=2)
    assert by_hand_marks(waiting) == [40, 40]
