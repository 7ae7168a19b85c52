"""Copy the repository for students, without solutions, hints to them, or history."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import dgc_lab
from dgc_lab.common import LabError

# The sources contain hidden tests. The tests need them, contain wrong answers, or show how to attack the grading. The
# guide is replaced.
LEFT_OUT = ("notebooks/exercises/source/", "tests/exercises/", "tests/grading/")
LIBRARY = ("dgc_lab/", "pyproject.toml")  # what setup cells install
SUBJECT, VERSION = "The lab, for students", f"v{dgc_lab.__version__}"
INSTALLS = re.compile(r"(?P<address>git\+https://github\.com/[^\s\"\\@]+)@(?P<tag>v[^\s\"\\]+)")
GUIDE = "notebooks/exercises/README.md"
FOR_STUDENTS = """# Exercises

The folder `release` has one exercise per lesson. Open it next to the lesson, replace each `...` with your answer, and
run the cell below it, which checks your answer and says what was expected. Submit the notebook as it is; its cells
don't have to be run.

{list}
"""
SOLUTION_BLOCK = re.compile(r"(?ms)^[ \t]*### BEGIN (?:SOLUTION|HIDDEN TESTS)[^\n]*\n(.*?)^[ \t]*### END")
LEAST_CHARACTERS = 60  # characters of two consecutive lines
PROMISES = "docs/reliability.md"  # a table in each section, whose rows link to tests
# The copy is anonymous, and ignores signing and hooks in the instructor's configuration.
NOBODYS = ("user.name=DGC Lab", "user.email=nobody@localhost", "commit.gpgsign=false", "tag.gpgsign=false")
NOBODYS += ("core.hooksPath=/dev/null",)


def publish(root: Path, target: Path, repo: str | None = None, update: bool = False) -> list[str]:
    """Copy the files that git tracks in ``root`` to ``target``, a repository with one commit; return their names.

    The commit has the tag of this version, ``v1.0.0``, which setup cells install. Badges and setup cells point to
    ``repo``, ``OWNER/NAME`` on GitHub, or to the same place as in ``root``. If anything fails, ``target`` stays as it
    was.

    With ``update``, ``target`` is an earlier copy, or a clone of it, and gets another commit and tag, ``v1.0.0-2``. So
    students who have the earlier commit can pull. Setup cells change only if the library has.

    Raises:
        LabError: the target is not empty or, with ``update``, is not a copy without changes of its own; ``root`` has no
            sources, or has not changed; the copy would contain lines of a solution; git or a tool of the copy fails.
    """
    root, target = Path(root).resolve(), Path(target).resolve()
    if update:
        _check_copy(target)
    elif target.exists() and any(target.iterdir()):
        raise LabError(f"{target} is not empty; to publish changes into an earlier copy, pass --update")
    if not (root / "notebooks" / "exercises" / "source").is_dir():
        raise LabError(f"{root} has no notebooks/exercises/source: publish from the root of the instructors' copy")
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "lab"
        names = _make(root, made, repo)
        try:
            _commit_update(made, target) if update else _commit_first(made, target)
        except BaseException:
            if update:
                _git(target, "read-tree", "--reset", "-u", "HEAD")
                _git(target, "clean", "--quiet", "-d", "--force")
            else:
                shutil.rmtree(target, ignore_errors=True)
            raise
    return names


def _check_copy(target: Path) -> None:
    """Raise a LabError if a folder is not the root of an earlier copy, on its branch and without changes."""
    if not (target / ".git").exists():
        raise LabError(f"--update needs an earlier copy, and {target} is not a git repository")
    first = _git(target, "log", "--max-parents=0", "--format=%s").strip()
    if first != SUBJECT or _git(target, "branch", "--show-current").strip() != "main":
        raise LabError(f"--update needs an earlier copy on its branch main, which {target} is not")
    if changed := _git(target, "status", "--porcelain").splitlines():
        raise LabError(f"{target} has changes of its own, which would be lost: {changed[0][3:]}")


def _make(root: Path, made: Path, repo: str | None) -> list[str]:
    """Make the files of a copy; return their names."""
    tracked = [name for name in _git(root, "ls-files", "-z").split("\0") if name and (root / name).exists()]
    names = [name for name in tracked if not name.startswith(LEFT_OUT)]
    for name in names:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, made / name, follow_symlinks=False)
    _for_students(root, made, names, repo)
    return names


def _commit_first(made: Path, target: Path) -> None:
    """Make a copy's repository, with one commit and the tag of this version."""
    shutil.copytree(made, target, symlinks=True, dirs_exist_ok=True)
    _git(target, "init", "--quiet", "--initial-branch=main")
    _git(target, "add", "--all")
    _git(target, "commit", "--quiet", "-m", SUBJECT)
    _git(target, "tag", VERSION)


