"""Parts of the instructors' commands that need no nbgrader: names, zips, secrets and the scaffold."""

import copy
import json
import multiprocessing
import os
import signal
import zipfile

import nbformat
import pytest

from dgc_lab.cluster.private_network import working_prefix
from dgc_lab.common import LabError
from dgc_lab_grading.__main__ import main
from dgc_lab_grading.course import entries, grading, names, roster, scaffold, sources, submissions, unzip
from dgc_lab_grading.course.report import outdated, submitted, without_control
from dgc_lab_grading.marking import supervision
from kernels import until


def test_a_full_disk_ends_grading_and_blames_no_submission(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    scaffold.new(tmp_path, "08_my_idea")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        file.writestr("ada.ipynb", "{}")
    monkeypatch.setattr(grading, "prepare", lambda *_: None)  # which needs nbgrader
    monkeypatch.setattr(unzip.shutil, "copyfileobj", full)
    with pytest.raises(LabError, match=r"the disk of .*/grading is full: free some space"):
        grading.grade(tmp_path / "all.zip", "08_my_idea", tmp_path, tmp_path / "grading", unfenced=True, say=list)
    entry = entries.Entry(submissions.Submission("ada", None), "ada")
    with pytest.raises(OSError, match="No space left"), entries._errors_as_remarks(entry):
        full()


def test_a_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path):
    with pytest.raises(LabError, match=r"no secret at .*/secret: grading needs the secret file of the release"):
        roster.read_secret(tmp_path / "secret")
    secret = roster.read_secret(tmp_path / "secret", make=True)
    assert len(secret) >= 16
    assert roster.read_secret(tmp_path / "secret") == secret
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
    (tmp_path / "short").write_text("abc")
    with pytest.raises(LabError, match=r"at least 16 characters, got 3"):
        roster.read_secret(tmp_path / "short")
    for heading in ("Email", "E-mail address", "student", "SIS Login ID", "Last name", "Username"):
        (tmp_path / "names").write_text(f"{heading};x\nMüller, Al;1\n")
        assert roster.read_roster(tmp_path / "names") == {"Müller-Al": "Müller, Al"}
    (tmp_path / "names").write_text("José\nJose\n")
    with pytest.raises(LabError, match=r"'Jose' and 'José' cannot be told apart"):
        roster.read_roster(tmp_path / "names")


@pytest.mark.parametrize(("command", "expected"), [("marks", 0o077), ("contest", 0o077), ("solutions", 0o022)])
def test_files_with_grades_are_private(tmp_path, command, expected):
    before = os.umask(0o022)
    try:
        assert main([command, "--source" if command == "solutions" else "--folder", str(tmp_path)]) == 2
    finally:
        mask = os.umask(before)
    assert mask == expected


@pytest.mark.parametrize(
    "heading", ["Vollständiger Name", "Matrikelnummer", "Nom complet", "Apellido(s)", "Email address"]
)
def test_a_rosters_heading_is_skipped(tmp_path, heading):
    (tmp_path / "names").write_text(f"{heading};x\nJane Doe;1\n")
    assert roster.read_roster(tmp_path / "names") == {"Jane-Doe": "Jane Doe"}


