"""What an instructor calls, in parts: names, zips, secrets, the scaffold. None needs nbgrader."""

import copy
import datetime as dt
import json
import multiprocessing
import os
import re
import signal
import zipfile

import nbformat
import pytest

from dgc_lab.cluster.private_network import first_way
from dgc_lab.common import LabError
from dgc_lab.course import entries, grading, roster, scaffold, sources, submissions, unzip
from dgc_lab.course.__main__ import main
from dgc_lab.course.report import outdated, without_control
from dgc_lab.marking import supervision
from kernels import until


def test_zips_stay_in_their_folder_and_within_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(unzip, "MOST_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("jane/04.ipynb", "{}")
        file.writestr("__MACOSX/jane/._04.ipynb", "x")
        file.writestr("john.ipynb", "0" * 100_000)
        for name in ("../up.ipynb", "/root.ipynb", "a/../../b.ipynb", "C:/c.ipynb", "..\\d.ipynb"):
            file.writestr(name, "{}")
        link = zipfile.ZipInfo("link.ipynb")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc/passwd")
    found, remarks = submissions.find(tmp_path / "all.zip", "04", tmp_path / "out")
    assert [(each.student, each.path and each.path.name) for each in found] == [("jane", "04.ipynb"), ("john", None)]
    assert sum("leads out" in remark for remark in remarks) == len(remarks) == 6
    assert "too large" in found[1].remarks[0]
    assert {path.name for path in tmp_path.iterdir()} == {"all.zip", "out"}


def test_one_notebook_of_each_student(tmp_path):
    for name in ("jane/old.ipynb", "jane/04_masking.ipynb", "john_1_2_x.ipynb", "john_1_3_x-1.ipynb", "jim/a.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("{}")
    for older in ("jane/04_masking.ipynb", "john_1_2_x.ipynb"):
        os.utime(tmp_path / "in" / older, (1, 1))
    found, _ = submissions.find(tmp_path / "in", "04_masking", tmp_path / "out")
    chosen = {each.student: each.path and each.path.name for each in found}
    assert chosen == {"jane": "04_masking.ipynb", "jim": None, "john": "john_1_3_x-1.ipynb"}
    with pytest.raises(LabError, match=r"no hand-ins at .*nowhere"):
        submissions.find(tmp_path / "nowhere", "04_masking", tmp_path / "out")


def test_the_newest_is_the_newest_by_the_platforms_word(tmp_path):
    names = ("12-34 - Jane Doe - Nov 21, 2026 105 PM/x.ipynb", "12-34 - Jane Doe - Nov 20, 2026 105 PM/x.ipynb")
    for time, name in enumerate(names):
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        (tmp_path / "in" / name).write_text("{}")
        os.utime(tmp_path / "in" / name, (time, time))
    ((jane,), _) = submissions.find(tmp_path / "in", "04_masking", tmp_path / "out")
    assert jane.time == "2026-11-21T13:05:00"
    assert jane.handed_in == names[0]


@pytest.mark.parametrize("blank", ["04_masking.ipynb", "04_masking (1).ipynb"])
def test_of_two_with_the_same_time_the_one_with_more_answers_counts(tmp_path, blank):
    """Moodle's zip has one time for all: the exercise as it was released must not win by its name."""

    def notebook(*answers):
        more = {"nbgrader": {"solution": True, "grade_id": "a"}}
        cells = [nbformat.v4.new_code_cell(answer, metadata=more) for answer in answers]
        return nbformat.writes(nbformat.v4.new_notebook(cells=cells))

    files = {"04_masking.ipynb": notebook("x = 1", "y = 2"), "04_masking (1).ipynb": notebook("x = 1", "y = 2")}
    files |= {blank: notebook("x = 1", "...  # your answer"), "04_masking-broken.ipynb": "%PDF"}
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        for name, text in files.items():
            when = zipfile.ZipInfo(f"Jane Doe_7_assignsubmission_file_/{name}", (2026, 11, 23, 8, 0, 0))
            file.writestr(when, text)
    ([jane], _) = submissions.find(tmp_path / "all.zip", "04_masking", tmp_path / "out")
    [solved] = files.keys() - {blank, "04_masking-broken.ipynb"}
    words = "of 3 with the same time the one with most answers"
    assert (jane.path.name, jane.remarks) == (solved, (f"3 notebooks handed in, {solved} was taken: {words}",))


@pytest.mark.parametrize(
    ("names", "students"),
    [
        # a folder with all hand-ins, zipped; once more in another folder; and a student's own folder
        (["04_masking/jane.ipynb", "04_masking/john.ipynb", "04_masking/read me.txt"], {"jane", "john", "read-me"}),
        (["a/b/jane/x.ipynb", "a/b/john/x.ipynb"], {"jane", "john"}),
        (["jane/old.ipynb", "jane/04_masking.ipynb"], {"jane"}),
        # Moodle without folders; Canvas, late and anonymous; Blackboard; Brightspace with and without folders; ids
        ([f"Al Ba_{n}_assignsubmission_file_04_masking.ipynb" for n in (1, 2)], {"Al-Ba-1", "Al-Ba-2"}),
        ([f"Jane Doe_{n}_assignsubmission_file/04_masking-1.ipynb" for n in (7, 8)], {"Jane-Doe-7", "Jane-Doe-8"}),
        (["doejane_LATE_47_11_04_masking-1.ipynb", "roe_48_12_x.ipynb"], {"doejane", "roe"}),
        (["anon_aB3dE_11_x.ipynb", "anon_LATE_fG4hI_12_x.ipynb"], {"anon-aB3dE", "anon-fG4hI"}),
        (
            [
                f"Masking_{who}_attempt_2026-11-21-10-00-00{rest}"
                for who in ("a_doe", "b_doe")
                for rest in ("_x.ipynb", ".txt")
            ],
            {"a_doe", "b_doe"},
        ),
        (["Masking_jdoe_attempt_2026-11-21-10-00-00_x.ipynb"], {"jdoe"}),
        (
            [
                "index.html",
                "12-34 - Jane Doe-Roe - Nov 21, 2026 1005 AM/x.ipynb",
                "12-34 - Jane Doe-Roe - Nov 22, 2026 905 PM/x.ipynb",
                "13-34 - Al Ba - 21 November, 2026 1005/x.ipynb",
            ],
            {"Jane-Doe-Roe", "Al-Ba"},
        ),
        (["12-34 - Jane Doe - Nov 21, 2026 1005 AM - 04_masking.ipynb", "j.ipynb"], {"Jane-Doe", "j"}),
        (["s-1001.ipynb", "s-1002.ipynb", "s-1002 (1).ipynb", "s-1002-Copy1.ipynb"], {"s-1001", "s-1002"}),
        # two of one name, and one who hands in twice
        ([f"Al Ba_{n}_assignsubmission_file_/x.ipynb" for n in (1, 2)], {"Al-Ba-1", "Al-Ba-2"}),
        (["ab_1_2_x.ipynb", "ab_LATE_1_3_x-1.ipynb", "ab.ipynb"], {"ab"}),
        (["Mu\u0308ller.ipynb", "M\u00fcller (1).ipynb"], {"Muller"}),
        (["M\u00fcller.ipynb", "Muller.ipynb"], {"Muller-a784", "Muller-5cc7"}),
        # what cannot be unpacked costs nobody else
        (["n" * 300 + ".ipynb", "a/b.ipynb", "a", "jane.ipynb"], {"a", "jane", "n" * 80}),
    ],
)
def test_whoever_handed_in_is_found(tmp_path, names, students):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        for name in names:
            file.writestr(name, "{}")
    found, _ = submissions.find(tmp_path / "all.zip", "04_masking", tmp_path / "out")
    assert {each.student for each in found} == students


def test_the_newer_of_two_in_a_zip_counts_and_a_students_zip_is_no_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(unzip, "MOST_OF_ONE", 3000)
    monkeypatch.setattr(unzip, "MOST_BYTES", 2000)
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in" / "jane.zip", "w") as file:
        for year, name in ((2026, "b.ipynb"), (2025, "c.ipynb"), (2024, "a.ipynb")):
            file.writestr(zipfile.ZipInfo(name, (year, 1, 1, 12, 0, 0)), "{}")
    with zipfile.ZipFile(tmp_path / "in" / "john.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for number in range(9):
            file.writestr(f"{number}.ipynb", "0" * 1900)
    [jane, john], _ = submissions.find(tmp_path / "in", "04_masking", tmp_path / "out")
    assert jane.path.name == "b.ipynb"
    assert "too large when unpacked; the rest was left out" in " ".join(john.remarks)
    assert sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.ipynb")) < 3100


def test_what_cannot_be_unpacked_of_a_class_is_somebodys_and_has_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(unzip, "MOST_BYTES", 1000)
    names = {number: f"{name}_{number}_assignsubmission_file_" for number, name in enumerate(("Ada", "Bo", "Cy", "Di"))}
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        file.writestr(f"{names[0]}/x.ipynb", "{}")
        file.writestr(f"{names[1]}/x.ipynb", "1" * 1001)
        file.writestr(f"{names[2]}/x.ipynb", "2" * 100)
        file.writestr(f"{names[3]}/x.ipynb", "{}")
        file.writestr(f"{names[3]}/x (1).ipynb", "3" * 1001)
    data = (tmp_path / "all.zip").read_bytes()
    (tmp_path / "all.zip").write_bytes(data.replace(b"2" * 100, b"4" * 100))
    (ada, bo, cy, di), _ = submissions.find(tmp_path / "all.zip", "x", tmp_path / "out")
    assert ada.path.name == di.path.name == "x.ipynb"
    assert (bo.path, bo.number, bo.handed_in) == (None, "1", f"{names[1]}/x.ipynb")
    assert "all.zip: x.ipynb is too large when unpacked" in bo.remarks[0]
    assert cy.path is None
    assert "all.zip: x.ipynb cannot be unpacked: Bad CRC-32" in cy.remarks[0]
    assert "all.zip: x (1).ipynb is too large" in di.remarks[0]


def test_whoever_comes_after_what_a_zip_may_hold_is_found(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        for name in ("ada", "bo", "cy"):
            file.writestr(f"{name}.ipynb", "1" * 100)
    _, lost = unzip.unpack(tmp_path / "all.zip", tmp_path / "out", most=150)
    assert [path.name for path in lost] == ["bo.ipynb", "cy.ipynb"]


def test_a_full_disk_ends_grading_and_is_nobodys_fault(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    scaffold.new(tmp_path, "08_my_idea")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        file.writestr("ada.ipynb", "{}")
    monkeypatch.setattr(grading, "prepare", lambda *_: None)  # which needs nbgrader
    monkeypatch.setattr(unzip.shutil, "copyfileobj", full)
    with pytest.raises(LabError, match=r"no room is left on the disk of .*/grading: make some"):
        grading.grade(tmp_path / "all.zip", "08_my_idea", tmp_path, tmp_path / "grading", unfenced=True, say=list)
    entry = entries.Entry(submissions.Submission("ada", None), "ada")
    with pytest.raises(OSError, match="No space left"), entries._told(entry):
        full()


@pytest.mark.parametrize("way", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_is_broken_holds_up_nobody_and_fills_no_disk(tmp_path, monkeypatch, way):
    monkeypatch.setattr(unzip, "MOST_OF_ONE", 500_000)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ada.ipynb").write_text("{}")
    with zipfile.ZipFile(tmp_path / "in" / "eve.zip", "w", way) as file:
        for number in range(20):
            file.writestr(f"{number}.ipynb", os.urandom(200_000))
        places = [entry.header_offset for entry in file.infolist()]
    data = bytearray((tmp_path / "in" / "eve.zip").read_bytes())
    for place in places:
        data[place + 199_000 : place + 199_010] = b"\xff" * 10
    (tmp_path / "in" / "eve.zip").write_bytes(data)
    read = []
    take = unzip._Limited.read
    monkeypatch.setattr(unzip._Limited, "read", lambda *given: read.append(take(*given)) or read[-1])
    [ada, eve], _ = submissions.find(tmp_path / "in", "x", tmp_path / "out")
    assert (ada.path.name, eve.path) == ("ada.ipynb", None)
    assert "cannot be unpacked" in " ".join(eve.remarks)
    assert sum(map(len, read)) <= 700_001


def test_a_secret_is_made_once_and_read_by_its_owner_alone(tmp_path):
    with pytest.raises(LabError, match=r"no secret at .*the file that the release was made with"):
        roster.read_secret(tmp_path / "secret")
    secret = roster.read_secret(tmp_path / "secret", make=True)
    assert len(secret) >= 16
    assert roster.read_secret(tmp_path / "secret") == secret
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
    (tmp_path / "short").write_text("abc")
    with pytest.raises(LabError, match=r"at least 16 characters, it has 3"):
        roster.read_secret(tmp_path / "short")
    for heading in ("Email", "E-mail address", "student", "SIS Login ID", "Last name", "Username"):
        (tmp_path / "names").write_text(f"{heading};x\nMüller, Al;1\n")
        assert roster.read_roster(tmp_path / "names") == {"Muller-Al": "Müller, Al"}
    (tmp_path / "names").write_text("José\nJose\n")
    with pytest.raises(LabError, match=r"'Jose' and 'José' cannot be told apart"):
        roster.read_roster(tmp_path / "names")


@pytest.mark.parametrize(
    "heading", ["Vollständiger Name", "Matrikelnummer", "Nom complet", "Apellido(s)", "Email address"]
)
def test_a_heading_is_no_student(tmp_path, heading):
    (tmp_path / "names").write_text(f"{heading};x\nJane Doe;1\n")
    assert roster.read_roster(tmp_path / "names") == {"Jane-Doe": "Jane Doe"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_a_roster_is_read_as_a_spreadsheet_saves_it(tmp_path, encoding):
    (tmp_path / "names").write_text("Nachname\tMail\nMüller, Jörg\tmj@x.org\n", encoding=encoding)
    assert roster.read_roster(tmp_path / "names") == {"Muller-Jorg": "Müller, Jörg"}


def test_two_of_one_name_in_two_downloads_stay_two(tmp_path):
    """One download has the first Jane Doe, the next the second, a third both: three times the same two."""

    def download(*numbers):
        for number in numbers:
            folder = tmp_path / "-".join(numbers) / f"Jane Doe_{number}_assignsubmission_file_"
            folder.mkdir(parents=True)
            (folder / "x.ipynb").write_text("{}")
        found, _ = submissions.find(tmp_path / "-".join(numbers), "x", tmp_path / "unpacked")
        return [(each.student, each.number) for each in grading._as_before(found, rows)]

    rows = {}
    assert download("71") == [("Jane-Doe", "71")]
    rows["Jane-Doe"] = {"number": "71"}
    assert download("72") == [("Jane-Doe-72", "72")]
    rows["Jane-Doe-72"] = {"number": "72"}
    assert download("71", "72") == [("Jane-Doe", "71"), ("Jane-Doe-72", "72")]
    rows = {f"Jane-Doe-{number}": {"number": number} for number in ("81", "82")}
    assert download("82") == [("Jane-Doe-82", "82")]


def test_a_new_exercise_obeys_the_rules_of_a_source(tmp_path, capsys):
    assert main(["new", "08_my_idea", "--source", str(tmp_path)]) == 0
    notebook = sources.notebook(tmp_path, "08_my_idea")
    nbformat.validate(notebook)
    space = {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and "%pip" not in cell.source:
            exec(cell.source, space)
    assert main(["new", "08_my_idea", "--source", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    with pytest.raises(LabError, match=r"named like 08_my_idea, got 'Mine'"):
        scaffold.new(tmp_path, "Mine")


def test_a_secret_that_was_forgotten_or_is_another_ones_is_an_error(tmp_path):
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
    with pytest.raises(LabError, match=r"3 of 3 notebooks .* needs the --secret"):
        read(own, None)
    with pytest.raises(LabError, match=r"3 of 3 .* another one's"):
        read(own, "the secret of another")


def test_without_a_fence_nothing_is_graded_unless_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no command that makes one
    first_way.cache_clear()
    try:
        with pytest.raises(LabError, match=r"allows no fence \(the command unshare is not installed\).*--unfenced"):
            grading.grade(tmp_path, "04_masking", tmp_path, tmp_path / "grading")
        with pytest.raises(LabError, match="no exercise"):  # it goes on to the next question
            grading.grade(tmp_path, "04_masking", tmp_path, tmp_path / "grading", unfenced=True, say=list)
        assert not (tmp_path / "grading").exists()
    finally:
        first_way.cache_clear()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--scale"], "--column and --scale are for a platform's own file"),
        (["--column", "x"], "--column and --scale are for a platform's own file"),
        (["--moodle", "x.csv", "--roster", "names"], "--roster is for the table of marks, and --moodle fills"),
    ],
)
def test_an_option_of_marks_that_would_do_nothing_is_refused(tmp_path, capsys, options, words):
    assert main(["marks", *options, "--folder", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err


def test_help_names_every_default_and_calls_things_as_the_guide_does(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    for command, default in (("release", "notebooks/exercises/source"), ("grade", "./grading"), ("marks", "./grading")):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        said = capsys.readouterr().out
        assert default in said
        assert "EXERCISE" in said
        assert not re.search("assignment|submission", said)


@pytest.mark.parametrize("command", ["marks", "feedback", "statistics", "similar", "contest"])
def test_a_folder_without_grading_is_named_with_what_to_do(tmp_path, capsys, command):
    assert main([command, "--folder", str(tmp_path / "no")]) == 2
    said = capsys.readouterr().err
    assert f"has been graded in {tmp_path}/no: grade first, or name another grading folder (--folder)" in said
    assert list(tmp_path.iterdir()) == []


def test_grading_in_another_folder_says_where_to_do_it_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["grade", "04_masking", str(tmp_path), "--unfenced"]) == 2
    said = capsys.readouterr().err
    assert f"no folder notebooks/exercises/source in {tmp_path}: run this at the top of the repository" in said
    scaffold.new(tmp_path / "source", "08_my_idea")
    assert main(["grade", "08_my_idea", "no.zip", "--source", "source", "--unfenced"]) == 2
    assert "no submissions at no.zip" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_roster_without_the_secret_is_refused(tmp_path, capsys):
    (tmp_path / "names").write_text("Jane Doe\n")
    assert main(["grade", "04_masking", str(tmp_path), "--roster", str(tmp_path / "names"), "--unfenced"]) == 2
    assert "takes the course's secret: --secret FILE" in capsys.readouterr().err


def test_whose_a_notebook_is():
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
    assert "5, nobody's" in stranger[2]
    assert "not on the roster" in stranger[2]
    assert entries.whose(cells, "jane", None, None, []) == ("jane", 0)


def test_a_copy_under_another_name_takes_nobodys_place(tmp_path):
    """The roster has ids, the platform names: Bob hands in a copy of Alice's notebook, later than she does."""
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

    words = "the variant of s1001 was handed in by Alice-Ash and by Bob-Birch: who has copied it?"
    assert who({}) == {"Alice-Ash": [words], "Bob-Birch": [words]}
    assert who({"s1001": {"number": "11"}}) == {"Bob-Birch": [words], "s1001": ["handed in as Alice-Ash", words]}


@pytest.fixture
def a_class(tmp_path, monkeypatch):
    """Hands in whose variant under what name, and grades all but what needs nbgrader: the rows and what was said."""
    scaffold.new(tmp_path / "source", "08_my_idea")
    release, secret = sources.notebook(tmp_path / "source", "08_my_idea"), "a secret of the course"
    marks = {"status": "graded", "score": 2.0, "most": 4.0, "by_hand": ["why"], "seconds": 1.0}
    monkeypatch.setattr(grading, "prepare", lambda _, folder, name: write(release, folder / "release" / name, name))
    monkeypatch.setattr(grading, "is_prepared", lambda *_: True)
    monkeypatch.setattr(grading, "_run", lambda task, limits, remarks: marks | {"remarks": [*remarks, *of_its_run]})
    of_its_run = []

    def write(notebook, folder, name):
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / f"{name}.ipynb")

    def hand_in(name, owner):
        made = sources.with_variant(copy.deepcopy(release), roster.variant_number(secret, owner))
        write(made, tmp_path / "in", name)

    def grade(*names, **more):
        said, source = [], tmp_path / "source"
        what = (tmp_path / "in", "08_my_idea", source, tmp_path / "grading", secret, names)
        rows = grading.grade(*what, unfenced=True, say=said.append, **more)
        return {row["student"]: row["remarks"] for row in rows}, "\n".join(said)

    grade.of_its_run = of_its_run
    return hand_in, grade


def test_remarks_say_what_is_so_now_also_of_those_that_were_graded_before(a_class):
    hand_in, grade = a_class
    grade.of_its_run.append("a cell ended its process")
    hand_in("ann", "ann")
    hand_in("cy", "cy")
    assert grade("cy")[0]["ann"] == ["not on the roster", "a cell ended its process"]
    assert grade("ann", "bo", "cy")[0]["ann"] == ["a cell ended its process"]
    hand_in("Bob Birch", "ann")
    words = "the variant of ann was handed in by Bob-Birch and by ann: who has copied it?"
    rows, _ = grade("ann", "bo", "cy")
    assert rows["ann"] == [words, "a cell ended its process"]
    assert words in rows["Bob-Birch"]
    assert grade("ann", "bo", "cy")[0] == rows


def test_a_row_whose_file_is_gone_is_told_of_and_can_be_forgotten(a_class, tmp_path):
    """Else a hand-in that was renamed counts twice."""
    hand_in, grade = a_class
    hand_in("Ann", "Ann")
    hand_in("Bo", "Bo")
    assert "not among these" not in grade()[1]
    (tmp_path / "in" / "Bo.ipynb").rename(tmp_path / "in" / "Bobby.ipynb")
    rows, said = grade()
    assert (set(rows), "in the report, but not among these hand-ins: Bo\n" in said) == ({"Ann", "Bo", "Bobby"}, True)
    with pytest.raises(LabError, match=r"'Boo' has no row in the report of 08_my_idea; these have: Bo"):
        grade(forget=["Boo"])
    rows, said = grade(forget=["bo"])
    assert (set(rows), "not among these" in said) == ({"Ann", "Bobby"}, False)


def test_of_those_that_were_graded_before_only_what_to_know_is_said_once_more(a_class, tmp_path):
    hand_in, grade = a_class
    hand_in("Ann", "Ann")
    hand_in("Bo", "Ann")
    (tmp_path / "in" / "Cy.ipynb").write_text("%PDF")
    assert "Ann: 2 of 4, 1 s; to be marked by hand: why" in grade()[1]
    said = grade()[1].splitlines()
    assert said[-3] == "3 of 3 were graded before and have not changed"
    assert "Bo: the variant in the notebook is" in said[-2]
    assert "Cy: NOT GRADED; the file is no notebook" in said[-1]


def test_a_name_is_known_in_any_capitals_and_of_a_class_only_the_nearest_are_named(a_class):
    hand_in, grade = a_class
    for name in ("Jane-Doe", "Kim"):
        hand_in(name, name)
    assert "[1/1] Jane-Doe: 2 of 4" in grade(only=["jane doe"])[1]
    with pytest.raises(LabError, match=r"'Jnae-Doe' has no hand-in in .*/in; these have: Jane-Doe$"):
        grade(only=["Jnae-Doe"])
    assert submissions.meant("jane", ["Jane", "jane"], "row") == "jane"
    with pytest.raises(LabError, match="'JANE' has no row; these have: Jane, jane"):
        submissions.meant("JANE", ["Jane", "jane"], "row")
    with pytest.raises(LabError, match=r"'x' has no row; these have: s0, s1, s10, s100, s101$"):
        submissions.meant("x", [f"s{number}" for number in range(200)], "row")


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("12-34 - Jane Doe - Nov 21, 2026 105 PM - x.ipynb", "2026-11-21T13:05:00"),
        ("12-34 - Jane Doe - Nov 21, 2026 10.05PM/x.ipynb", "2026-11-21T22:05:00"),
        ("12-34 - Jane Doe-Roe - 21 November, 2026 1405/x.ipynb", "2026-11-21T14:05:00"),
        ("12-34 - Jane Doe - 21 November 2026 9.05.30 - x-1.ipynb", "2026-11-21T09:05:00"),
        ("12-34 - Jane Doe - 21 novembre 2026 14:05/x.ipynb", None),
        ("jane.ipynb", dt.datetime.fromtimestamp(0).isoformat()),
    ],
)
def test_when_it_was_handed_in(tmp_path, name, time):
    (tmp_path / "in" / name).parent.mkdir(parents=True)
    (tmp_path / "in" / name).write_text("{}")
    os.utime(tmp_path / "in" / name, (0, 0))
    ([jane], remarks) = submissions.find(tmp_path / "in", "x", tmp_path / "out")
    assert jane.time == time
    assert bool(remarks) == (time is None)
    assert time or f"the time in the name of {name} is not read" in remarks[0]


def test_a_report_steers_no_terminal():
    assert without_control("\x1b]0;title\x07 \u202egnp.exe\r\n\u00fc") == "]0;title gnp.exe  \u00fc"


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
def test_a_report_that_is_damaged_is_said_to_be_so(tmp_path, report):
    (tmp_path / "report.json").write_text(json.dumps(report))
    with pytest.raises(LabError, match=r"report\.json is damaged .*: grade again into another folder"):
        outdated(tmp_path)


def is_put_down(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def is_interrupted(task, *_):
    if task == "ada's":  # once: a second Ctrl-C would come into the first one's clearing up
        os.kill(os.getppid(), signal.SIGINT)
    signal.pause()


PUT_DOWN = "a grading process was ended from outside.*; the same command goes on where it was, try fewer --jobs"


@pytest.mark.parametrize(
    ("what", "error", "words"), [(is_put_down, LabError, PUT_DOWN), (is_interrupted, KeyboardInterrupt, None)]
)
def test_a_grading_process_that_ends_early_is_told_and_no_other_stays(monkeypatch, what, error, words):
    """Two grade at the same time; one is killed, as by a system short of memory, or the instructor presses Ctrl-C."""
    monkeypatch.setattr(grading, "_run", what)
    found = [entries.Entry(submissions.Submission(name, None), name) for name in ("ada", "bob")]
    with pytest.raises(error, match=words):
        list(grading._each(found, ["ada's", "bob's"], supervision.Limits(), jobs=2))
    until(lambda: not multiprocessing.active_children(), 60)
