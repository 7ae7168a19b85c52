"""Submissions in folders and zips from learning platforms are found, unpacked and assigned to students."""

import datetime as dt
import os
import struct
import zipfile

import nbformat
import pytest

from dgc_lab.common import LabError
from dgc_lab_grading.course import entries, submissions, unzip


def test_zips_stay_in_their_folder_and_size_limit(tmp_path, monkeypatch):
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
    assert sum("contains a path outside its folder" in remark for remark in remarks) == len(remarks) == 6
    assert "too large" in found[1].remarks[0]
    assert {path.name for path in tmp_path.iterdir()} == {"all.zip", "out"}


def test_one_notebook_per_student_is_chosen(tmp_path):
    for name in ("jane/old.ipynb", "jane/04_masking.ipynb", "john_1_2_x.ipynb", "john_1_3_x-1.ipynb", "jim/a.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("{}")
    for older in ("jane/04_masking.ipynb", "john_1_2_x.ipynb"):
        os.utime(tmp_path / "in" / older, (1, 1))
    found, _ = submissions.find(tmp_path / "in", "04_masking", tmp_path / "out")
    chosen = {each.student: each.path and each.path.name for each in found}
    assert chosen == {"jane": "04_masking.ipynb", "jim": None, "john": "john_1_3_x-1.ipynb"}
    with pytest.raises(LabError, match=r"no submissions at .*nowhere"):
        submissions.find(tmp_path / "nowhere", "04_masking", tmp_path / "out")


def test_a_notebook_with_another_ending_is_found(tmp_path):
    """Some browsers append .txt or .json, and Windows hides it."""
    (tmp_path / "in").mkdir()
    for name in ("ann.ipynb.txt", "bo.ipynb.json", "cy.json"):
        (tmp_path / "in" / name).write_text("{}")
    found, _ = submissions.find(tmp_path / "in", "04_masking", tmp_path / "out")
    assert [each.path and each.path.name for each in found] == ["ann.ipynb.txt", "bo.ipynb.json", None]


def test_the_platforms_time_decides_which_is_newest(tmp_path):
    names = ("12-34 - Jane Doe - Nov 21, 2026 105 PM/x.ipynb", "12-34 - Jane Doe - Nov 20, 2026 105 PM/x.ipynb")
    for time, name in enumerate(names):
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        (tmp_path / "in" / name).write_text("{}")
        os.utime(tmp_path / "in" / name, (time, time))
    ((jane,), _) = submissions.find(tmp_path / "in", "04_masking", tmp_path / "out")
    assert jane.time == "2026-11-21T13:05:00"
    assert jane.handed_in == names[0]


@pytest.mark.parametrize("blank", ["04_masking.ipynb", "04_masking (1).ipynb"])
def test_at_equal_times_the_one_with_more_answers_counts(tmp_path, blank):
    """Moodle's zip has one time for all files: the untouched exercise must not win by its name."""

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
    why = "the one with most answers of 3 with the same time"
    assert (jane.path.name, jane.remarks) == (solved, (f"3 notebooks handed in, {solved} was graded: {why}",))


@pytest.mark.parametrize(
    ("names", "students"),
    [
        # a zipped folder of submissions; nested in another folder; and a student's own folder
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
        ([f"Masking_{who}_attempt_2026-11-21-10-00-00_x.ipynb" for who in ("a", "a_doe")], {"a", "a_doe"}),
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
        (["ann.ipynb.txt", "04_masking_bo.ipynb.json", "cy.txt"], {"ann", "bo", "cy"}),
        (["s-1001.ipynb", "s-1002.ipynb", "s-1002 (1).ipynb", "s-1002-Copy1.ipynb"], {"s-1001", "s-1002"}),
        # two students of one name, and one who hands in twice
        ([f"Al Ba_{n}_assignsubmission_file_/x.ipynb" for n in (1, 2)], {"Al-Ba-1", "Al-Ba-2"}),
        (["ab_1_2_x.ipynb", "ab_LATE_1_3_x-1.ipynb", "ab.ipynb"], {"ab"}),
        (["Mu\u0308ller.ipynb", "M\u00fcller (1).ipynb"], {"M\u00fcller"}),
        (["M\u00fcller.ipynb", "Muller.ipynb", "\u674e \u96f7.ipynb"], {"M\u00fcller", "Muller", "\u674e-\u96f7"}),
        (["\u0939\u093f\u0928\u094d\u0926\u0940.ipynb"], {"\u0939\u093f\u0928\u094d\u0926\u0940"}),
        # names that differ only in upper and lower case, as on disks that ignore it
        (["ann.ipynb", "Ann.ipynb"], {"Ann-1723", "ann-4991"}),
        # ILIAS, with the table of all submissions beside the students' folders
        (
            [
                "Ex_1/Submissions/Doe_Jane_jdoe_471/x.ipynb",
                "Ex_1/Submissions/O Neil_Al B_al_b_472/y.pdf",
                "Ex_1/Ex_1.xlsx",
            ],
            {"Jane-Doe", "Al-B-O-Neil"},
        ),
        # a student's own name for a file imitates another platform, or another student
        (
            [
                "Masking_eve_attempt_2026-11-21-10-00-00_x_jdoe_attempt_2026-11-20-10-00-00_04_masking.ipynb",
                "Masking_jdoe_attempt_2026-11-21-10-05-00_x_12_assignsubmission_file_y.ipynb",
            ],
            {"eve", "jdoe"},
        ),
        (
            [
                "Eve_1_assignsubmission_file_x_2_assignsubmission_file_y.ipynb",
                "Jane_2_assignsubmission_file_12-34 - Eve - Nov 21, 2026 1005 AM.ipynb",
            ],
            {"Eve", "Jane"},
        ),
        # a made name for a namesake that is another student's
        (
            [f"{name}_assignsubmission_file_/x.ipynb" for name in ("Ann Bee_1", "Ann Bee_4711", "Ann Bee~4711_9")],
            {"Ann-Bee-1", "Ann-Bee-4711-4711", "Ann-Bee-4711"},
        ),
        # files that cannot be unpacked cost nobody else
        (["n" * 300 + ".ipynb", "a/b.ipynb", "a", "jane.ipynb"], {"a", "jane", "n" * 80}),
    ],
)
def test_every_student_is_found(tmp_path, names, students):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        for name in names:
            file.writestr(name, "{}")
    found, _ = submissions.find(tmp_path / "all.zip", "04_masking", tmp_path / "out")
    assert {each.student for each in found} == students


def test_a_students_zip_is_limited_and_its_newest_file_counts(tmp_path, monkeypatch):
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


def test_a_file_that_cannot_be_unpacked_has_an_owner_and_reason(tmp_path, monkeypatch):
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


def test_one_student_cannot_use_up_the_space_of_a_class(tmp_path, monkeypatch):
    """Eve hands in too many files, and Bo too large ones; the others lose nothing."""
    monkeypatch.setattr(unzip, "MOST_FILES_OF_ONE", 10)
    monkeypatch.setattr(unzip, "MOST_OF_ONE", 1000)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        for number in range(50):
            file.writestr(f"class/eve/{number}.txt", "x")
        for number in range(5):
            file.writestr(f"class/bo/{number}.ipynb", "1" * 300)
        file.writestr("class/jane/x.ipynb", "{}")
    [bo, eve, jane], _ = submissions.find(tmp_path / "all.zip", "04", tmp_path / "out")
    assert (jane.path.name, jane.remarks) == ("x.ipynb", ())
    assert "all.zip: more than 10 files; the rest was left out" in " ".join(eve.remarks)
    assert "too large when unpacked; the rest was left out" in " ".join(bo.remarks)
    assert len(list((tmp_path / "out").rglob("*.*"))) == 10 + 3 + 1


def test_a_students_zip_that_lists_millions_of_files_is_given_up(tmp_path, monkeypatch):
    """Its list alone would take gigabytes of the instructor's process."""
    monkeypatch.setattr(submissions, "MEMORY_OF_A_ZIP", 2**26)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ada.ipynb").write_text("{}")
    path = tmp_path / "in" / "eve.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x", "")
    data = path.read_bytes()
    start, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    # The fork inherits free memory of this process, up to a gigabyte after other tests: the list must exceed that, too.
    files = 3_000_000
    size = files * (end - start)
    last = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, size, start, 0)
    path.write_bytes(data[:start] + data[start:end] * files + last)
    [ada, eve], _ = submissions.find(tmp_path / "in", "x", tmp_path / "out")
    assert ada.path.name == "ada.ipynb"
    assert (eve.path, eve.remarks[0]) == (None, "eve.zip takes more than 60 s or 0.0625 GB of memory to unpack")


