"""Fill a learning platform's file with marks: Moodle's grading worksheet, or the gradebook of three other platforms.

Only the fields of our marks change (`csv_text`). The formats, and where they are documented:

- Moodle: the first column ends in the student's number, "Grade" takes the marks; the headings are in the user's
  language. ``mod/assign/feedback/offline/importgradeslib.php`` in moodle/moodle, and ``csvlib.class.php``.
- Canvas: "ID" is the number, a column is called "Title (id)", the row "Points Possible" has the maxima, EX and N/A
  stay. ``lib/gradebook_exporter.rb`` in instructure/canvas-lms.
- Brightspace: "OrgDefinedId" and "Username", a column "Title Points Grade <Numeric MaxPoints:18>".
  https://community.d2l.com/brightspace/kb/articles/3538-importing-grades
- Blackboard: "Username", a column "Title [Total Pts: 18 Score] |id"; tabs and UTF-16, or commas and quotes.
  https://tips.uark.edu/uploading-your-grade-center/
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from dgc_lab.common import LabError
from dgc_lab_grading.course.csv_text import CsvText, read_table
from dgc_lab_grading.course.downloads import student_of
from dgc_lab_grading.course.names import ascii_form
from dgc_lab_grading.gradebook.ledger import Mark

CHANGEABLE = {  # Moodle's "Grade can be changed"
    "Grade can be changed",
    "Bewertung kann geändert werden",
    "La note peut être modifiée",
    "La calificación puede ser cambiada",
    "La calificación puede cambiarse",
}
CLOSED = {"no", "nein", "non"}
KEPT = {"EX", "N/A"}  # Canvas: excused, and not assigned to this student
FIRST, LAST = ("First Name", "Vorname"), ("Last Name", "Nachname")


@dataclass(frozen=True)
class Platform:
    """Format of a platform's file, with its column names in all supported languages.

    Attributes:
        numbers: columns with the platform's id of a student, at the end of the field or as the whole of it.
        names: columns with a student's full name, login or address; first and last names are in `FIRST` and `LAST`. In
            Moodle's, all columns before the marks.
        marks: pattern for the heading of a column of marks; its first group is the exercise's title.
        most: columns with the maximum points, or a pattern that finds them in the heading.
        one_exercise: whether a file covers one exercise, which the heading does not name.
        number_identifies: whether the number in a submission's file name is the one in the student's row.
        name_must_match: whether the name must match that row, too, because the number may be a group's.
    """

    numbers: tuple[str, ...]
    names: tuple[str, ...]
    marks: str
    most: tuple[str, ...] | str = ()
    one_exercise: bool = False
    number_identifies: bool = False
    name_must_match: bool = False


PLATFORMS = {
    "moodle": Platform(
        ("Identifier", "ID", "Identifiant", "Identificador"),
        (),
        r"(Grade|Bewertung|Note|Calificación)",
        ("Maximum grade", "Bestwertung", "Note maximale", "Calificación máxima"),
        one_exercise=True,
        number_identifies=True,
        name_must_match=True,
    ),
    "canvas": Platform(
        ("ID",),
        ("Student", "SIS User ID", "SIS Login ID"),
        r"(.*) \(\d+\)",
        number_identifies=True,
    ),
    "brightspace": Platform(
        ("OrgDefinedId",),
        ("Username", "Email"),
        r"(.*?) Points Grade.*",
        r"MaxPoints:([\d.]+)",
    ),
    "blackboard": Platform(
        ("Username", "Benutzername", "Student ID"),
        (),
        r"(.*) \[.*\] ?\|\d+",
        r"\[[^\]\d]*([\d.,]+)",
    ),
}


@dataclass
class Filled:
    """A filled file: the number of fields filled, and for each student left out, the reason.

    ``kept`` are those whose field the platform keeps as it is: they are excused, or their grade is final.
    """

    data: bytes
    count: int = 0
    left: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """One student's row in a platform's file: its index, and possible ids and names of the student."""

    place: int
    numbers: frozenset[str]
    names: frozenset[str]


def fill(
    marks: dict[str, dict[str, Mark]], file: Path, platform: str, column: str | None = None, scale: bool = False
) -> Filled:
    """Return a platform's file with the marks filled in.

    Args:
        marks: from `ledger.marks_of`, by exercise and student; of one exercise for Moodle's worksheet.
        file: the platform's file, which is not changed.
        platform: one of `PLATFORMS`.
        column: heading of the column to fill, if no column's title has the exercise's words.
        scale: whether marks may be scaled to a different maximum on the platform.

    Raises:
        LabError: no column matches, the platform's maximum differs, or there is none to scale to.
    """
    form, table = PLATFORMS[platform], read_table(file)
    heads = table.rows[0]
    places = _columns(form, heads, list(marks), column, file)
    lines = _lines(form, table, platform, min(places.values()))
    found = Filled(b"")
    for name, place in places.items():
        texts = _most_texts(form, table, place)
        most = _number(texts[0]) if texts else None
        rows = next(iter(marks[name].values()))
        if most is None and scale:
            raise LabError(f"{file}: {heads[place]!r} has no maximum to scale the marks to: leave out --scale")
        if most is not None and most != rows.most and not scale:
            raise LabError(
                f"{file}: {heads[place]!r} has a maximum of {most:g} points, {name} has {rows.most:g}. Set "
                f"{rows.most:g} on the platform and download the file again, or scale the marks: --scale"
            )
        factor = most / rows.most if scale else 1
        comma = _comma(table, [*texts, *(table.rows[line.place][place] for line in lines)], heads[place])
        fits = {student: _line_of(lines, student, mark, form) for student, mark in marks[name].items()}
        uses = Counter(line.place for line, _ in fits.values() if line)
        for student, mark in marks[name].items():
            line, why = fits[student]
            if line and uses[line.place] > 1:
                why = "its row matches another student, too"
            if why := why or _unfinished(mark):
                found.left.append(f"{student}, {name}: {why}")
                continue
            if why := _closed(table, line, place):
                found.kept.append(f"{student}, {name}: {why}")
                continue
            text = f"{round(mark.points * factor, 2):g}"
            table.put(line.place, place, text.replace(".", ",") if comma else text)
            found.count += 1
    found.data = table.data()
    return found


def _columns(form: Platform, heads: list[str], exercises: list[str], column: str | None, file: Path) -> dict[str, int]:
    """Return the column of each exercise that has one."""
    if not set(form.numbers) & {head.strip() for head in heads}:
        raise LabError(f"{file} has no column {' or '.join(form.numbers)} in its first row: is it another platform's?")
    if column is not None:
        if heads.count(column) != 1 or len(exercises) != 1:
            raise LabError(f"{file}: --column needs one EXERCISE, and must be a unique heading, got {column!r}")
        return {exercises[0]: heads.index(column)}
    titles = {place: found[1] for place, head in enumerate(heads) if (found := re.fullmatch(form.marks, head.strip()))}
    if form.one_exercise:
        if len(titles) != 1 or len(exercises) != 1:
            raise LabError(f"{file} is a worksheet for one exercise; choose from: {', '.join(exercises)}")
        return {exercises[0]: next(iter(titles))}
    matching = {name: [place for place, title in titles.items() if _words(name) <= _words(title)] for name in exercises}
    several = [name for name, places in matching.items() if len(places) > 1]
    if several or not any(matching.values()):
        which = f"{several[0]} matches several columns" if several else f"no column matches {', '.join(exercises)}"
        raise LabError(f"{file}: {which}; choose one with --column: {', '.join(heads[place] for place in titles)}")
    return {name: places[0] for name, places in matching.items() if places}


def _words(text: str) -> set[str]:
    """Return the words and numbers of a title, which identify it; numbers without leading zeros."""
    return {each.lstrip("0") or each for each in re.findall(r"[a-z]+|\d+", text.lower())}


def _lines(form: Platform, table: CsvText, platform: str, marks: int) -> list[Line]:
    """Return the students' rows; rows above them (Canvas: points possible, hidden) have no number."""
    heads = [head.strip() for head in table.rows[0]]
    numbers = [place for place, head in enumerate(heads) if head in form.numbers]
    names = [
        place for place, head in enumerate(heads) if head in form.names or (platform == "moodle" and place < marks)
    ]
    lines = []
    for place, row in enumerate(table.rows):
        if place == 0 or len(row) != len(heads):
            continue
        known = {row[each].strip().removeprefix("#") for each in numbers} - {""}
        if platform == "moodle":
            known = {found[1] for each in known if (found := re.search(r"(\d+)$", each))}
        if not known:
            continue
        called = {row[each].strip().removeprefix("#") for each in names} - {""}
        called |= {" ".join(reversed(each.split(",", 1))) for each in called if "," in each}
        first_last = [row[place] for name in (FIRST, LAST) for place, head in enumerate(heads) if head in name]
        if len(first_last) == 2:  # one of them alone is ambiguous
            called |= {" ".join(first_last)}
        if platform == "moodle":  # name of an anonymous student's folder, without the number
            called |= {re.sub(r"\d+$", "", row[each]) for each in numbers}
        lines.append(Line(place, frozenset(known), frozenset(map(_key, called | known)) - {""}))
    return lines


