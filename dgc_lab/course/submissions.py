"""Find out what came from whom, in a folder or zip as a learning platform hands it out.

What is understood: Moodle's folders and, without folders, files (``Jane Doe_4711_assignsubmission_file_any.ipynb``),
files of Canvas (``doejane_LATE_123_456_04_masking-1.ipynb``) and Blackboard (``..._jdoe_attempt_2026-...``), folders
and files of Brightspace (``12-34 - Jane Doe - Nov 21, 2026 1005 AM``), and otherwise a file or a folder for each
student, called as the student is; and a zip of any of these, also inside. Nothing in a zip gets out of its folder, and
its size is limited while it is read, whatever it says of itself.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import itertools
import math
import re
import unicodedata
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dgc_lab.common import LabError
from dgc_lab.course import unzip
from dgc_lab.course.clock import BRIGHTSPACE, handed_in_at
from dgc_lab.marking.nbgrader_api import STUB, TEXT_STUB
from dgc_lab.marking.repair import read

# What the platforms make of a name, a number and a file; a number can be a person's or an anonymous one.
MOODLE = re.compile(r"^(?P<name>.*)_(?P<number>\d+)_assignsubmission_(?:file|onlinetext)(?:_.*)?$")
ANONYMOUS = r"(?<=anon_)[A-Za-z0-9]{5}|(?<=anon_LATE_)[A-Za-z0-9]{5}"
CANVAS = re.compile(rf"^(?:LATE_)?(?P<name>[^_]+)_(?:LATE_)?(?P<number>\d+|{ANONYMOUS})_\d+_", re.IGNORECASE)
BLACKBOARD = re.compile(r"^(?P<before>.+)_attempt_\d{4}-\d\d-\d\d")
COPIES = re.compile(r"(\s*\(\d+\)| - Copy|-Copy\d+|-checkpoint)$")


@dataclass(frozen=True)
class Submission:
    """What one student handed in."""

    student: str  # a name that can be a folder's, see `plain`
    path: Path | None  # the file to grade; None when there is none that could be a notebook
    remarks: tuple[str, ...] = ()  # what the instructor should know about it
    handed_in: str = ""  # the file's path as the platform has made it, by which it takes feedback back
    number: str = ""  # what the platform calls the student in it, "" for nothing
    time: str | None = None  # of handing in, see `dgc_lab.course.clock`


def find(place: Path, assignment: str, unpacked: Path) -> tuple[list[Submission], list[str]]:
    """All submissions in a folder or zip, one for each student, sorted by student; and what is wrong with the whole.

    The exercise's name may be part of file names and is no part of a student's name. What comes out of zips goes into
    ``unpacked``, which must be empty.
    """
    place, remarks, lost = Path(place), [], {}
    if not place.exists():
        raise LabError(f"no hand-ins at {place}")
    if place.is_file():
        if not zipfile.is_zipfile(place):
            raise LabError(f"hand-ins must be a folder or a zip, got the file {place}")
        root = Path(unpacked) / "all"
        remarks, lost = unzip.unpack(place, root)
        place = root
    there = (path for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    files = sorted({*there, *lost})  # whoever handed in what cannot be unpacked has handed in
    files = [path for path in files if not unzip.LEAVE_OUT.search(path.relative_to(place).as_posix())]
    if not files:
        raise LabError("; ".join([f"no hand-ins in {place}", *remarks]))
    place = _of_class(place, files, assignment)
    each: dict[str, list[Path]] = {}
    for name, people in _people(place, files, assignment).items():
        for mark, paths in people.items():
            each[name if len(people) == 1 else f"{name}-{mark}"] = paths
        if len(people) > 1:
            remarks.append(
                f"{len(people)} are called {name}, and are {' and '.join(f'{name}-{mark}' for mark in people)}"
            )
    if any(_of_moodle(path.relative_to(place)) for path in files):
        remarks.append("Moodle's zip does not say when something was handed in: late.toml can, by handed_in")
    found = [_choose(student, each[student], assignment, Path(unpacked), place, lost) for student in sorted(each)]
    unread = [one.handed_in for one in found if one.time is None and BRIGHTSPACE.match(one.handed_in.partition("/")[0])]
    if unread:
        more = f" and of {len(unread) - 1} more" if len(unread) > 1 else ""
        remarks.append(f"the time in the name of {unread[0]}{more} is not read: late.toml can say it, by handed_in")
    return found, remarks


def _people(place: Path, files: list[Path], assignment: str) -> dict[str, dict[str, list[Path]]]:
    """Of each name those who have it, with their files: known by the platform's number, or by how the name is written.

    A file without a number belongs to the one who has a number, if that is one.
    """
    by_writing: dict[tuple[str, str], dict[str, list[Path]]] = {}
    befores = {found["before"] for path in files if (found := BLACKBOARD.match(path.name))}
    words = zip(*(before.split("_") for before in befores), strict=False) if len(befores) > 1 else ()
    shared = "".join(f"{same[0]}_" for same in itertools.takewhile(lambda same: len(set(same)) == 1, words))
    for path in files:
        name, number = _whose(path.relative_to(place), assignment, shared)
        letters = "".join(filter(str.isalnum, unicodedata.normalize("NFC", name)))
        by_writing.setdefault((plain(name), letters), {}).setdefault(number, []).append(path)
    people: dict[str, dict[str, list[Path]]] = {}
    for (name, letters), by_number in by_writing.items():
        if len(by_number) == 2 and "" in by_number:
            rest = by_number.pop("")
            next(iter(by_number.values())).extend(rest)
        for number, paths in by_number.items():
            people.setdefault(name, {})[number or hashlib.sha256(letters.encode()).hexdigest()[:4]] = paths
    return people


def _of_class(place: Path, files: list[Path], assignment: str) -> Path:
    """Where the students' files and folders begin: a zip of a folder has all of them further down."""
    below = [path.relative_to(place) for path in files]
    handed = [path for path in below if path.suffix.lower() in (".ipynb", ".zip")]
    for depth in range(1, max(len(path.parts) for path in below)):
        tops = {path.parts[:depth] for path in below}
        if len(tops) > 1 or any(len(path.parts) <= depth for path in below) or _folder(below[0].parts[depth - 1]):
            break
        students = {student_of(Path(*path.parts[depth:]), assignment) for path in handed}
        if "unknown" in students:  # a file that is called as the exercise: the folder is a student's
            break
        if len(students) > 1:
            return place.joinpath(*below[0].parts[:depth])
    return place