def test_files_beyond_a_zips_size_limit_are_listed(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        for name in ("ada", "bo", "cy"):
            file.writestr(f"{name}.ipynb", "1" * 100)
    monkeypatch.setattr(unzip, "MOST_IN_ALL", 150)
    _, lost = unzip.unpack(tmp_path / "all.zip", tmp_path / "out")
    assert [path.name for path in lost] == ["bo.ipynb", "cy.ipynb"]


@pytest.mark.nightly_except(str(zipfile.ZIP_DEFLATED))
@pytest.mark.parametrize("way", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_broken_zip_delays_nobody_and_fills_no_disk(tmp_path, monkeypatch, way):
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
    [ada, eve], _ = submissions.find(tmp_path / "in", "x", tmp_path / "out")
    assert (ada.path.name, eve.path) == ("ada.ipynb", None)
    assert "cannot be unpacked" in " ".join(eve.remarks)
    read = []
    take = unzip._TruncatedStream.read
    monkeypatch.setattr(unzip._TruncatedStream, "read", lambda *given: read.append(take(*given)) or read[-1])
    unzip.unpack(tmp_path / "in" / "eve.zip", tmp_path / "again")
    assert sum(map(len, read)) <= 700_001


def test_namesakes_in_separate_downloads_stay_separate(tmp_path):
    """One download has the first Jane Doe, the next the second, and a third has both."""

    def download(*numbers):
        for number in numbers:
            folder = tmp_path / "-".join(numbers) / f"Jane Doe_{number}_assignsubmission_file_"
            folder.mkdir(parents=True)
            (folder / "x.ipynb").write_text("{}")
        found, _ = submissions.find(tmp_path / "-".join(numbers), "x", tmp_path / "unpacked")
        return [(each.student, each.number) for each in entries.with_earlier_names(found, rows)]

    rows = {}
    assert download("71") == [("Jane-Doe", "71")]
    rows["Jane-Doe"] = {"number": "71"}
    assert download("72") == [("Jane-Doe-72", "72")]
    rows["Jane-Doe-72"] = {"number": "72"}
    assert download("71", "72") == [("Jane-Doe", "71"), ("Jane-Doe-72", "72")]
    rows = {f"Jane-Doe-{number}": {"number": number} for number in ("81", "82")}
    assert download("82") == [("Jane-Doe-82", "82")]


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("12-34 - Jane Doe - Nov 21, 2026 105 PM - x.ipynb", "2026-11-21T13:05:00"),
        ("12-34 - Jane Doe - Nov 21, 2026 10.05PM/x.ipynb", "2026-11-21T22:05:00"),
        ("12-34 - Jane Doe-Roe - 21 November, 2026 1405/x.ipynb", "2026-11-21T14:05:00"),
        ("12-34 - Jane Doe - 21 November 2026 9.05.30 - x-1.ipynb", "2026-11-21T09:05:00"),
        ("12-34 - Jane Doe - 21 novembre 2026 14:05/x.ipynb", None),
        # the end of a name is the student's, and changes nothing
        ("12-34 - Jane Doe - Nov 21, 2026 105 PM - x_attempt_2026-11-01-10-00-00_y.ipynb", "2026-11-21T13:05:00"),
        ("doejane_LATE_12_34_x_attempt_2026-11-01-10-00-00_y.ipynb", "late"),
        ("doejane_12_34_my_LATE_work.ipynb", None),
        ("M_jane_attempt_2026-11-21-10-00-00_x_attempt_2026-11-01-10-00-00_y.ipynb", "2026-11-21T10:00:00"),
        ("M_jane_attempt_2026-13-21-10-00-00_x.ipynb", None),
        ("jane/x_attempt_2026-11-01-10-00-00_y.ipynb", dt.datetime.fromtimestamp(0).isoformat()),
        ("Doe_Jane_jdoe_12/x_attempt_2026-11-01-10-00-00_y.ipynb", dt.datetime.fromtimestamp(0).isoformat()),
        ("jane.ipynb", dt.datetime.fromtimestamp(0).isoformat()),
    ],
)
def test_submission_times_are_read_from_names(tmp_path, name, time):
    (tmp_path / "in" / name).parent.mkdir(parents=True)
    (tmp_path / "in" / name).write_text("{}")
    os.utime(tmp_path / "in" / name, (0, 0))
    ([jane], remarks) = submissions.find(tmp_path / "in", "x", tmp_path / "out")
    assert jane.time == time
    assert bool(remarks) == ("novembre" in name)
    assert not remarks or f"cannot read the time in the name of {name}" in remarks[0]
