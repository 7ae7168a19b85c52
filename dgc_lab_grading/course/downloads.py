"""Names that learning platforms give to submitted files: student, platform's number, time of submission.

A student chooses only the end of such a name. So the patterns match from the beginning, and the first match counts. A
download comes from one platform, the one that named most of its files: naming a file in another platform's style has no
effect.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dgc_lab_grading.course.names import plain

# Each matches the name of a folder (IN_FOLDERS), or of a file without its ending (AS_FILES), or either. The number may
# be a person's or an anonymous id.
ANONYMOUS = r"(?<=anon_)[A-Za-z0-9]{5}|(?<=anon_LATE_)[A-Za-z0-9]{5}"
PATTERNS = {
    "moodle": re.compile(r"(?P<name>.*?)_(?P<number>\d+)_assignsubmission_(?:file|onlinetext)(?:_.*)?"),
    # Its number differs from the one in the gradebook.
    "brightspace": re.compile(
        r"(?P<number>\d+)-\d+ ?- ?(?P<name>.+?) ?- ?(?P<day>[^-]*\b\d{4})\b,? "
        r"(?P<time>\d[\d.:]* ?(?:[AP]M)?)(?: ?- .*)?"
    ),
    "canvas": re.compile(
        rf"(?P<early>LATE_)?(?P<name>[^_]+)_(?P<late>LATE_)?(?P<number>\d+|{ANONYMOUS})_\d+_.*", re.IGNORECASE
    ),
    "blackboard": re.compile(r"(?P<name>.+?)_attempt_(?P<day>\d{4}-\d\d-\d\d)-(?P<time>\d\d-\d\d-\d\d)(?:_.*)?"),
    "ilias": re.compile(r"(?P<name>(?P<last>[^_]+)_(?P<first>[^_]+)_[^_]+(?:_[^_]+)*)_(?P<number>\d+)"),
}
IN_FOLDERS, AS_FILES = {"moodle", "brightspace", "ilias"}, {"moodle", "brightspace", "canvas", "blackboard"}
MOST_LETTERS = 300  # of a name; longer ones are no platform's
COPIES = re.compile(r"(\s*\(\d+\)| - Copy|-Copy\d+|-checkpoint|\.ipynb)$")
NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.IGNORECASE)  # some browsers add an ending, and Windows hides it


@dataclass(frozen=True)
class Origin:
    """Information in the name of a submitted file.

    Attributes:
        name: the student's name, as the platform writes it.
        number: the platform's id of the student, or "".
        platform: a key of `PATTERNS`; "" if none named this file.
        time: ISO time of the submission; ``"late"`` if only that is known; None if the name does not contain it.
    """

    name: str
    number: str = ""
    platform: str = ""
    time: str | None = None


def origins(paths: Collection[PurePosixPath | Path], assignment: str) -> dict[PurePosixPath | Path, Origin]:
    """Return the origin of each file of a download; paths are below the folder of all submissions.

    A file that no platform named belongs to the student whose name is that of its folder or, without the exercise's
    name, that of the file.

    Example:
        >>> from pathlib import PurePosixPath as P
        >>> def of(*names):
        ...     for each in origins(list(map(P, names)), "04_masking").values():
        ...         print(each.name, each.number, each.time)
        >>> of("Masking_jdoe_attempt_2026-11-21-10-05-00_x.ipynb")
        jdoe  2026-11-21T10:05:00
        >>> of("12-34 - Jane Doe - Nov 21, 2026 105 PM/x.ipynb", "12-34 - Jane Doe - 21 November, 2026 14.05 - x.ipynb")
        Jane Doe 12 2026-11-21T13:05:00
        Jane Doe 12 2026-11-21T14:05:00
        >>> of("doejane_LATE_123_456_x.ipynb", "doejane_123_456_x.ipynb")
        doejane 123 late
        doejane 123 None
        >>> of("jane_attempt_2026-11-21-10-05-00_x.ipynb", "john.ipynb", "04_masking_eve (2).ipynb")
        jane_attempt_2026-11-21-10-05-00_x  None
        john  None
        eve  None
    """
    found = {}
    for nested in (False, True):  # an instructor may have added files to those of a platform
        group = [path for path in paths if (len(path.parts) > 1) == nested]
        found |= _named(group, IN_FOLDERS if nested else AS_FILES)
    return {path: found[path] if path in found else _own(path, assignment) for path in paths}


def student_of(path: PurePosixPath | Path, assignment: str) -> str:
    """Return the student's plain name from a file's path below the submissions.

    Example:
        >>> student_of(PurePosixPath("Jane Doe_4711_assignsubmission_file_/x.ipynb"), "04_masking")
        'Jane-Doe'
        >>> student_of(PurePosixPath("04_masking_jane (2).ipynb"), "04_masking")
        'jane'
    """
    return plain(origins([path], assignment)[path].name)


def class_folder(paths: Collection[PurePosixPath | Path], assignment: str) -> PurePosixPath:
    """Return the folder that holds the students' files, as a relative path: a zip of a folder nests them deeper."""
    candidates = [path for path in paths if NOTEBOOK.search(path.name) or path.suffix.lower() == ".zip"] or paths
    deepest = min(len(path.parts) for path in candidates)
    for depth in range(deepest):
        if len({path.parts[:depth] for path in candidates}) > 1:
            break
        folders = {path.parts[depth] for path in candidates if len(path.parts) > depth + 1}
        if 2 * sum(any(PATTERNS[each].fullmatch(name) for each in IN_FOLDERS) for name in folders) > len(folders):
            return PurePosixPath(*candidates[0].parts[:depth])
    for depth in range(1, deepest):
        if len({path.parts[:depth] for path in paths}) > 1:
            break
        students = {student_of(PurePosixPath(*path.parts[depth:]), assignment) for path in candidates}
        if "unknown" in students:  # a file named after the exercise: the folder is a student's
            break
        if len(students) > 1:
            return PurePosixPath(*candidates[0].parts[:depth])
    return PurePosixPath()