def student_of(path: PurePosixPath | Path, assignment: str) -> str:
    """The student's name from a file's path below the submissions.

    Example:
        >>> from pathlib import PurePosixPath as P
        >>> for path in ("Jane Doe_4711_assignsubmission_file_/x.ipynb", "Jane Doe_4711_assignsubmission_file_x.ipynb",
        ...              "doejane_123_456_04_masking-1.ipynb", "doejane_LATE_123_456_x.ipynb",
        ...              "Masking_jdoe_attempt_2026-11-21-10-00-00_x.ipynb",
        ...              "12-34 - Jane Doe - Nov 21, 2026 1005 AM/x.ipynb", "s-1001.ipynb",
        ...              "04_masking_jane (2).ipynb", "jane/work/04_masking.ipynb"):
        ...     student_of(P(path), "04_masking")
        'Jane-Doe'
        'Jane-Doe'
        'doejane'
        'doejane'
        'jdoe'
        'Jane-Doe'
        's-1001'
        'jane'
        'jane'
    """
    return plain(_whose(path, assignment)[0])


def _folder(name: str) -> tuple[str, str] | None:
    """Name and number in the name of a folder that Moodle or Brightspace has made."""
    found = MOODLE.match(name) or BRIGHTSPACE.match(name)
    return (found["name"], found["number"]) if found else None


def _of_moodle(path: PurePosixPath | Path) -> bool:
    """Whether Moodle has made this path, or its folder."""
    return MOODLE.match(path.parts[0] if len(path.parts) > 1 else path.stem) is not None


def _whose(path: PurePosixPath | Path, assignment: str, shared: str = "") -> tuple[str, str]:
    """The name as it is in a path, and the number that the platform has given it, empty where there is none.

    What all of Blackboard's names begin with, ``shared``, is no student's; where that is not known, the last word is.
    """
    if len(path.parts) > 1:
        return _folder(path.parts[0]) or (path.parts[0], "")
    stem = path.stem
    while COPIES.search(stem):
        stem = COPIES.sub("", stem)
    if found := _folder(stem):
        return found
    if platform := CANVAS.match(stem):
        anonymous = "" if platform["number"].isdecimal() else f"-{platform['number']}"
        return platform["name"] + anonymous, platform["number"]
    if platform := BLACKBOARD.match(stem):
        before = platform["before"]
        return before.removeprefix(shared) if shared else before.rpartition("_")[2], ""
    stem = re.sub(re.escape(assignment), "", stem, flags=re.IGNORECASE).strip(" _-.")
    return stem or "unknown", ""