@pytest.mark.parametrize("heading", ["", "Student\n"])
def test_a_roster_of_last_and_first_names_needs_quotes(tmp_path, heading):
    """The last names alone would give other variants, and match nobody."""
    path = tmp_path / "names"
    for lines in ("Doe, Jane\n\nRoe, Al\n", "Cher\nDoe, Jane\n"):
        path.write_text(heading + lines)
        with pytest.raises(LabError, match=r"names: 'Doe, Jane' may be one name or two columns. Put .* quotes, or add"):
            roster.read_roster(path)
    path.write_text(f'{heading}"Doe, Jane"\n"Roe, Al"\n')
    assert roster.read_roster(path) == {"Doe-Jane": "Doe, Jane", "Roe-Al": "Roe, Al"}
    path.write_text("id, email\ns1, doe@x.org\ns2, roe@x.org\n")
    assert list(roster.read_roster(path)) == ["s1", "s2"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_rosters_in_spreadsheet_encodings_are_read(tmp_path, encoding):
    (tmp_path / "names").write_text("Nachname\tMail\nMüller, Jörg\tmj@x.org\n", encoding=encoding)
    assert roster.read_roster(tmp_path / "names") == {"Müller-Jörg": "Müller, Jörg"}


def test_a_new_exercise_is_a_valid_source(tmp_path, capsys):
    assert main(["new", "08_my_idea", "--source", str(tmp_path)]) == 0
    notebook = sources.notebook(tmp_path, "08_my_idea")
    nbformat.validate(notebook)
    space = {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and "%pip" not in cell.source:
            exec(cell.source, space)
    assert main(["new", "08_my_idea", "--source", str(tmp_path)]) == 2
    assert "08_my_idea already exists" in capsys.readouterr().err
    with pytest.raises(LabError, match=r"must look like 08_my_idea, got 'Mine'"):
        scaffold.new(tmp_path, "Mine")


def test_a_missing_or_wrong_secret_is_an_error(tmp_path):
    secret = "a secret of the course"

    def read(numbers, given):
        found = []
        for name, number in numbers.items():
            cells, file = [nbformat.v4.new_code_cell(f"VARIANT = {number}")], tmp_path / f"{name}.ipynb"
            nbformat.write(nbformat.v4.new_notebook(cells=cells), file)
            found.append(entries.read_entry(submissions.Submission(name, file), "x", given, None))
        entries.check_secret(found, given)
        return found

    own = {name: roster.variant_number(secret, name) for name in ("jane", "john", "eve")}
    assert all(entry.own for entry in read(own, secret))
    [*_, eve] = read(own | {"eve": own["jane"]}, secret)
    assert (eve.own, eve.number) == (False, own["eve"])
    [*_, eve] = read(dict.fromkeys(own, 0) | {"eve": 5}, None)
    assert (eve.own, eve.number) == (False, 0)
    [eve] = read({"eve": own["jane"]}, secret)
    assert (eve.own, eve.number) == (False, own["eve"]), "a single mismatch is the student's, even if nobody else"
    for numbers, count in ((own, 3), ({"eve": own["eve"]}, 1)):
        with pytest.raises(LabError, match=rf"{count} of {count} notebooks .*: pass the --secret"):
            read(numbers, None)
    with pytest.raises(LabError, match=r"3 of 3 notebooks .*wrong --secret"):
        read(own, "the secret of another")


def test_grading_without_a_sandbox_needs_unfenced(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # without the command that creates one
    working_prefix.cache_clear()
    try:
        with pytest.raises(LabError, match=r"allows no sandbox \(the command unshare is not installed\).*--unfenced"):
            grading.grade(tmp_path, "04_masking", tmp_path, tmp_path / "grading")
        with pytest.raises(LabError, match="no exercise"):  # grading continues to its next check
            grading.grade(tmp_path, "04_masking", tmp_path, tmp_path / "grading", unfenced=True, say=list)
        assert not (tmp_path / "grading").exists()
    finally:
        working_prefix.cache_clear()


@pytest.mark.parametrize(
    ("option", "others"), [("--scale", []), ("--column", ["x"]), ("--roster", ["names", "--moodle", "x.csv"])]
)
def test_unused_options_of_marks_are_refused(tmp_path, capsys, option, others):
    assert main(["marks", "--folder", str(tmp_path), option, *others]) == 2
    assert option in capsys.readouterr().err


def test_help_shows_defaults(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    for command, default in (("release", "notebooks/exercises/source"), ("grade", "./grading"), ("marks", "./grading")):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert default in capsys.readouterr().out


@pytest.mark.parametrize("command", ["marks", "feedback", "statistics", "similar", "contest"])
def test_a_folder_without_grading_is_named(tmp_path, capsys, command):
    assert main([command, "--folder", str(tmp_path / "no")]) == 2
    said = capsys.readouterr().err
    assert f"has been graded in {tmp_path}/no: run grade first, or pass another --folder" in said
    assert list(tmp_path.iterdir()) == []


def test_grading_outside_the_repository_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["grade", "04_masking", str(tmp_path), "--unfenced"]) == 2
    said = capsys.readouterr().err
    assert f"no folder notebooks/exercises/source in {tmp_path}: run this in the root of the repository" in said
    scaffold.new(tmp_path / "source", "08_my_idea")
    assert main(["grade", "08_my_idea", "no.zip", "--source", "source", "--unfenced"]) == 2
    assert "no submissions at no.zip" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_roster_needs_the_secret(tmp_path, capsys):
    (tmp_path / "names").write_text("Jane Doe\n")
    assert main(["grade", "04_masking", str(tmp_path), "--roster", str(tmp_path / "names"), "--unfenced"]) == 2
    assert "needs the course's secret: --secret FILE" in capsys.readouterr().err


def test_the_variant_identifies_the_student():
    secret, cells = "a secret of the course", [nbformat.v4.new_code_cell("VARIANT = {}")]
    number = {name: roster.variant_number(secret, name) for name in ("jane", "john")}

    def whose(stated, student, names=("jane", "john")):
        cells[0].source, remarks = f"VARIANT = {stated}", []
        return *entries.whose(cells, student, secret, names, remarks), " ".join(remarks)

    assert whose(number["jane"], "jane") == ("jane", number["jane"], "")
    assert whose(number["jane"], "final version") == ("jane", number["jane"], "handed in as final version")
    copied = whose(number["jane"], "john")
    assert copied[:2] == ("john", number["john"])
    assert "is that of jane; graded with the student's own" in copied[2]
    stranger = whose(5, "eve")
    assert stranger[:2] == ("eve", roster.variant_number(secret, "eve"))
    assert "5, which is nobody's" in stranger[2]
    assert "not on the roster" in stranger[2]
    assert entries.whose(cells, "jane", None, None, []) == ("jane", 0)


@pytest.mark.parametrize("spelled", ["Jorg Muller", "Jo\u0308rg Mu\u0308ller"])
def test_a_name_is_found_on_the_roster_in_another_spelling(spelled):
    secret, cells = "a secret of the course", [nbformat.v4.new_code_cell("VARIANT = {}")]
    cells[0].source, remarks = f"VARIANT = {roster.variant_number(secret, 'Jörg Müller')}", []
    who, _ = entries.whose(cells, names.plain(spelled), secret, ["Ann", "Jörg-Müller"], remarks)
    assert (who, remarks) == ("Jörg-Müller", [])


@pytest.mark.parametrize("folder", ["grading[1]", "grading?", "lab*/grading"])
def test_folders_that_nbgrader_cannot_search_are_refused(tmp_path, capsys, monkeypatch, folder):
    for arguments in (["marks", "--folder", str(tmp_path / folder)], ["marks"]):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        with pytest.raises(SystemExit):
            main(arguments)
        assert "argument --folder: must not have" in capsys.readouterr().err


def test_two_students_of_a_name_are_never_merged(tmp_path):
    """Earlier downloads gave both the same name, or the variant of a third belongs to both."""

    def entry(name, number):
        return entries.Entry(submissions.Submission(name, None, number=number), "s1001", remarks=[])

    who = [entry("Ann", "1"), entry("Bo", "2"), entry("s1001", "3")]
    assert [each.student for each in entries.one_each(who)] == ["Ann", "Bo", "s1001"]


def test_a_copied_notebook_replaces_nobodys_submission(tmp_path):
    """The roster has ids and the platform has names: Bob hands in a copy of Alice's notebook after her."""
    secret, ids = "a secret of the course", ("s1001", "s1002")
    cells = [nbformat.v4.new_code_cell(f"VARIANT = {roster.variant_number(secret, 's1001')}")]
    for time, name in enumerate(("Alice Ash_11", "Bob Birch_12"), 1):
        path = tmp_path / "in" / f"{name}_assignsubmission_file_" / "x.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
        os.utime(path, (time, time))

    def who(rows):
        found, _ = submissions.find(tmp_path / "in", "x", tmp_path / "out")
        read = [entries.read_entry(submission, "x", secret, ids) for submission in found]
        return {entry.student: entry.remarks for entry in entries.one_each(read, rows)}

    words = "the variant of s1001 was handed in by Alice-Ash and by Bob-Birch: check who copied it"
    assert who({}) == {"Alice-Ash": [words], "Bob-Birch": [words]}
    assert who({"s1001": {"number": "11"}}) == {"Bob-Birch": [words], "s1001": ["handed in as Alice-Ash", words]}


@pytest.fixture
def a_class(tmp_path, monkeypatch):
    """Functions that hand in a student's variant under a name, and grade without nbgrader.

    Grading returns the remarks of each row, and the output.
    """
    scaffold.new(tmp_path / "source", "08_my_idea")
    release, secret = sources.notebook(tmp_path / "source", "08_my_idea"), "a secret of the course"
    marks = {"status": "graded", "score": 2.0, "most": 4.0, "by_hand": ["why"], "seconds": 1.0}
    monkeypatch.setattr(grading, "prepare", lambda _, folder, name: write(release, folder / "release" / name, name))
    monkeypatch.setattr(grading, "is_prepared", lambda *_: True)
    monkeypatch.setattr(grading, "_run", lambda job, limits, remarks: marks | {"remarks": [*remarks, *of_its_run]})
    of_its_run = []

    def write(notebook, folder, name):
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / f"{name}.ipynb")

    def hand_in(name, owner):
        made = sources.with_variant(copy.deepcopy(release), roster.variant_number(secret, owner))
        write(made, tmp_path / "in", name)

    def grade(*names, **more):
        said, source = [], tmp_path / "source"
        what = (tmp_path / "in", "08_my_idea", source, tmp_path / "grading")
        rows = grading.grade(*what, secret=secret, roster=names, unfenced=True, say=said.append, **more)
        return {row["student"]: row["remarks"] for row in rows}, "\n".join(said)

    grade.of_its_run = of_its_run
    return hand_in, grade


def test_remarks_are_updated_for_unchanged_submissions(a_class):
    hand_in, grade = a_class
    grade.of_its_run.append("a cell ended its process")
    hand_in("ann", "ann")
    hand_in("cy", "cy")
    assert grade("cy")[0]["ann"] == ["not on the roster", "a cell ended its process"]
    assert grade("ann", "bo", "cy")[0]["ann"] == ["a cell ended its process"]
    hand_in("Bob Birch", "ann")
    words = "the variant of ann was handed in by Bob-Birch and by ann: check who copied it"
    rows, _ = grade("ann", "bo", "cy")
    assert rows["ann"] == [words, "a cell ended its process"]
    assert words in rows["Bob-Birch"]
    assert grade("ann", "bo", "cy")[0] == rows


def test_rows_without_a_file_are_reported_and_can_be_forgotten(a_class, tmp_path):
    """Otherwise a renamed submission would count twice."""
    hand_in, grade = a_class
    hand_in("Ann", "Ann")
    hand_in("Bo", "Bo")
    assert "not among these" not in grade()[1]
    (tmp_path / "in" / "Bo.ipynb").rename(tmp_path / "in" / "Bobby.ipynb")
    rows, said = grade()
    assert (set(rows), "in the report, but not among these submissions: Bo\n" in said) == ({"Ann", "Bo", "Bobby"}, True)
    with pytest.raises(LabError, match=r"'Boo' has no row in the report of 08_my_idea; these have: Bo"):
        grade(forget=["Boo"])
    rows, said = grade(forget=["bo"])
    assert (set(rows), "not among these" in said) == ({"Ann", "Bobby"}, False)


def test_for_students_already_graded_only_remarks_are_printed(a_class, tmp_path):
    hand_in, grade = a_class
    hand_in("Ann", "Ann")
    hand_in("Bo", "Ann")
    (tmp_path / "in" / "Cy.ipynb").write_text("%PDF")
    assert "Ann: 2 of 4, 1 s; to be marked by hand: why" in grade()[1]
    said = grade()[1].splitlines()
    assert said[-3] == "3 of 3 were graded before and have not changed"
    assert "Bo: the variant in the notebook is" in said[-2]
    assert "Cy: NOT GRADED; the file is not a notebook" in said[-1]


@pytest.mark.parametrize("text", ["%PDF", nbformat.writes(nbformat.v4.new_notebook())])
def test_an_ungradable_file_replaces_the_earlier_one(a_class, tmp_path, text):
    """Otherwise an override for the earlier one would count for the new one without a remark."""
    hand_in, grade = a_class
    hand_in("Ann", "Ann")
    grade()
    kept = submitted(tmp_path / "grading", "Ann", "08_my_idea")
    assert kept.exists()
    (tmp_path / "in" / "Ann.ipynb").write_text(text)
    assert "Ann: NOT GRADED" in grade()[1]
    assert not kept.exists()


def test_names_ignore_case_and_errors_list_similar_ones(a_class):
    hand_in, grade = a_class
    for name in ("Jane-Doe", "Kim"):
        hand_in(name, name)
    assert "[1/1] Jane-Doe: 2 of 4" in grade(only=["jane doe"])[1]
    with pytest.raises(LabError, match=r"'Jnae-Doe' has no submission in .*/in; these have: Jane-Doe$"):
        grade(only=["Jnae-Doe"])
    assert names.meant("jane", ["Jane", "jane"], "row") == "jane"
    assert names.meant("jorg doe", ["Jörg-Doe", "Jorgen"], "row") == "Jörg-Doe"
    with pytest.raises(LabError, match="'JANE' has no row; these have: Jane, jane"):
        names.meant("JANE", ["Jane", "jane"], "row")
    with pytest.raises(LabError, match=r"'x' has no row; these have: s0, s1, s10, s100, s101$"):
        names.meant("x", [f"s{number}" for number in range(200)], "row")


def test_reports_contain_no_control_characters():
    assert without_control("\x1b]0;title\x07 \u202egnp.exe\r\n\u00fc\ud800") == "]0;title gnp.exe  \u00fc"


ROW = {"student": "jane", "status": "graded", "score": 1, "most": 2, "seconds": 1, "remarks": []}


@pytest.mark.parametrize(
    "report",
    [
        [1],
        {"04": [ROW]},
        {"04": {"jane": ROW}, "exercises": ["04"]},
        {"04": {"jane": {"student": "jane"}}},
        *({"04": {"jane": ROW | {name: [[]]}}} for name in (*ROW, "by_hand", "handed_in", "number")),
    ],
)
def test_a_damaged_report_is_refused(tmp_path, report):
    (tmp_path / "report.json").write_text(json.dumps(report))
    with pytest.raises(LabError, match=r"report\.json is damaged .*: grade again into another folder"):
        outdated(tmp_path)


def is_killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def is_interrupted(task, *_):
    if task == "ada's":  # once: a second Ctrl-C would interrupt the cleanup after the first
        os.kill(os.getppid(), signal.SIGINT)
    signal.pause()


KILLED = "a grading process was killed.*; to continue, run the same command again, with fewer --jobs"


@pytest.mark.parametrize(
    ("what", "error", "words"), [(is_killed, LabError, KILLED), (is_interrupted, KeyboardInterrupt, None)]
)
def test_a_killed_grading_process_leaves_no_other(monkeypatch, what, error, words):
    """Of two parallel processes, one is killed as if memory ran out, or the instructor presses Ctrl-C."""
    monkeypatch.setattr(grading, "_run", what)
    found = [entries.Entry(submissions.Submission(name, None), name) for name in ("ada", "bob")]
    with pytest.raises(error, match=words):
        list(grading._each(found, ["ada's", "bob's"], supervision.Limits(), jobs=2))
    until(lambda: not multiprocessing.active_children(), 60)
