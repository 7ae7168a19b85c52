"""Find each student's submission in a folder or zip downloaded from a learning platform.

It supports the names that five platforms give (see `downloads`), otherwise one file or folder per student, named after
the student, and zips of these, even nested ones. Nothing in a zip can leave its folder, and its size is limited while
it is read, whatever the zip claims.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import math
import unicodedata
import zipfile
from dataclasses import dataclass
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.course import unzip
from dgc_lab_grading.course.downloads import NOTEBOOK, Origin, class_folder, origins
from dgc_lab_grading.course.names import distinct, plain
from dgc_lab_grading.marking.limited import TooMuch, call_in_fork
from dgc_lab_grading.marking.nbgrader_api import STUB, TEXT_STUB
from dgc_lab_grading.marking.reading import read

MOST_NAMED, MOST_READ = 5, 5  # files in a remark; a student's notebooks whose answers are counted
SECONDS_OF_A_ZIP, MEMORY_OF_A_ZIP = 60, 2**29  # of a student's zip


@dataclass(frozen=True)
class Submission:
    """One student's submission."""

    student: str  # usable as a folder name, see `names.plain`
    path: Path | None  # the file to grade; None if no file can be a notebook
    remarks: tuple[str, ...] = ()  # for the instructor
    handed_in: str = ""  # the file's path as named by the platform, which matches feedback by it
    number: str = ""  # the platform's id of the student in that path, or ""
    time: str | None = None  # when it was handed in: ISO time, "late" if only that is known, or None


