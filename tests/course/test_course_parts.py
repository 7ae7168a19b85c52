"""The parts of grading by themselves: limits that hold, names, zips, secrets, the scaffold. None needs nbgrader."""

import dataclasses
import os
import sys
import types
import zipfile
from pathlib import Path

import nbformat
import psutil
import pytest
from IPython.core.interactiveshell import InteractiveShell

from dgc_lab.common import LabError
from dgc_lab.course import by_hand, entries, guard, repair, roster, sandbox, scaffold, sources, submissions, supervision
from dgc_lab.course.__main__ import main
from dgc_lab.course.report import without_control

TIGHT = supervision.Limits(seconds=40, memory=2**30, disk=2**20)
IDLE = "import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('done')", None),
        ("raise SystemExit(3)", "exit code 3"),
        (IDLE, "longer than 1 s"),
        (f"open('big', 'wb').write(bytes(2**21)); {IDLE}", "more than 1 MB of files"),
        (f"import os; [os.fork() for _ in range(7)]; {IDLE}", "more than 64 processes"),
        # three processes that stay under the limit of one, and are over that of all
        (f"import os; os.fork(); os.fork(); x = b'1' * 800_000_000; {IDLE}", "of memory"),
    ],
)
def test_a_command_ends_within_its_limits_and_leaves_nothing(tmp_path, monkeypatch, code, words):
    monkeypatch.chdir(tmp_path)
    before = set(psutil.Process().children(recursive=True))
    limits = dataclasses.replace(TIGHT, seconds=1) if code == IDLE else TIGHT
    output, reason = supervision.run([sys.executable, "-c", code], limits, tmp_path, tmp_path / "log")
    assert (reason is None) == (words is None)
    assert words is None or words in reason
    assert words or output == "done\n"
    assert set(psutil.Process().children(recursive=True)) == before


def test_what_left_its_family_is_found_all_the_same(tmp_path):
    code = f"import os; os.setsid() if os.fork() == 0 else os._exit(0); os.fork() and os._exit(0); {IDLE}"
    before = set(psutil.Process().children(recursive=True))
    limits = dataclasses.replace(TIGHT, seconds=1)
    supervision.run([sys.executable, "-c", code], limits, tmp_path, tmp_path / "log")
    assert set(psutil.Process().children(recursive=True)) == before


@pytest.mark.skipif(sandbox.fence_missing() is not None, reason="this machine allows no fence")
def test_behind_the_fence_there_is_python_and_nothing_else(tmp_path):
    """What submissions must not do is tested with submissions; here is what the fence lets through."""
    home = tmp_path / "home"
    home.mkdir()
    plan = sandbox.Plan(str(home), sandbox.python_folders(), 2**30, 2**22, sandbox.entrance())
    code = (
        "import os, resource, sys, dgc_lab; print(sum(len(files) for _, _, files in os.walk(sys.argv[1])), "
        "*resource.getrlimit(resource.RLIMIT_NPROC), os.getcwd()); open('x', 'wb').write(bytes(2**23))"
    )
    command = [sys.executable, "-m", "dgc_lab.course.sandbox", plan.text(), sys.executable, "-c", code, str(home)]
    limits = supervision.Limits(seconds=60)
    output, reason = supervision.run(command, limits, home, tmp_path / "log")
    assert output.startswith("0 "), "the fence's own root must not show once more in the folder it is built in"
    assert output.endswith("1024 1024 /tmp\n" if "--user" in plan.entrance else "/tmp\n")
    assert reason
    assert any(words in (tmp_path / "log").read_text() for words in ("File too large", "No space left"))
    assert not (tmp_path / "x").exists()


def test_neither_a_checkout_nor_the_working_folder_can_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    folders = [Path(folder) for folder in sandbox.python_folders()]
    root = Path(sandbox.__file__).resolve().parents[2]
    assert not {tmp_path, root, root / "notebooks"} & set(folders)
    assert Path(nbformat.__file__).parents[1] in folders


