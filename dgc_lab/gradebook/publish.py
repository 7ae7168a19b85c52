"""A copy of the repository for students: without solutions, what gives them away, and history."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

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


def publish(root: Path, target: Path) -> list[str]:
    """Copy what git tracks in ``root`` to ``target``, as a repository with one commit; the names of the files.

    Raises:
        LabError: the target is there and not empty, ``root`` is no copy with sources, or lines of a solution would be
            in the copy.
    """
    root, target = Path(root).resolve(), Path(target).resolve()
    if target.exists() and any(target.iterdir()):
        raise LabError(f"{target} is not empty")
    if not (root / "notebooks" / "exercises" / "source").is_dir():
        raise LabError(f"{root} has no notebooks/exercises/source: publish from the top of the instructors' copy")
    tracked = [name for name in _git(root, "ls-files", "-z").split("\0") if name and (root / name).exists()]
    names = [name for name in tracked if not name.startswith(LEFT_OUT)]
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target / name, follow_symlinks=False)
    released = sorted(path.stem for path in (target / "notebooks" / "exercises" / "release").glob("*/*.ipynb"))
    rows = "\n".join(f"- [{name}](release/{name}/{name}.ipynb)" for name in released)
    (target / GUIDE).write_text(FOR_STUDENTS.format(list=rows), encoding="utf-8")
    if given_away := told(root, [target / name for name in names]):
        shutil.rmtree(target)
        raise LabError("lines of a solution or a hidden test are in:\n" + "\n".join(sorted(given_away)))
    _git(target, "init", "--quiet", "--initial-branch=main")
    _git(target, "add", "--all")
    _git(
        target,
        "-c",
        "user.name=DGC Lab",
        "-c",
        "user.email=nobody@localhost",
        "commit",
        "--quiet",
        "-m",
        "The lab, for students",
    )
    return names


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
    """What a git command says; its error as a LabError."""
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"git {arguments[0]} in {folder}: {done.stderr.strip()}")
    return done.stdout