def find(place: Path, assignment: str, unpacked: Path) -> tuple[list[Submission], list[str]]:
    """Return all submissions in a folder or zip, one per student, sorted by student, and remarks on the whole download.

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
        remarks, lost = unzip.unpack(place, root, lambda names: class_folder(names, assignment))
        place = root
    present = (path for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    files = sorted({*present, *lost})  # a file that cannot be unpacked has been handed in, too
    files = [path for path in files if not unzip.LEAVE_OUT.search(path.relative_to(place).as_posix())]
    if not files:
        raise LabError("; ".join([f"no submissions in {place}", *remarks]))
    folder = place / class_folder([path.relative_to(place) for path in files], assignment)
    if beside := [path.relative_to(place).as_posix() for path in files if folder not in path.parents]:
        remarks.append(f"left out, because it is in no student's folder: {', '.join(beside[:MOST_NAMED])}")
    given = {path.relative_to(folder): path for path in files if folder in path.parents}
    named = {given[path]: origin for path, origin in origins(list(given), assignment).items()}
    people = _people(named)
    names = distinct(people)
    namesakes: dict[str, list[tuple[str, str]]] = {}
    for (name, _), made in sorted(names.items()):
        namesakes.setdefault(name.casefold(), []).append((name, made))
    for same in namesakes.values():
        if len(same) > 1:
            remarks.append(f"{len(same)} students are called {same[0][0]}: {' and '.join(made for _, made in same)}")
    if any(origin.platform == "moodle" for origin in named.values()):
        remarks.append("Moodle's zip has no submission times: enter them in late.toml, as handed_in")
    found = [
        _choose(names[person], paths, assignment, Path(unpacked), folder, named, lost)
        for person, paths in sorted(people.items(), key=lambda item: names[item[0]])
    ]
    dated = {path.relative_to(folder).as_posix() for path in named if named[path].platform == "brightspace"}
    if unread := [one.handed_in for one in found if one.time is None and one.handed_in in dated]:
        more = f" and of {len(unread) - 1} more" if len(unread) > 1 else ""
        remarks.append(f"cannot read the time in the name of {unread[0]}{more}: enter it in late.toml, as handed_in")
    return found, remarks


def _people(named: dict[Path, Origin]) -> dict[tuple[str, str], list[Path]]:
    """Group files by person: plain name, and the platform's number or a hash of the name as it is spelled.

    A file without a number belongs to the person with a number if there is only one.
    """
    by_writing: dict[tuple[str, str], dict[str, list[Path]]] = {}
    for path, origin in named.items():
        letters = "".join(filter(str.isalnum, unicodedata.normalize("NFC", origin.name)))
        by_writing.setdefault((plain(origin.name), letters), {}).setdefault(origin.number, []).append(path)
    people: dict[tuple[str, str], list[Path]] = {}
    for (name, letters), by_number in by_writing.items():
        if len(by_number) == 2 and "" in by_number:
            rest = by_number.pop("")
            next(iter(by_number.values())).extend(rest)
        for number, paths in by_number.items():
            suffix = number or hashlib.sha256(letters.encode(errors="replace")).hexdigest()[:4]
            people.setdefault((name, suffix), []).extend(paths)
    return people


def _choose(
    student: str,
    paths: list[Path],
    assignment: str,
    unpacked: Path,
    folder: Path,
    named: dict[Path, Origin],
    lost: dict[Path, str],
) -> Submission:
    """Choose a student's file: a notebook; named like the exercise; then the newest; then the one with most answers.

    ``lost`` gives the reason for each file that could not be unpacked.
    """
    remarks, given = [lost[path] for path in paths if path in lost], {path: path for path in paths}
    for number, path in enumerate(list(paths)):
        if path.suffix.lower() == ".zip" and path not in lost:
            target = unpacked / f"{student}-{number}"
            remarks += _unpacked(path, target)
            inside = sorted(inner for inner in target.rglob("*") if inner.is_file())
            given |= dict.fromkeys(inside, path)
            paths = [*paths, *inside]

    def platform_fields(path: Path) -> dict:
        """Return the fields of `Submission` that come from the platform's name."""
        origin, time = named[given[path]], named[given[path]].time
        if origin.platform in ("", "ilias") and given[path] not in lost:  # other platforms' zips have one time for all
            time = dt.datetime.fromtimestamp(given[path].stat().st_mtime).isoformat(timespec="seconds")
        return {"handed_in": given[path].relative_to(folder).as_posix(), "number": origin.number, "time": time}

    notebooks = [path for path in paths if NOTEBOOK.search(path.name)]
    if not notebooks:
        words = f"no notebook (.ipynb) among the files: {', '.join(path.name for path in paths[:5])}"
        return Submission(student, None, (*remarks, words), **platform_fields(paths[0]))
    by_exercise = [path for path in notebooks if assignment.lower() in path.name.lower()] or notebooks

    def newness(path: Path) -> tuple:
        return platform_fields(path)["time"] or "", 0 if path in lost else path.stat().st_mtime

    newest = max(map(newness, by_exercise))
    alike = [path for path in by_exercise if newness(path) == newest][:MOST_READ]
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


def _unpacked(archive: Path, target: Path) -> list[str]:
    """Extract a student's zip within limits, as it may list millions of files; return remarks."""
    try:
        whole, lost = call_in_fork(_unpack, archive, target, seconds=SECONDS_OF_A_ZIP, memory=MEMORY_OF_A_ZIP)
    except TooMuch as error:
        return [f"{archive.name} {error} to unpack"]
    return list(dict.fromkeys([*whole, *lost]))


def _unpack(archive: Path, target: Path) -> tuple[list[str], list[str]]:
    remarks, lost = unzip.unpack(archive, target)
    return remarks, list(lost.values())


def _answered(path: Path) -> float:
    """Score the completeness of a file: the number of changed answers minus the number of unchanged ones."""
    with contextlib.suppress(LabError, OSError):
        if path.stat().st_size <= unzip.MOST_BYTES:
            cells = [cell for cell in read(path) if isinstance(cell.metadata, dict)]
            kinds = [cell.metadata.get("nbgrader") for cell in cells]
            answers = sum(isinstance(kind, dict) and kind.get("solution") is True for kind in kinds)
            return answers - 2 * sum(STUB in cell.source or TEXT_STUB in cell.source for cell in cells)
    return -math.inf
