"""Copy the repository for students, without solutions, hints to them, or history."""

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

# The sources contain hidden tests. The tests need them, contain wrong answers, or show how to attack the grading. The
# guide is replaced.
LEFT_OUT = ("notebooks/exercises/source/", "tests/exercises/", "tests/grading/")
GUIDE = "notebooks/exercises/README.md"
FOR_STUDENTS = """# Exercises

The folder `release` has one exercise per lesson. Open it next to the lesson, replace each `...` with your answer, and
run the cell below it, which checks your answer and says what was expected. Submit the notebook as it is; its cells
don't have to be run.

{list}
"""
TELLING = re.compile(r"(?ms)^[ \t]*### BEGIN (?:SOLUTION|HIDDEN TESTS)[^\n]*\n(.*?)^[ \t]*### END")
LEAST_TELLING = 60  # characters of two consecutive lines
PROMISES = "docs/reliability.md"  # a table in each section, whose rows link to tests
# The copy is anonymous, and ignores signing and hooks in the instructor's configuration.
NOBODYS = ("user.name=DGC Lab", "user.email=nobody@localhost", "commit.gpgsign=false", "tag.gpgsign=false")
NOBODYS += ("core.hooksPath=/dev/null",)


def publish(root: Path, target: Path, repo: str | None = None) -> list[str]:
    """Copy the files that git tracks in ``root`` to ``target``, a repository with one commit; return their names.

    The commit has the tag of this version, ``v1.0.0``, which setup cells install. Badges and setup cells point to
    ``repo``, ``OWNER/NAME`` on GitHub, or to the same place as in ``root``. If anything fails, ``target`` is removed.

    Raises:
        LabError: the target is not empty, ``root`` has no sources, the copy would contain lines of a solution, or git
            or a tool of the copy fails.
    """
    root, target = Path(root).resolve(), Path(target).resolve()
    if target.exists() and any(target.iterdir()):
        raise LabError(f"{target} is not empty")
    if not (root / "notebooks" / "exercises" / "source").is_dir():
        raise LabError(f"{root} has no notebooks/exercises/source: publish from the root of the instructors' copy")
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
    """Adapt the copy: the guide, promises whose tests are left out, and addresses."""
    released = sorted(path.stem for path in (target / "notebooks" / "exercises" / "release").glob("*/*.ipynb"))
    rows = "\n".join(f"- [{name}](release/{name}/{name}.ipynb)" for name in released)
    (target / GUIDE).write_text(FOR_STUDENTS.format(list=rows), encoding="utf-8")
    if given_away := told(root, [target / name for name in names]):
        raise LabError("these files contain lines of a solution or a hidden test:\n" + "\n".join(sorted(given_away)))
    promises = (target / PROMISES).read_text(encoding="utf-8")
    (target / PROMISES).write_text(without_left_out(promises), encoding="utf-8")
    if repo:
        _run([sys.executable, "-B", "tools/badges.py", "--repo", repo], target)


def without_left_out(page: str) -> str:
    """Remove the rows of a page in `docs` that link to files left out, and sections that lose all their rows.

    Example:
        >>> row = "| a promise | [its test](../tests/{}) |\\n"
        >>> page = "## Bits\\n\\n" + row.format("training/a.py") + row.format("grading/b.py")
        >>> without_left_out(page + "## Submissions\\n\\n" + row.format("grading/c.py"))
        '## Bits\\n\\n| a promise | [its test](../tests/training/a.py) |\\n'
    """
    link_to_left_out = rf"\]\(\.\./(?:{'|'.join(LEFT_OUT)})"
    kept = []
    for section in re.split(r"(?m)^(?=## )", page):
        shorter = re.sub(rf"(?m)^\|.*{link_to_left_out}.*\n", "", section)
        if shorter == section or re.search(r"(?m)^\|.*\]\(\.\./", shorter):
            kept.append(shorter)
    return "".join(kept)


def told(root: Path, files: list[Path]) -> set[str]:
    """Return the files that contain two consecutive lines of a solution or a hidden test.

    Lines that a source also shows elsewhere do not count, for example code to be corrected.
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
        except UnicodeDecodeError:  # a binary file
            continue
        found |= {str(file)} if pairs & _pairs(text.replace('\\n",\n', "\n").replace('\\"', '"')) else set()
    return found


def _pairs(text: str) -> set[tuple[str, str]]:
    """Return pairs of consecutive lines, stripped, that are long enough to give something away."""
    lines = [line.strip(' "\t') for line in text.split("\n")]
    lines = [line for line in lines if line]
    return {pair for pair in pairwise(lines) if len("".join(pair)) >= LEAST_TELLING}


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command."""
    settings = [word for setting in NOBODYS for word in ("-c", setting)]
    return _run(["git", *settings, *arguments], folder, f"git {arguments[0]}")


def _run(command: list[str], folder: Path, name: str = "") -> str:
    """Return the output of a command in a folder, with its lab; raise its error as a LabError."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"{name or ' '.join(command[2:])} in {folder}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
