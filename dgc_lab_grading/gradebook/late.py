"""Late submissions and their cost: one rule for the course, in ``late.toml`` in the grading folder.

All times are the platform's local time, as in its zips and file names, without a time zone.
"""

from __future__ import annotations

import datetime as dt
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from dgc_lab.common import LabError, read_text
from dgc_lab_grading.course.names import plain
from dgc_lab_grading.course.report import read_report

FILE = "late.toml"
NUMBERS = {"grace_minutes": 0, "percent_a_day": 0, "most_days": 0}
WORDS = {"name", "exercise", "due", "handed_in", "reason"}


@dataclass(frozen=True)
class Rules:
    """The content of ``late.toml``; without the file, nobody is late.

    Attributes:
        due: deadlines by exercise, in lower case.
        grace_minutes: minutes after the deadline that do not count as late.
        percent_a_day: percentage of the maximum points that each day or part of a day costs.
        most_days: days after which nothing counts; 0 for no limit.
        students: exceptions (due, handed_in, reason) by plain name and exercise, in lower case.
    """

    due: dict[str, dt.datetime] = field(default_factory=dict)
    grace_minutes: float = 0
    percent_a_day: float = 0
    most_days: float = 0
    students: dict[tuple[str, str], dict] = field(default_factory=dict)


@dataclass(frozen=True)
class Lateness:
    """Lateness of a submission and the points that are left, with a description in words."""

    days: int
    points: float
    words: str


def read_rules(folder: Path) -> Rules:
    """Return the rules of a grading folder; a LabError names the invalid entry."""
    path = Path(folder) / FILE
    if not path.exists():
        return Rules()
    try:
        found = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{path} is not valid TOML: {error}") from None
    unknown = set(found) - {"due", "student", *NUMBERS}
    if unknown:
        raise LabError(
            f"{path}: unknown entry {', '.join(sorted(unknown))}; allowed are due, student, {', '.join(NUMBERS)}"
        )
    numbers = {name: found.get(name, least) for name, least in NUMBERS.items()}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10**6:
            raise LabError(f"{path}: {name} must be a number from 0 to 1000000, got {value!r}")
    if not isinstance(found.get("due", {}), dict) or not isinstance(found.get("student", []), list):
        raise LabError(f"{path}: deadlines go below [due], exceptions below [[student]]")
    due = {name.lower(): _time(path, f"due.{name}", value) for name, value in found.get("due", {}).items()}
    if len(due) < len(found.get("due", {})):
        raise LabError(f"{path}: [due] has an exercise twice, in upper and lower case")
    students = {}
    for each in found.get("student", ()):
        if not isinstance(each, dict) or not {"name", "exercise"} <= set(each) <= WORDS:
            raise LabError(f"{path}: [[student]] needs name, exercise and any of due, handed_in, reason, got {each!r}")
        for word in {"name", "exercise", "reason"} & set(each):
            if not isinstance(each[word], str):
                raise LabError(f"{path}: student.{word} must be text in quotes, got {each[word]!r}")
        times = {word: _time(path, f"student.{word}", each[word]) for word in ("due", "handed_in") if word in each}
        key = plain(each["name"]).lower(), each["exercise"].lower()
        if key in students:
            raise LabError(f"{path}: {each['name']} has two [[student]] for {each['exercise']}; merge them")
        students[key] = {"reason": each.get("reason", "")} | times
    return Rules(due, *numbers.values(), students)


def unmatched(folder: Path) -> list[str]:
    """Return a warning for each rule that matches no graded submission yet, and perhaps never will."""
    rules, report = read_rules(folder), read_report(folder)
    report.pop("exercises", None)
    handed = {name.lower(): {student.lower() for student in rows} for name, rows in report.items()}
    words = [f"no submission of {name} has been graded" for name in rules.due if name not in handed]
    for student, name in rules.students:
        if student not in handed.get(name, ()):
            words.append(f"{student} has no graded submission of {name}")
    return [f"{FILE}: {each}" for each in words]


def _time(path: Path, name: str, value) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.tzinfo is not None:
        raise LabError(f"{path}: {name} must be a time like 2026-11-21 23:59:00, without a time zone, got {value}")
    return value


def lateness(
    rules: Rules, student: str, exercise: str, time: str | None, points: float, most: float
) -> Lateness | None:
    """Apply the rules to one submission; return None if it was in time, or if there is no deadline.

    Args:
        rules: from `read_rules`.
        student: the plain name.
        exercise: its name.
        time: ISO time of the submission; ``"late"`` if only that is known, None if nothing is.
        points: the points reached, before any deduction.
        most: the maximum points.

    Example:
        >>> rules = Rules({"04": dt.datetime(2026, 11, 20, 12)}, grace_minutes=15, percent_a_day=10)
        >>> lateness(rules, "jane", "04", "2026-11-20T12:10:00", 15, 20) is None
        True
        >>> lateness(rules, "jane", "04", "2026-11-21T13:00:00", 15, 20)
        Lateness(days=2, points=11.0, words='2 days late: 4 points off')
    """
    exception = rules.students.get((student.lower(), exercise.lower()), {})
    due = exception.get("due", rules.due.get(exercise.lower()))
    if due is None:
        return None
    why = f" ({exception['reason']})" if exception.get("reason") else ""
    if "handed_in" in exception:
        time = exception["handed_in"].isoformat()
    if time == "late" and "due" not in exception:
        return Lateness(0, points, f"late according to the platform, but not by how much: enter it in {FILE}")
    if time in (None, "late"):
        return None
    handed = dt.datetime.fromisoformat(time)
    if handed - due <= dt.timedelta(minutes=rules.grace_minutes):
        return None
    days = math.ceil((handed - due) / dt.timedelta(days=1))
    late = f"{days} day{'s' if days > 1 else ''} late{why}"
    if rules.most_days and days > rules.most_days:
        return Lateness(days, 0.0, f"{late}: more than {rules.most_days:g}, so nothing counts")
    off = min(points, days * rules.percent_a_day / 100 * most)
    return Lateness(days, points - off, f"{late}: {off:g} points off")