def _key(name: str) -> str:
    """Normalize a name for comparison; of an address, use the part before the @."""
    return re.sub(r"[^a-z0-9]", "", ascii_form(name.split("@")[0]).lower()) if name.strip() else ""


def _line_of(lines: list[Line], student: str, mark: Mark, form: Platform) -> tuple[Line | None, str]:
    """Return a student's row, by the platform's number, else by name; or None and the reason.

    A Moodle or Canvas number that no row has is from another course. Moodle's folder of a group has the group's name
    and number, and a student may have the same number. Brightspace's numbers in file names are not those of its
    gradebook. Blackboard names files by username, which may also be another student's name.
    """
    by_name = [line for line in lines if _key(student) in line.names]
    if mark.number and form.number_identifies:
        matching = [line for line in lines if mark.number in line.numbers]
        if len(matching) == 1:
            if by_name and matching[0] not in by_name:
                return None, f"the file has number {mark.number}, which is somebody else's"
            called = {_key(student).removesuffix(mark.number), _key(student), _key(_folder_name(mark))}
            if form.name_must_match and not called & matching[0].names:
                return None, f"number {mark.number} has another name here: is it a group submission?"
    else:
        by_id = [] if form.number_identifies else [line for line in lines if student in line.numbers]
        matching = by_id if len(by_id) == 1 else by_name
    if len(matching) == 1:
        return matching[0], ""
    return None, "several rows match" if matching else "no row matches"


