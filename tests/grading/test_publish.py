"""The students' copy has no solutions and no history, and its own tests run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dgc_lab
from dgc_lab.common import LabError
from dgc_lab_grading.gradebook.publish import LEFT_OUT, publish, told

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "notebooks" / "exercises" / "source"


def git(folder, *arguments):
    return subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    target = tmp_path_factory.mktemp("published") / "lab"
    publish(ROOT, target, "ada/lab-for-students")
    return target


def test_the_copy_has_no_solution_hidden_test_or_history(copy):
    assert len(git(copy, "log", "--oneline").splitlines()) == 1
    assert git(copy, "status", "--porcelain") == ""
    files = [copy / name for name in git(copy, "ls-files").splitlines()]
    names = {file.relative_to(copy).as_posix() for file in files}
    assert not [name for name in names if name.startswith("notebooks/exercises/source")]
    assert "notebooks/exercises/release/04_masking/04_masking.ipynb" in names
    text = {file: file.read_text(encoding="utf-8") for file in files if file.suffix in (".md", ".py", ".ipynb", ".txt")}
    one = "Their squares add up"  # explains a solution
    hidden = re.findall(
        r"(?s)### BEGIN HIDDEN TESTS\n(.*?)### END", (SOURCES / "04_masking/text/04_masking.md").read_text()
    )
    lines = {line.strip() for block in hidden for line in block.split("\n") if len(line.strip()) > 50}
    assert len(lines) > 5
    assert not [file for file, words in text.items() if one in words or any(line in words for line in lines)]
    guide = (copy / "notebooks/exercises/README.md").read_text()
    assert "release/04_masking/04_masking.ipynb" in guide
    assert "misconception" not in guide


def test_promises_link_to_tests_that_are_in_the_copy(copy):
    """Rows whose tests are left out are removed, with sections that lose all rows; nothing else changes."""
    ours, theirs = ((root / "docs" / "reliability.md").read_text() for root in (ROOT, copy))
    links = re.findall(r"(?m)^\| .*\]\(\.\./(.*?)\) \|$", theirs)
    assert len(links) > 20
    assert not [link for link in links if not (copy / link).exists()]
    lost = [line for line in ours.splitlines() if line not in theirs.splitlines() and line.startswith("|")]
    assert len(lost) >= 5
    assert all(any(f"(../{place}" in line for place in LEFT_OUT) for line in lost)
    headings = [re.findall("(?m)^## (.*)", text) for text in (ours, theirs)]
    assert [heading for heading in headings[0] if heading not in headings[1]] == ["Submissions"]


def test_setup_cells_install_the_copys_own_commit(copy):
    [address] = set(
        re.findall(r"git\+https://github\.com/[^\s\"\\]+", (copy / "notebooks/08_other_compressors.ipynb").read_text())
    )
    assert address == f"git+https://github.com/ada/lab-for-students@v{dgc_lab.__version__}"
    assert git(copy, "rev-parse", address.partition("@")[2]) == git(copy, "rev-parse", "HEAD")


@pytest.mark.nightly
def test_git_settings_do_not_matter_and_failures_leave_nothing(tmp_path, monkeypatch):
    settings = {"commit.gpgsign": "true", "tag.gpgsign": "true", "gpg.program": "/bin/false"}
    there = int(os.environ.get("GIT_CONFIG_COUNT", 0))
    monkeypatch.setenv("GIT_CONFIG_COUNT", str(there + len(settings)))
    for number, (name, value) in enumerate(settings.items(), there):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", name)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    publish(ROOT, tmp_path / "lab")
    with pytest.raises(LabError, match=r"badges\.py .*repo must be OWNER/NAME, got 'ada'"):
        publish(ROOT, tmp_path / "again", "ada")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "yesteryear")
    with pytest.raises(LabError, match=r"^git commit in .*yesteryear"):
        publish(ROOT, tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir()] == ["lab"]


def test_a_solution_in_another_file_is_found(tmp_path):
    block = re.search(
        r"(?s)### BEGIN SOLUTION\n(.*?) *### END", (SOURCES / "04_masking/text/04_masking.md").read_text()
    )
    (tmp_path / "notes.md").write_text(f"As we said:\n\n{block[1]}")
    (tmp_path / "fine.md").write_text("A ratio asks for the share of the elements that is sent.")
    (tmp_path / "picture.png").write_bytes(bytes(range(256)))
    assert told(ROOT, sorted(tmp_path.iterdir())) == {str(tmp_path / "notes.md")}


def test_nonempty_targets_and_students_copies_are_refused(tmp_path, copy):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("keep me")
    with pytest.raises(LabError, match="mine is not empty"):
        publish(ROOT, tmp_path / "mine")
    with pytest.raises(LabError, match="publish from the root of the instructors' copy"):
        publish(copy, tmp_path / "again")


@pytest.mark.nightly
def test_the_copys_own_tests_are_found_and_run(copy):
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    pytest_in = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    for what in (["--collect-only", "tests"], ["dgc_lab/exercises", "dgc_lab_grading", "tests/lessons/test_names.py"]):
        done = subprocess.run([*pytest_in, *what], cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:]