def plain(name: str) -> str:
    """A name with letters, digits and ``. _ -`` alone, that can be a file's.

    Example:
        >>> plain("José  O'Neill"), plain("../x"), plain("李")
        ('Jose-O-Neill', 'x', 'u674e')
    """
    name = unicodedata.normalize("NFKD", name)
    name = "".join(each for each in name if not unicodedata.combining(each))
    name = "".join(each if ord(each) < 128 else f"u{ord(each):x}" for each in name)
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-._")[:80] or "unknown"


def meant(name: str, students: Collection[str], what: str) -> str:
    """Which of these students a person means who has typed a name, in whatever capitals.

    Raises:
        LabError: none of them, or several; it says that the name has no ``what``, and names the nearest that have.

    Example:
        >>> meant("jane doe", ["Jane-Doe", "John-Roe"], "hand-in")
        'Jane-Doe'
    """
    small = plain(name).lower()
    fitting = [each for each in students if name == each] or [each for each in students if small == each.lower()]
    if len(fitting) == 1:
        return fitting[0]
    close = difflib.get_close_matches(small, [each.lower() for each in students], n=5)
    near = fitting or [each for each in students if each.lower() in close] or sorted(students)[:5]
    raise LabError(f"{name!r} has no {what}; these have: {', '.join(near)}")


def _choose(
    student: str, paths: list[Path], assignment: str, unpacked: Path, place: Path, lost: dict[Path, str]
) -> Submission:
    """One file of a student's: the notebook; the one named like the assignment; the newest; the one with more answers.

    ``lost`` has of each file that could not be unpacked what is wrong with it.
    """
    remarks, origins = [lost[path] for path in paths if path in lost], {path: path for path in paths}
    for number, path in enumerate(list(paths)):
        if path.suffix.lower() == ".zip" and path not in lost:
            target = unpacked / f"{student}-{number}"
            whole, inner = unzip.unpack(path, target, unzip.MOST_OF_ONE)
            remarks += dict.fromkeys([*whole, *inner.values()])
            inside = sorted(inner for inner in target.rglob("*") if inner.is_file())
            origins |= dict.fromkeys(inside, path)
            paths += inside

    def told(path: Path) -> dict:
        """What the platform's name for a file says."""
        given = origins[path].relative_to(place)
        canvas = len(given.parts) == 1 and bool(CANVAS.match(given.stem))
        modified = None if _of_moodle(given) or origins[path] in lost else origins[path].stat().st_mtime
        time = handed_in_at(given, modified, canvas)
        return {"handed_in": given.as_posix(), "number": _whose(given, assignment)[1], "time": time}

    notebooks = [path for path in paths if path.suffix.lower() == ".ipynb"]
    if not notebooks:
        names = ", ".join(path.name for path in paths[:5])
        words = f"no notebook (.ipynb) among what was handed in: {names}"
        return Submission(student, None, (*remarks, words), **told(paths[0]))
    named = [path for path in notebooks if assignment.lower() in path.name.lower()] or notebooks

    def newness(path: Path) -> tuple:
        return told(path)["time"] or "", 0 if path in lost else path.stat().st_mtime

    newest = max(map(newness, named))
    alike = [path for path in named if newness(path) == newest]
    chosen = max(alike, key=lambda path: (_answered(path) if len(alike) > 1 else 0, path.name))
    if len(notebooks) > 1:
        why = f": of {len(alike)} with the same time the one with most answers" if len(alike) > 1 else ""
        remarks.append(f"{len(notebooks)} notebooks handed in, {chosen.name} was taken{why}")
    if chosen in lost:
        return Submission(student, None, tuple(remarks), **told(chosen))
    if chosen.stat().st_size > unzip.MOST_BYTES:
        words = f"{chosen.name} is larger than {unzip.MOST_BYTES // 2**20} MB"
        return Submission(student, None, (*remarks, words), **told(chosen))
    return Submission(student, chosen, tuple(remarks), **told(chosen))


def _answered(path: Path) -> float:
    """How much of a file was answered: its answers, without those that are as they were released."""
    with contextlib.suppress(LabError, OSError):
        if path.stat().st_size <= unzip.MOST_BYTES:
            cells = [cell for cell in read(path) if isinstance(cell.metadata, dict)]
            kinds = [cell.metadata.get("nbgrader") for cell in cells]
            answers = sum(isinstance(kind, dict) and kind.get("solution") is True for kind in kinds)
            return answers - 2 * sum(STUB in cell.source or TEXT_STUB in cell.source for cell in cells)
    return -math.inf
