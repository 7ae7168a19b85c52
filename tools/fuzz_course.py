"""The decoders of what students, persons who mark, and learning platforms hand in, for `tools/fuzz.py`."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path

from dgc_lab.common import LabError
from fuzz import ROOT, Decoder, written

EXERCISE, FORMS = "04_masking", ROOT / "tests" / "gradebook"


def notebooks() -> Decoder:
    """A notebook that was handed in, read and put back into the exercise."""
    import nbformat

    from dgc_lab.course.sources import with_variant
    from dgc_lab.marking.repair import read, repair

    path = ROOT / "notebooks" / "exercises" / "release" / EXERCISE / f"{EXERCISE}.ipynb"
    release = with_variant(nbformat.read(path, as_version=4), 0)

    def decode(data: bytes, folder: Path):
        return repair(read(written(folder, "x.ipynb", data)), release, EXERCISE)

    older = nbformat.v3.writes_json(nbformat.convert(nbformat.read(path, as_version=4), 3)).encode()
    return Decoder((path.read_bytes(), older), decode, (LabError,))


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of files."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


NAMES = {
    "moodle": ("Jane Doe_4711_assignsubmission_file_/x.ipynb", "John Roe_4712_assignsubmission_file_/x.ipynb"),
    "canvas": ("doejane_123_456_04_masking-1.ipynb", "roejohn_LATE_124_457_04_masking.ipynb"),
    "blackboard": (
        "Masking_jdoe_attempt_2026-11-21-10-00-00_x.ipynb",
        "Masking_jroe_attempt_2026-11-21-10-01-00_y.zip",
    ),
    "brightspace": (
        "12-34 - Jane Doe - Nov 21, 2026 1005 AM/x.ipynb",
        "13-34 - John Roe - Nov 21, 2026 105 PM/x.ipynb",
    ),
}


def zips() -> tuple[bytes, ...]:
    """Zips of hand-ins as platforms make them, one of them with a zip inside."""
    notebook = b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    inner = zipped({"work/04_masking.ipynb": notebook, "notes.txt": b"a" * 300})
    return tuple(
        zipped({name: inner if name.endswith(".zip") else notebook for name in names}, method)
        for names in NAMES.values()
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    )


def unpacking() -> Decoder:
    """Zips unpacked: nothing outside of their folder, no link, and words in place of an error."""
    from dgc_lab.course.unzip import unpack

    def decode(data: bytes, folder: Path):
        remarks = unpack(written(folder, "handed_in.zip", data), folder / "target")
        return remarks, [path for path in folder.rglob("*") if path.is_symlink()]

    return Decoder(zips(), decode, (), lambda found, _: "it made a link" if found[1] else None)


def hand_ins() -> Decoder:
    """A class's zip: what came from whom."""
    from dgc_lab.course.submissions import find

    def decode(data: bytes, folder: Path):
        return find(written(folder, "class.zip", data), EXERCISE, folder / "unpacked")

    return Decoder(zips(), decode, (LabError,))


def course_file(name: str, example: str, read) -> Decoder:
    """A file in a course's folders, read by a function of the folder."""

    def decode(data: bytes, folder: Path):
        written(folder, name, data)
        return read(folder)

    return Decoder((example.encode(),), decode, (LabError,))


def roster() -> Decoder:
    """Students' names."""
    from dgc_lab.course.roster import read_roster, variant_number

    def read(folder: Path):
        return [variant_number("a secret of the course", name) for name in read_roster(folder / "roster.csv")]

    return course_file("roster.csv", "Student;Email\nJane Doe;jane@example.org\nJosé;j@example.org\n李;l@e.org\n", read)


def late_rules() -> Decoder:
    """``late.toml``."""
    from dgc_lab.gradebook.late import lateness, read_rules

    text = "grace_minutes = 15\npercent_a_day = 10.0\nmost_days = 3\n[due]\n04 = 2026-11-20 12:00:00\n[[student]]\n"
    text += 'name = "Jane Doe"\nexercise = "04"\nhanded_in = 2026-11-21 12:00:00\nreason = "ill"\n'

    def read(folder: Path):
        rules = read_rules(folder)
        return lateness(rules, "Jane-Doe", "04", "2026-11-21T13:00:00", 15.0, 20.0)

    return course_file("late.toml", text, read)


def overrides() -> Decoder:
    """``overrides.csv``."""
    from dgc_lab.gradebook.overrides import read_overrides

    text = "student,exercise,task,points,reason,version,when\njane,04_masking,marks-a,2.5,ill,abc,2026-11-20T10:00\n"
    return course_file("overrides.csv", text, lambda folder: [float(row["points"]) for row in read_overrides(folder)])


def report() -> Decoder:
    """``report.json``."""
    from dgc_lab.course.report import graded_rows, outdated

    row = {"student": "jane", "status": "graded", "score": 3.5, "most": 18, "seconds": 9.1, "remarks": ["late"]}
    example = {"exercises": {"04": "9f86"}, "04": {"jane": row | {"by_hand": ["a"]}}}

    def read(folder: Path):
        every = [row for rows in graded_rows(folder).values() for row in rows.values()]
        return [f"{row['score']:g} {row['status']}{''.join(row['remarks'])}" for row in every], outdated(folder)

    return course_file("report.json", json.dumps(example), read)


def sheets() -> Decoder:
    """A marker's sheet."""
    from dgc_lab.gradebook.by_hand import points_of, read_sheet

    def read(folder: Path):
        return [points_of(row["points"], None, "line") for row in read_sheet(folder / "points.csv")[0]]

    text = 'student,exercise,answer,version,of,points,comment\njane,04,why,abc,3,"2,5",good\njohn,04,why,abd,3,,\n'
    return course_file("points.csv", text, read)


def platform(name: str) -> Decoder:
    """A platform's own file, filled with marks: no other field changes."""
    sys.path.insert(0, str(FORMS))
    import test_platforms as forms

    from dgc_lab.course.csv_text import CsvText
    from dgc_lab.gradebook.platforms import fill

    mine = [form for form in forms.FORMS.values() if form[0] == name]
    reached = {student: forms.mark(points, number) for form in mine for (student, number), points in form[4].items()}

    def decode(data: bytes, folder: Path):
        return fill({EXERCISE: reached}, written(folder, "file.csv", data), name)

    def wrong(filled, data: bytes) -> str | None:
        before, after = CsvText(data), CsvText(filled.data)
        if before._encoding != after._encoding:  # bytes that were no UTF-8 stood in a field that a mark is in now
            return None
        if [len(row) for row in before.rows] != [len(row) for row in after.rows] or before.data() != data:
            return "rows or bytes have changed"
        fields = [pair for rows in zip(before.rows, after.rows, strict=True) for pair in zip(*rows, strict=True)]
        return "more has changed than marks" if sum(old != new for old, new in fields) > filled.count else None

    examples = [text.replace("\n", ends).encode(encoding) for _, text, encoding, ends, *_ in mine]
    return Decoder(tuple(examples), decode, (LabError,), wrong)


COURSE = {
    "notebooks": notebooks,
    "zips": unpacking,
    "hand-ins": hand_ins,
    "roster": roster,
    "late.toml": late_rules,
    "overrides.csv": overrides,
    "report.json": report,
    "sheets": sheets,
}
if (FORMS / "test_platforms.py").exists():  # not in the students' copy
    COURSE |= {name: (lambda name=name: platform(name)) for name in NAMES}
