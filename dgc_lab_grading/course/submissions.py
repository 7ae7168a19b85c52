"""Find each student's submission in a folder or zip downloaded from a learning platform.

Supported are Moodle's folders or single files (``Jane Doe_4711_assignsubmission_file_any.ipynb``), files of Canvas
(``doejane_LATE_123_456_04_masking-1.ipynb``) and Blackboard (``..._jdoe_attempt_2026-...``), folders and files of
Brightspace (``12-34 - Jane Doe - Nov 21, 2026 1005 AM``), otherwise one file or folder per student, named after the
student; and zips of these, also nested. Nothing in a zip can leave its folder, and its size is limited while it is
read, whatever the zip claims.
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
from dgc_lab_grading.course import unzip
from dgc_lab_grading.course.clock import BRIGHTSPACE, handed_in_at
from dgc_lab_grading.marking.nbgrader_api import STUB, TEXT_STUB
from dgc_lab_grading.marking.repair import read

# How platforms combine a name, a number and a file name; the number may be a person's or an anonymous id.
MOODLE = re.compile(r"^(?P<name>.*)_(?P<number>\d+)_assignsubmission_(?:file|onlinetext)(?:_.*)?$")
ANONYMOUS = r"(?<=anon_)[A-Za-z0-9]{5}|(?<=anon_LATE_)[A-Za-z0-9]{5}"
CANVAS = re.compile(rf"^(?:LATE_)?(?P<name>[^_]+)_(?:LATE_)?(?P<number>\d+|{ANONYMOUS})_\d+_", re.IGNORECASE)
BLACKBOARD = re.compile(r"^(?P<before>.+)_attempt_\d{4}-\d\d-\d\d")
COPIES = re.compile(r"(\s*\(\d+\)| - Copy|-Copy\d+|-checkpoint)$")


@dataclass(frozen=True)
class Submission:
    """One student's submission."""

    student: str  # usable as a folder name, see `plain`
    path: Path | None  # the file to grade; None if no file can be a notebook
    remarks: tuple[str, ...] = ()  # for the instructor
    handed_in: str = ""  # the file's path as named by the platform, which matches feedback by it
    number: str = ""  # the platform's id of the student in that path, or ""
    time: str | None = None  # when it was handed in, see `clock`


