"""The students' copy: nothing in it gives a solution away, it has no history, and its own tests are there and run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dgc_lab.common import LabError
from dgc_lab.gradebook.publish import publish, told

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "notebooks" / "exercises" / "source"


def git(folder, *arguments):
    return subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    target = tmp_path_factory.mktemp("published") / "lab"
    publish(ROOT, target)
    return target


def test_no_solution_no_hidden_test_and_no_history_is_in_it(copy):
    assert len(git(copy, "log", "--oneline").splitlines()) == 1
    assert git(copy, "status", "--porcelain") == ""
    files = [copy / name for name in git(copy, "ls-files").splitlines()]
    names = {file.relative_to(copy).as_posix() for file in files}
    assert not [name for name in names if name.startswith("notebooks/exercises/source")]
    assert "notebooks/exercises/release/04_masking/04_masking.ipynb" in names
    text = {file: file.read_text(encoding="utf-8") for file in files if file.suffix in (".md", ".py", ".ipynb", ".txt")}
    one = "Their squares add up"  # a reason in a solution
    hidden = re.findall(
        r"(?s)### BEGIN HIDDEN TESTS\n(.*?)### END", (SOURCES / "04_masking/text/04_masking.md").read_text()
    )
    lines = {line.strip() for block in hidden for line in block.split("\n") if len(line.strip()) > 50}
    assert len(lines) > 5
    assert not [file for file, words in text.items() if one in words or any(line in words for line in lines)]
    guide = (copy / "notebooks/exercises/README.md").read_text()
    assert "release/04_masking/04_masking.ipynb" in guide
    assert "misconception" not in guide


def test_a_solution_that_has_strayed_is_found(tmp_path):
    block = re.search(
        r"(?s)### BEGIN SOLUTION\n(.*?) *### END", (SOURCES / "04_masking/text/04_masking.md").read_text()
    )
    (tmp_path / "notes.md").write_text(f"As we said:\n\n{block[1]}")
    (tmp_path / "fine.md").write_text("A ratio asks for the share of the elements that is sent.")
    (tmp_path / "picture.png").write_bytes(bytes(range(256)))
    assert told(ROOT, sorted(tmp_path.iterdir())) == {str(tmp_path / "notes.md")}


def test_what_would_be_lost_or_is_no_copy_for_instructors_is_refused(tmp_path, copy):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("keep me")
    with pytest.raises(LabError, match="mine is not empty"):
        publish(ROOT, tmp_path / "mine")
    with pytest.raises(LabError, match="publish from the top of the instructors' copy"):
        publish(copy, tmp_path / "again")


def test_its_own_tests_are_found_and_those_of_the_exercises_room_pass(copy):
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    pytest_in = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    for what in (["--collect-only", "tests"], ["dgc_lab/exercises", "tests/lessons/test_names.py"]):
        done = subprocess.run([*pytest_in, *what], cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:]
