"""A copy of the repository for students: without solutions, what gives them away, and history."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import dgc_lab
from dgc_lab.common import LabError

# The sources with hidden tests, and the tests that need them, have wrong answers with what is wrong about them, or show
# how to attack the grading, as a tool does. The guide is replaced by another.
LEFT_OUT = (
    "notebooks/exercises/source/",
    "tests/exercises/",
    "tests/course/",
    "tests/marking/",
    "tests/gradebook/",
    "tools/grade_a_",
)
GUIDE = "notebooks/exercises/README.md"
FOR_STUDENTS = """# Exercises

One for each lesson, in `release`. Open it beside the lesson, replace each `...` by your answer, and run the cell after
it: it looks your answer over at once and says what was expected. Hand in the notebook as it is, run or not.

{list}
"""
TELLING = re.compile(r"(?ms)^[ \t]*### BEGIN (?:SOLUTION|HIDDEN TESTS)[^\n]*\n(.*?)^[ \t]*### END")
LEAST_TELLING = 60  # characters of two lines that follow each other
PROMISES = "tools/promises.csv"
# Whoever publishes may sign what they commit, or have hooks: the copy is nobody's.
NOBODYS = ("user.name=DGC Lab", "user.email=nobody@localhost", "commit.gpgsign=false", "tag.gpgsign=false")
NOBODYS += ("core.hooksPath=/dev/null",)


def publish(root: Path, target: Path, repo: str | None = None) -> list[str]:
    """Copy what git tracks in ``root`` to ``target``, as a repository with one commit; the names of the files.

    The commit has the tag of this version, ``v1.0.0``, which setup cells install. Badges and setup cells lead to
    ``repo``, ``OWNER/NAME`` on GitHub, or where they do in ``root``. Where anything fails, ``target`` is removed.

    Raises:
        LabError: the target is there and not empty, ``root`` is no copy with sources, lines of a solution would be
            in the copy, or git or a tool of the copy refuses something.
    """
    root, target = Path(root).resolve(), Path(target).resolve()
    if target.exists() and any(target.iterdir()):
        raise LabError(f"{target} is not empty")
    if not (root / "notebooks" / "exercises" / "source").is_dir():
        raise LabError(f"{root} has no notebooks/exercises/source: publish from the top of the instructors' copy")
    tracked = [name for name in _git(root, "ls-files", "-z").split("\0") if name and (root / name).exists()]
    names = [name for name in tracked if not name.startswith(LEFT_OUT)]
    try:
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name, follow_symlinks=False)
        _for_students(root, target, names, repo)
        _git(target, "init", "--quiet", "--initial-branch=main")
        _git(target, "add", "--all")
        _git(target, "commit", "--quiet", "-m", "The lab, for students")
        _git(target, "tag", f"v{dgc_lab.__version__}")
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return names


def _for_students(root: Path, target: Path, names: list[str], repo: str | None) -> None:
    """Change what is another's in the copy: the guide, promises whose tests are left out, and addresses."""
    released = sorted(path.stem for path in (target / "notebooks" / "exercises" / "release").glob("*/*.ipynb"))
    rows = "\n".join(f"- [{name}](release/{name}/{name}.ipynb)" for name in released)
    (target / GUIDE).write_text(FOR_STUDENTS.format(list=rows), encoding="utf-8")
    if given_away := told(root, [target / name for name in names]):
        raise LabError("lines of a solution or a hidden test are in:\n" + "\n".join(sorted(given_away)))
    lines = (target / PROMISES).read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not any(f",{left}" in line for left in LEFT_OUT)]
    (target / PROMISES).write_text("".join(kept), encoding="utf-8")
    _run([sys.executable, "-B", "tools/write_reliability_page.py"], target)
    if repo:
        _run([sys.executable, "-B", "tools/badges.py", "--repo", repo], target)


def told(root: Path, files: list[Path]) -> set[str]:
    """Files in which two lines of a solution or a hidden test follow each other as they do in a source.

    What a source also shows outside of them tells nothing: code that is to be mended, for example.
    """
    pairs, shown = set(), set()
    for text in (Path(root) / "notebooks" / "exercises" / "source").glob("*/text/*.md"):
        source = text.read_text(encoding="utf-8")
        pairs |= {pair for block in TELLING.findall(source) for pair in _pairs(block)}
        shown |= _pairs(TELLING.sub("", source))
    pairs -= shown
    found = set()
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a picture
            continue
        found |= {str(file)} if pairs & _pairs(text.replace('\\n",\n', "\n").replace('\\"', '"')) else set()
    return found


def _pairs(text: str) -> set[tuple[str, str]]:
    """Lines that follow each other, long enough to tell something, without what stands before and after them."""
    lines = [line.strip(' "\t') for line in text.split("\n")]
    lines = [line for line in lines if line]
    return {pair for pair in pairwise(lines) if len("".join(pair)) >= LEAST_TELLING}


def _git(folder: Path, *arguments: str) -> str:
    """What a git command says."""
    settings = [word for setting in NOBODYS for word in ("-c", setting)]
    return _run(["git", *settings, *arguments], folder, f"git {arguments[0]}")


def _run(command: list[str], folder: Path, name: str = "") -> str:
    """What a command says that runs in a folder, with the lab that is there; its error as a LabError."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"{name or ' '.join(command[2:])} in {folder}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