def find(place: Path, assignment: str, unpacked: Path) -> tuple[list[Submission], list[str]]:
    """Return all submissions in a folder or zip, one per student, sorted by student; and remarks on the whole.

    File names may contain the exercise's name, which is not part of a student's name. Zips are extracted to
    ``unpacked``, which must be empty.
    """
    place, remarks, lost = Path(place), [], {}
    if not place.exists():
        raise LabError(f"no submissions at {place}")
    if place.is_file():
        if not zipfile.is_zipfile(place):
            raise LabError(f"submissions must be a folder or a zip, got the file {place}")
        root = Path(unpacked) / "all"
        remarks, lost = unzip.unpack(place, root)
        place = root
    present = (path for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    files = sorted({*present, *lost})  # a file that cannot be unpacked has been handed in, too
    files = [path for path in files if not unzip.LEAVE_OUT.search(path.relative_to(place).as_posix())]
    if not files:
        raise LabError("; ".join([f"no submissions in {place}", *remarks]))
    place = _of_class(place, files, assignment)
    by_name: dict[str, list[Path]] = {}
    for name, people in _people(place, files, assignment).items():
        for suffix, paths in people.items():
            by_name[name if len(people) == 1 else f"{name}-{suffix}"] = paths
        if len(people) > 1:
            remarks.append(
                f"{len(people)} students are called {name}: {' and '.join(f'{name}-{suffix}' for suffix in people)}"
            )
    if any(_is_moodle(path.relative_to(place)) for path in files):
        remarks.append("Moodle's zip has no submission times: enter them in late.toml, as handed_in")
    found = [_choose(student, by_name[student], assignment, Path(unpacked), place, lost) for student in sorted(by_name)]
    unread = [one.handed_in for one in found if one.time is None and BRIGHTSPACE.match(one.handed_in.partition("/")[0])]
    if unread:
        more = f" and of {len(unread) - 1} more" if len(unread) > 1 else ""
        remarks.append(f"cannot read the time in the name of {unread[0]}{more}: enter it in late.toml, as handed_in")
    return found, remarks


def _people(place: Path, files: list[Path], assignment: str) -> dict[str, dict[str, list[Path]]]:
    """Group the files by plain name, then by person: by the platform's number, else by the spelling of the name.

    A file without a number belongs to the person with a number if there is only one.
    """
    by_writing: dict[tuple[str, str], dict[str, list[Path]]] = {}
    prefixes = {found["before"] for path in files if (found := BLACKBOARD.match(path.name))}
    words = zip(*(prefix.split("_") for prefix in prefixes), strict=False) if len(prefixes) > 1 else ()
    shared = "".join(f"{column[0]}_" for column in itertools.takewhile(lambda column: len(set(column)) == 1, words))
    for path in files:
        name, number = _name_and_number(path.relative_to(place), assignment, shared)
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
    """Return the folder that holds the students' files: in a zip of a folder, they are nested deeper."""
    below = [path.relative_to(place) for path in files]
    candidates = [path for path in below if path.suffix.lower() in (".ipynb", ".zip")]
    for depth in range(1, max(len(path.parts) for path in below)):
        tops = {path.parts[:depth] for path in below}
        if len(tops) > 1 or any(len(path.parts) <= depth for path in below) or _parse_folder(below[0].parts[depth - 1]):
            break
        students = {student_of(Path(*path.parts[depth:]), assignment) for path in candidates}
        if "unknown" in students:  # a file named after the exercise: the folder is a student's
            break
        if len(students) > 1:
            return place.joinpath(*below[0].parts[:depth])
    return place


def student_of(path: PurePosixPath | Path, assignment: str) -> str:
    """Return the student's name from a file's path below the submissions.

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
    return plain(_name_and_number(path, assignment)[0])


def _parse_folder(name: str) -> tuple[str, str] | None:
    """Return the name and number in a folder name made by Moodle or Brightspace, or None."""
    found = MOODLE.match(name) or BRIGHTSPACE.match(name)
    return (found["name"], found["number"]) if found else None


def _is_moodle(path: PurePosixPath | Path) -> bool:
    """Whether Moodle named this path, or its folder."""
    return MOODLE.match(path.parts[0] if len(path.parts) > 1 else path.stem) is not None


def _name_and_number(path: PurePosixPath | Path, assignment: str, shared: str = "") -> tuple[str, str]:
    """Return the name in a path, and the platform's number, or an empty string if there is none.

    ``shared`` is the common prefix of Blackboard's names, which is no part of a student's; if unknown, the last word is
    used.
    """
    if len(path.parts) > 1:
        return _parse_folder(path.parts[0]) or (path.parts[0], "")
    stem = path.stem
    while COPIES.search(stem):
        stem = COPIES.sub("", stem)
    if found := _parse_folder(stem):
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
    """Reduce a name to ASCII letters, digits and ``. _ -``, so that it can be a file name.

    Example:
        >>> plain("José  O'Neill"), plain("../x"), plain("李")
        ('Jose-O-Neill', 'x', 'u674e')
    """
    name = unicodedata.normalize("NFKD", name)
    name = "".join(each for each in name if not unicodedata.combining(each))
    name = "".join(each if ord(each) < 128 else f"u{ord(each):x}" for each in name)
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-._")[:80] or "unknown"


def meant(name: str, students: Collection[str], what: str) -> str:
    """Return the student that a typed name refers to, ignoring case.

    Raises:
        LabError: no student matches, or several; it says that the name has no ``what``, and lists similar names that
            do.

    Example:
        >>> meant("jane doe", ["Jane-Doe", "John-Roe"], "submission")
        'Jane-Doe'
    """
    lower = plain(name).lower()
    matches = [each for each in students if name == each] or [each for each in students if lower == each.lower()]
    if len(matches) == 1:
        return matches[0]
    close = difflib.get_close_matches(lower, [each.lower() for each in students], n=5)
    near = matches or [each for each in students if each.lower() in close] or sorted(students)[:5]
    raise LabError(f"{name!r} has no {what}; these have: {', '.join(near)}")


def _choose(
    student: str, paths: list[Path], assignment: str, unpacked: Path, place: Path, lost: dict[Path, str]
) -> Submission:
    """Choose a student's file: a notebook; named like the exercise; then the newest; then the one with most answers.

    ``lost`` gives the reason for each file that could not be unpacked.
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

    def platform_fields(path: Path) -> dict:
        """Return the fields of `Submission` that come from the platform's name."""
        given = origins[path].relative_to(place)
        canvas = len(given.parts) == 1 and bool(CANVAS.match(given.stem))
        modified = None if _is_moodle(given) or origins[path] in lost else origins[path].stat().st_mtime
        time = handed_in_at(given, modified, canvas)
        return {"handed_in": given.as_posix(), "number": _name_and_number(given, assignment)[1], "time": time}

    notebooks = [path for path in paths if path.suffix.lower() == ".ipynb"]
    if not notebooks:
        names = ", ".join(path.name for path in paths[:5])
        words = f"no notebook (.ipynb) among the files: {names}"
        return Submission(student, None, (*remarks, words), **platform_fields(paths[0]))
    named = [path for path in notebooks if assignment.lower() in path.name.lower()] or notebooks

    def newness(path: Path) -> tuple:
        return platform_fields(path)["time"] or "", 0 if path in lost else path.stat().st_mtime

    newest = max(map(newness, named))
    alike = [path for path in named if newness(path) == newest]
    chosen = max(alike, key=lambda path: (_answered(path) if len(alike) > 1 else 0, path.name))
    if len(notebooks) > 1:
        why = f": the one with most answers of {len(alike)} with the same time" if len(alike) > 1 else ""
        remarks.append(f"{len(notebooks)} notebooks handed in, {chosen.name} was graded{why}")
    if chosen in lost:
        return Submission(student, None, tuple(remarks), **platform_fields(chosen))
    if chosen.stat().st_size > unzip.MOST_BYTES:
        words = f"{chosen.name} is larger than {unzip.MOST_BYTES // 2**20} MB"
        return Submission(student, None, (*remarks, words), **platform_fields(chosen))
    return Submission(student, chosen, tuple(remarks), **platform_fields(chosen))


def _answered(path: Path) -> float:
    """Score the completeness of a file: its answers, minus those that are unchanged."""
    with contextlib.suppress(LabError, OSError):
        if path.stat().st_size <= unzip.MOST_BYTES:
            cells = [cell for cell in read(path) if isinstance(cell.metadata, dict)]
            kinds = [cell.metadata.get("nbgrader") for cell in cells]
            answers = sum(isinstance(kind, dict) and kind.get("solution") is True for kind in kinds)
            return answers - 2 * sum(STUB in cell.source or TEXT_STUB in cell.source for cell in cells)
    return -math.inf