def test_zips_stay_in_their_folder_and_within_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_BYTES", 1000)
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
    assert [(each.student, each.path.name) for each in found] == [("jane", "04.ipynb")]
    assert sum("leads out" in remark for remark in remarks) == 6
    assert sum("too large" in remark for remark in remarks) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"all.zip", "out"}


def test_one_notebook_of_each_student(tmp_path):
    for name in ("jane/old.ipynb", "jane/04_masking.ipynb", "john_1_2_x.ipynb", "john_1_3_x-1.ipynb", "jim/a.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("{}")
    os.utime(tmp_path / "in" / "john_1_2_x.ipynb", (1, 1))
    found, _ = submissions.find(tmp_path / "in", "04_masking", tmp_path / "out")
    chosen = {each.student: each.path and each.path.name for each in found}
    assert chosen == {"jane": "04_masking.ipynb", "jim": None, "john": "john_1_3_x-1.ipynb"}
    with pytest.raises(LabError, match=r"no submissions at .*nowhere"):
        submissions.find(tmp_path / "nowhere", "04_masking", tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "students"),
    [
        # a folder with all hand-ins, zipped; once more in another folder; and a student's own folder
        (["04_masking/jane.ipynb", "04_masking/john.ipynb", "04_masking/read me.txt"], {"jane", "john", "read-me"}),
        (["a/b/jane/x.ipynb", "a/b/john/x.ipynb"], {"jane", "john"}),
        (["jane/old.ipynb", "jane/04_masking.ipynb"], {"jane"}),
        # two of one name, and one who hands in twice
        ([f"Al Ba_{n}_assignsubmission_file_/x.ipynb" for n in (1, 2)], {"Al-Ba-1", "Al-Ba-2"}),
        (["ab_1_2_x.ipynb", "ab_LATE_1_3_x-1.ipynb", "ab.ipynb"], {"ab"}),
        (["Mu\u0308ller.ipynb", "M\u00fcller (1).ipynb"], {"Muller"}),
        (["M\u00fcller.ipynb", "Muller.ipynb"], {"Muller-a784", "Muller-5cc7"}),
        # what cannot be unpacked costs nobody else
        (["n" * 300 + ".ipynb", "a/b.ipynb", "a", "jane.ipynb"], {"a", "jane"}),
    ],
)
def test_whoever_handed_in_is_found(tmp_path, names, students):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        for name in names:
            file.writestr(name, "{}")
    found, _ = submissions.find(tmp_path / "all.zip", "04_masking", tmp_path / "out")
    assert {each.student for each in found} == students


def test_the_newer_of_two_in_a_zip_counts_and_a_students_zip_is_no_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_OF_ONE", 3000)
    monkeypatch.setattr(submissions, "MOST_BYTES", 2000)
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


def test_a_secret_is_made_once_and_read_by_its_owner_alone(tmp_path):
    secret = roster.read_secret(tmp_path / "secret")
    assert len(secret) >= 16
    assert roster.read_secret(tmp_path / "secret") == secret
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
    (tmp_path / "short").write_text("abc")
    with pytest.raises(LabError, match=r"at least 16 characters, it has 3"):
        roster.read_secret(tmp_path / "short")
    (tmp_path / "names").write_text("José\nJose\n")
    with pytest.raises(LabError, match=r"'Jose' and 'José' cannot be told apart"):
        roster.read_roster(tmp_path / "names")


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


def test_points_that_are_none_are_refused_with_their_line(tmp_path):
    most_six = types.SimpleNamespace(max_score=6.0)
    for text in ("7", "-1", "five", "nan", "inf"):
        with pytest.raises(LabError, match=rf"line 3: points must be a number from 0 to 6, got '{text}'"):
            by_hand.points_of(text, most_six, "points.csv, line 3")
    assert by_hand.points_of("6", most_six, "") == 6
    (tmp_path / "points.csv").write_text("student;points\n")
    with pytest.raises(LabError, match=r"exercise, answer, version, of, comment is not there"):
        by_hand.read_sheet(tmp_path / "points.csv")