def _named(paths, platforms: set[str]) -> dict:
    """Return the origins of the files named by the platform that named most of them, if it named at least half.

    If two patterns match equally many names, the one in which the students' names end earlier wins.
    """
    names = {path: path.parts[0] if len(path.parts) > 1 else _stem(path) for path in paths}
    matches: dict[str, dict[str, re.Match]] = {platform: {} for platform in sorted(platforms)}
    for name in {name for name in names.values() if len(name) <= MOST_LETTERS}:
        for platform, by_name in matches.items():
            if match := PATTERNS[platform].fullmatch(name):
                by_name[name] = match

    def likelihood(platform: str) -> tuple[int, int]:
        return len(matches[platform]), -sum(match.end("name") for match in matches[platform].values())

    platform = max(matches, key=likelihood)
    by_name = matches[platform]
    if 2 * len(by_name) < len(set(names.values())):
        return {}
    title = _title([match["name"] for match in by_name.values()]) if platform == "blackboard" else ""
    return {path: _origin(platform, by_name[name], title) for path, name in names.items() if name in by_name}


def _stem(path) -> str:
    """Return a file's name without its ending, and without the marks that browsers and editors put on copies."""
    stem = path.stem
    while COPIES.search(stem):
        stem = COPIES.sub("", stem)
    return stem


def _origin(platform: str, match: re.Match, title: str) -> Origin:
    """Return the origin of a file that the platform named."""
    parts = match.groupdict()
    name, number, time = parts.get("name", ""), parts.get("number", ""), None
    if platform == "ilias":
        name = f"{parts['first']} {parts['last']}"
    elif platform == "canvas":
        name += "" if number.isdecimal() else f"-{number}"
        time = "late" if parts["early"] or parts["late"] else None
    elif platform == "blackboard":
        name = name.removeprefix(title) if title else name.rpartition("_")[2]
        with contextlib.suppress(ValueError):
            time = dt.datetime.strptime(f"{parts['day']} {parts['time']}", "%Y-%m-%d %H-%M-%S").isoformat()
    elif platform == "brightspace":
        time = _brightspace_time(parts["day"], parts["time"])
    return Origin(name, number, platform, time)


def _own(path, assignment: str) -> Origin:
    """Return the origin of a file that no platform named."""
    if len(path.parts) > 1:
        return Origin(path.parts[0])
    return Origin(re.sub(re.escape(assignment), "", _stem(path), flags=re.IGNORECASE).strip(" _-.") or "unknown")


def _title(names: list[str]) -> str:
    """Return the assignment's title, with which all of Blackboard's names begin; it leaves a word for the student."""
    each = {tuple(name.split("_")) for name in names}
    if len(each) < 2:
        return ""
    shared = itertools.takewhile(lambda words: len(set(words)) == 1, zip(*each, strict=False))
    words = [column[0] for column in shared][: min(map(len, each)) - 1]
    return "".join(f"{word}_" for word in words)


def _brightspace_time(day: str, time: str) -> str | None:
    """Return the ISO form of ``Nov 21, 2026`` and ``105 PM``, or ``21 November, 2026`` and ``14.05``; else None."""
    digits, am_pm = re.sub(r"\D", "", time), time[-2:] if time.endswith("M") else ""
    text = f"{day.replace(',', '').strip()} {digits.zfill(len(digits) + len(digits) % 2)[:4]}{am_pm}"
    for date_format in ("%b %d %Y ", "%B %d %Y ", "%d %b %Y ", "%d %B %Y "):
        with contextlib.suppress(ValueError):
            return dt.datetime.strptime(text, date_format + ("%I%M%p" if am_pm else "%H%M")).isoformat()
    return None