def _folder_name(mark: Mark) -> str:
    """Return the name that the platform put before the number."""
    return student_of(PurePosixPath(mark.handed_in), "") if mark.handed_in else ""


def _closed(table: CsvText, line: Line, place: int) -> str:
    row, heads = table.rows[line.place], table.rows[0]
    if row[place].strip() in KEPT:
        return f"the platform says {row[place].strip()}"
    for head, value in zip(heads, row, strict=True):
        if head.strip() in CHANGEABLE and value.strip().lower() in CLOSED:
            return "the platform says that this grade cannot be changed"
    return ""


def _unfinished(mark: Mark) -> str:
    if not mark.graded and not mark.overrides:
        return f"not graded: {'; '.join(mark.remarks)}"
    return f"to be marked by hand: {', '.join(mark.waiting)}" if mark.waiting else ""


def _most_texts(form: Platform, table: CsvText, place: int) -> list[str]:
    """Return the maximum points of a column, as written in the file."""
    heads = [head.strip() for head in table.rows[0]]
    if isinstance(form.most, str):
        found = re.search(form.most, heads[place])
        return [found[1]] if found else []
    columns = [number for number, head in enumerate(heads) if head.lower() in {each.lower() for each in form.most}]
    above = [row[place] for row in table.rows[1:3] if row[0].strip() == "Points Possible" and place < len(row)]
    below = [row[each] for each in columns for row in table.rows[1:] if each < len(row)]
    return [text for text in above + below if re.search(r"\d", text)]


def _number(text: str) -> float:
    try:
        return float(text.strip().replace(",", "."))
    except ValueError:
        raise LabError(f"the maximum points must be a number, got {text.strip()[:80]!r}") from None


def _comma(table: CsvText, texts: list[str], head: str) -> bool:
    """Return whether the file has decimal commas, judging by its numbers, or else by its language."""
    for text in texts:
        if mark := re.search(r"\d([.,])\d", text):
            return mark[1] == ","
    return table.delimiter == ";" or head.strip() in ("Bewertung", "Note", "Calificación")