def test_pictures_in_an_answer_are_kept_and_those_that_are_not_there_harm_nobody():
    answer = nbformat.v4.new_markdown_cell(
        "*Your answer*", metadata={"nbgrader": {"grade_id": "mine", "solution": True}}
    )
    release = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("VARIANT = 0"), answer])
    release.cells[0].metadata["dgc_lab"] = {"variant": True}
    handed = nbformat.v4.new_markdown_cell("![](attachment:a.png) ![](attachment:b.png)", metadata=answer.metadata)
    handed.attachments = {"a.png": {"image/png": "aGk=", "text/html": "aGk="}, "c.html": {"text/html": "aGk="}, "d": 1}
    own = nbformat.v4.new_markdown_cell("![](attachment:a.png)")
    repaired, _ = repair.repair([handed, own], release, "07")
    assert [cell.source for cell in repaired.cells[1:]] == [
        "![](attachment:a.png) ![](missing:b.png)",
        "![](missing:a.png)",
    ]
    assert repaired.cells[1].attachments == {"a.png": {"image/png": "aGk="}}
    nbformat.validate(repaired)


def test_answers_are_known_again_without_their_metadata():
    """By their first line, else by the name that they define; what an editor adds is no harm."""
    release = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("VARIANT = 0")])
    release.cells[0].metadata["dgc_lab"] = {"variant": True}
    for grade_id, source in {
        "one": "def one(x):\n    ...",
        "two": "two = None\n...",
        "three": "three = None\n...",
    }.items():
        grading = {"grade_id": grade_id, "solution": True}
        release.cells.append(nbformat.v4.new_code_cell(source, metadata={"nbgrader": grading}))
    older = nbformat.v3.new_notebook(worksheets=[nbformat.v3.new_worksheet()])
    sources = "import math\n\n\ndef one(x):\n    return math.pi", "two = 7", "helper = 1", "three == 3"
    older.worksheets[0].cells = [nbformat.v3.new_code_cell(source) for source in sources]
    older.worksheets[0].cells[0].metadata = {"id": "a1B2", "colab": {"base_uri": "x"}, "nbgrader": ["none"]}
    repaired, remarks = repair.repair(nbformat.convert(older, 4).cells, release, "04")
    assert [cell.source for cell in repaired.cells[1:]] == [*sources, ""], "an answer that is gone is put back empty"
    assert [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in repaired.cells[1:3]] == ["one", "two"]
    assert remarks == [
        "metadata lost: 2 cells were known again by their first lines or names",
        "cells deleted by the student and put back: three",
    ]


TRICKS = {
    "a check that says yes": "import dgc_lab; dgc_lab.check = lambda *answer: True",
    "the same from within": "from dgc_lab.exercises import masking; masking.expect = lambda *words: None",
    "a function turned inside out": "import dgc_lab; dgc_lab.check.__code__ = (lambda a, b, c=0: True).__code__",
    "another module": "import sys, types; sys.modules['dgc_lab'] = types.SimpleNamespace(check=lambda *answer: True)",
    "all is close": "import numpy; numpy.isclose = lambda *numbers: True",
    "no code at all": "get_ipython().input_transformers_post.append(lambda lines: ['pass'])",
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
def test_what_tests_stand_on_is_put_back_and_a_probe_tells(trick):
    shell = InteractiveShell()

    def fair():
        code, word = guard.probe()
        return str(shell.run_cell(code, silent=True).error_in_exec) == word

    guard.remember(shell)
    try:
        assert fair()
        shell.run_cell(trick)
        assert not fair()
    finally:
        guard.restore(shell)
    assert fair()


def test_names_that_hide_built_in_ones_are_put_aside_and_back():
    shell = InteractiveShell()
    guard.remember(shell)
    assert not guard.uncover(shell)
    shell.run_cell("sum, mine = 3, 4")
    assert guard.uncover(shell)
    assert ("sum" in shell.user_ns, shell.user_ns["mine"]) == (False, 4)
    guard.cover(shell)
    assert shell.user_ns["sum"] == 3


def test_a_report_steers_no_terminal():
    assert without_control("\x1b]0;title\x07 \u202egnp.exe\r\n\u00fc") == "]0;title gnp.exe  \u00fc"
