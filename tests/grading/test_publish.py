"""The students' copy has no solutions and no history, and its own tests run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dgc_lab
from dgc_lab.common import LabError
from dgc_lab_grading.gradebook.publish import LEFT_OUT, VERSION, files_with_solutions, publish

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


CELL = 'import importlib.util\n%pip install "dgc_lab @ git+https://github.com/ada/lab@{}"\n'
LESSON, GONE, NEW, EDITED = (f"notebooks/{name}.ipynb" for name in ("01_sums", "02_gone", "03_new", "04_edited"))


@pytest.fixture
def root(tmp_path):
    """A small copy of the instructors' repository."""
    files = {
        "docs/reliability.md": "# Promises\n",
        "dgc_lab/common.py": "ONE = 1\n",
        "notebooks/exercises/README.md": "# Guide\n",
        "notebooks/exercises/source/01_sums/text/01_sums.md": "# Exercise\n",
        LESSON: CELL.format(VERSION) + "".join(f"line {number}\n" for number in range(20)),
        GONE: "gone\n",
        EDITED: "gone, too\n",
    }
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    git(tmp_path / "root", "init", "--quiet")
    git(tmp_path / "root", "add", "--all")
    return tmp_path / "root"


def change(root, name, text):
    """Change a file of the instructors' repository; remove it if there is no text."""
    if text is None:
        (root / name).unlink()
    else:
        (root / name).write_text(text)
    git(root, "add", "--all")


def pull(clone):
    """Run the commands of nbgitpuller's `GitPuller.pull`, in their order."""
    git(clone, "fetch")
    for name in git(clone, "ls-files", "--deleted").splitlines():
        if name not in git(clone, "diff", "--name-only", "--diff-filter=D", "main...origin/main").splitlines():
            git(clone, "checkout", "origin/main", "--", name)
    author = ("-c", "user.email=nbgitpuller@nbgitpuller.link", "-c", "user.name=nbgitpuller")
    git(clone, *author, "commit", "-am", "Automatic commit by nbgitpuller", "--allow-empty")
    merged = subprocess.run(
        ["git", "-C", clone, *author, "merge", "-Xours", "origin/main"], capture_output=True, text=True
    )
    if merged.returncode:
        assert "CONFLICT (modify/delete)" in merged.stdout, merged.stderr
        git(clone, *author, "commit", "-am", "Automatic commit by nbgitpuller", "--allow-empty")


def test_students_can_pull_an_update_of_the_copy(tmp_path, root):
    """They keep what they have written, get what has changed, and lose what is gone from the lab."""
    publish(root, tmp_path / "copy")
    clone = tmp_path / "student"
    subprocess.run(["git", "clone", "--quiet", tmp_path / "copy", clone], check=True)
    edited = (clone / LESSON).read_text().replace("line 15", "my answer")
    (clone / LESSON).write_text(edited)
    (clone / EDITED).write_text("my answer\n")
    (clone / "notebooks" / "mine.ipynb").write_text("mine")
    change(root, LESSON, (root / LESSON).read_text().replace("line 5", "line five"))
    change(root, GONE, None)
    change(root, EDITED, None)
    change(root, NEW, "new\n")
    publish(root, tmp_path / "copy", update=True)
    pull(clone)
    assert (clone / LESSON).read_text() == edited.replace("line 5", "line five")
    assert [(clone / name).exists() for name in (GONE, NEW, "notebooks/mine.ipynb")] == [False, True, True]
    assert (clone / EDITED).read_text() == "my answer\n"
    assert not (tmp_path / "copy" / EDITED).exists()
    assert git(tmp_path / "copy", "log", "--format=%s").splitlines() == [
        f"The lab, for students: {VERSION}-2",
        "The lab, for students",
    ]
    publish(root, tmp_path / "again")
    git(clone, "remote", "set-url", "origin", tmp_path / "again")
    with pytest.raises(AssertionError, match="unrelated histories"):  # why an update has the same root
        pull(clone)


def test_setup_cells_install_the_newest_library_of_the_copy(tmp_path, root):
    copy = tmp_path / "copy"
    publish(root, copy)
    for text, tags, installed in (
        ("ONE = 1\nTWO = 2\n", 2, f"{VERSION}-2"),
        (None, 3, f"{VERSION}-2"),  # only a lesson has changed
        ("ONE = 1\n", 4, f"{VERSION}-4"),
    ):
        change(root, "dgc_lab/common.py" if text else GONE, text)
        publish(root, copy, update=True)
        assert len(git(copy, "tag").split()) == tags
        assert (copy / LESSON).read_text().startswith(CELL.format(installed))
        assert git(copy, "show", f"{installed}:dgc_lab/common.py") == (root / "dgc_lab/common.py").read_text()
        assert git(copy, "status", "--porcelain") == ""


def test_an_update_that_fails_leaves_the_copy_as_it_was(tmp_path, root, monkeypatch):
    copy = tmp_path / "copy"
    publish(root, copy)
    before = git(copy, "rev-parse", "HEAD")
    with pytest.raises(LabError, match=r"nothing has changed since the last update of .*copy"):
        publish(root, copy, update=True)
    change(root, GONE, "more\n")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "yesteryear")
    with pytest.raises(LabError, match=r"^git commit in .*yesteryear"):
        publish(root, copy, update=True)
    monkeypatch.delenv("GIT_COMMITTER_DATE")
    assert (git(copy, "rev-parse", "HEAD"), git(copy, "status", "--porcelain")) == (before, "")
    assert (copy / GONE).read_text() == "gone\n"
    (copy / GONE).write_text("changed here\n")
    with pytest.raises(LabError, match=f"has changes of its own, which would be lost: {GONE}"):
        publish(root, copy, update=True)
    assert (copy / GONE).read_text() == "changed here\n"


def test_an_update_touches_no_other_repository(tmp_path, root):
    other = tmp_path / "other"
    (other / "empty").mkdir(parents=True)
    git(other, "init", "--quiet", "--initial-branch=main")
    (other / "file").write_text("keep me")
    git(other, "add", "--all")
    git(other, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "Another")
    with pytest.raises(LabError, match=r"needs an earlier copy on its branch main, which .*other is not"):
        publish(root, other, update=True)
    with pytest.raises(LabError, match=r"needs an earlier copy, and .*empty is not a git repository"):
        publish(root, other / "empty", update=True)
    assert (other / "file").read_text() == "keep me"


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
    assert files_with_solutions(ROOT, sorted(tmp_path.iterdir())) == {str(tmp_path / "notes.md")}


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