def _commit_update(made: Path, target: Path) -> None:
    """Replace all files of a copy, as a commit with a new tag."""
    tags, installed = _git(target, "tag").split(), _installed_tag(target)
    _git(target, "rm", "-r", "--quiet", ".")
    _install(made, installed)
    shutil.copytree(made, target, symlinks=True, dirs_exist_ok=True)
    _git(target, "add", "--all")
    changed = _git(target, "diff", "--cached", "--name-only").splitlines()
    if not changed:
        raise LabError(f"nothing has changed since the last update of {target}")
    tag, number = VERSION, 2
    while tag in tags:
        tag, number = f"{VERSION}-{number}", number + 1
    if any(name.startswith(LIBRARY) for name in changed):
        _install(target, tag)
        _git(target, "add", "--all")
    _git(target, "commit", "--quiet", "-m", f"{SUBJECT}: {tag}")
    _git(target, "tag", tag)


def _installed_tag(folder: Path) -> str:
    """Return the tag that a copy's setup cells install."""
    found = (INSTALLS.search(path.read_text(encoding="utf-8")) for path in _with_addresses(folder))
    return next((match["tag"] for match in found if match), VERSION)


def _install(folder: Path, tag: str) -> None:
    """Let all setup cells of a copy install this tag."""
    for path in _with_addresses(folder):
        text = path.read_text(encoding="utf-8")
        stamped = INSTALLS.sub(rf"\g<address>@{tag}", text)
        if stamped != text:
            path.write_text(stamped, encoding="utf-8")


def _with_addresses(folder: Path) -> list[Path]:
    """Return the files of a copy that may contain setup cells."""
    return sorted(path for ending in ("ipynb", "md") for path in (folder / "notebooks").rglob(f"*.{ending}"))


def _for_students(root: Path, target: Path, names: list[str], repo: str | None) -> None:
    """Adapt the copy: the guide, promises whose tests are left out, and addresses."""
    released = sorted(path.stem for path in (target / "notebooks" / "exercises" / "release").glob("*/*.ipynb"))
    rows = "\n".join(f"- [{name}](release/{name}/{name}.ipynb)" for name in released)
    (target / GUIDE).write_text(FOR_STUDENTS.format(list=rows), encoding="utf-8")
    if given_away := files_with_solutions(root, [target / name for name in names]):
        named = sorted(Path(name).relative_to(target).as_posix() for name in given_away)
        raise LabError("these files contain lines of a solution or a hidden test:\n" + "\n".join(named))
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


def files_with_solutions(root: Path, files: list[Path]) -> set[str]:
    """Return the files that contain two consecutive lines of a solution or a hidden test.

    Lines that a source also shows elsewhere do not count, for example code to be corrected.
    """
    pairs, shown = set(), set()
    for text in (Path(root) / "notebooks" / "exercises" / "source").glob("*/text/*.md"):
        source = text.read_text(encoding="utf-8")
        pairs |= {pair for block in SOLUTION_BLOCK.findall(source) for pair in _pairs(block)}
        shown |= _pairs(SOLUTION_BLOCK.sub("", source))
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
    return {pair for pair in pairwise(lines) if len("".join(pair)) >= LEAST_CHARACTERS}


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
