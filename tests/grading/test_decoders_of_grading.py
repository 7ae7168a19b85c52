"""Files from students, markers and learning platforms are read correctly or refused with a LabError."""

import io
import json
import socket
import zipfile
from functools import cache

import nbformat
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_platforms import FORMS, mark

from damage import Decoder, inputs, written
from dgc_lab.common import LabError
from dgc_lab_grading.course import csv_text, report, roster, sources, submissions, unzip
from dgc_lab_grading.gradebook import by_hand, late, overrides, platforms
from dgc_lab_grading.marking import channel, reading, repair
from instructor import EXERCISES

EXERCISE = "04_masking"


def zipped(files, method):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


NAMES = (  # as named by Moodle, Canvas, Blackboard and Brightspace
    ("Jane Doe_4711_assignsubmission_file_/x.ipynb", "John Roe_4712_assignsubmission_file_/x.ipynb"),
    ("doejane_123_456_04_masking-1.ipynb", "roejohn_LATE_124_457_04_masking.ipynb"),
    ("Masking_jdoe_attempt_2026-11-21-10-00-00_x.ipynb", "Masking_jroe_attempt_2026-11-21-10-01-00_y.zip"),
    ("12-34 - Jane Doe - Nov 21, 2026 1005 AM/x.ipynb", "13-34 - John Roe - Nov 21, 2026 105 PM/x.ipynb"),
)


@cache
def zips():
    """Zips of submissions as made by platforms, one of them with a zip inside."""
    notebook = b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    inner = zipped({"work/04_masking.ipynb": notebook, "notes.txt": b"a" * 300}, zipfile.ZIP_DEFLATED)
    return tuple(
        zipped({name: inner if name.endswith(".zip") else notebook for name in names}, method)
        for names in NAMES
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    )


def unpacking():
    """Decoder that creates no link and nothing outside the folder, and returns remarks, not errors."""

    def decode(data, folder):
        unzip.unpack(written(folder, "handed_in.zip", data), folder / "inside" / "target")
        links = [path for path in folder.rglob("*") if path.is_symlink()]
        return links + [path for path in folder.iterdir() if path.name not in ("handed_in.zip", "inside")]

    return Decoder(zips(), decode, (), lambda found, _: found or None)


def whole_class():
    def decode(data, folder):
        return submissions.find(written(folder, "class.zip", data), EXERCISE, folder / "unpacked")

    return Decoder(zips(), decode, (LabError,))


def notebooks():
    path = EXERCISES / "release" / EXERCISE / f"{EXERCISE}.ipynb"
    release = sources.with_variant(nbformat.read(path, as_version=4), 0)
    older = nbformat.v3.writes_json(nbformat.convert(nbformat.read(path, as_version=4), 3)).encode()

    def decode(data, folder):
        return repair.repair(reading.read(written(folder, "x.ipynb", data)), release, EXERCISE)

    return Decoder((path.read_bytes(), older), decode, (LabError,))


def file_of_a_course(name, example, read):
    """Decoder for a file in a folder, read by a function of the folder."""

    def decode(data, folder):
        written(folder, name, data)
        return read(folder)

    return Decoder((example.encode(),), decode, (LabError,))


def names():
    def read(folder):
        return [roster.variant_number("a secret of the course", n) for n in roster.read_roster(folder / "roster.csv")]

    text = "Student;Email\nJane Doe;jane@example.org\nJosé;j@example.org\n李;l@e.org\n"
    return file_of_a_course("roster.csv", text, read)


def late_rules():
    def read(folder):
        rules = late.read_rules(folder)
        return late.lateness(rules, "Jane-Doe", "04", "2026-11-21T13:00:00", 15.0, 20.0)

    text = "grace_minutes = 15\npercent_a_day = 10.0\nmost_days = 3\n[due]\n04 = 2026-11-20 12:00:00\n[[student]]\n"
    text += 'name = "Jane Doe"\nexercise = "04"\nhanded_in = 2026-11-21 12:00:00\nreason = "ill"\n'
    return file_of_a_course("late.toml", text, read)


def overridden():
    text = "student,exercise,task,points,reason,version,when\njane,04_masking,marks-a,2.5,ill,abc,2026-11-20T10:00\n"
    return file_of_a_course(
        "overrides.csv", text, lambda folder: [float(row["points"]) for row in overrides.read_overrides(folder)]
    )


def reports():
    def read(folder):
        every = [row for rows in report.graded_rows(folder).values() for row in rows.values()]
        return [f"{row['score']:g} {row['status']}{''.join(row['remarks'])}" for row in every], report.outdated(folder)

    row = {"student": "jane", "status": "graded", "score": 3.5, "most": 18, "seconds": 9.1, "remarks": ["late"]}
    return file_of_a_course(
        "report.json", json.dumps({"exercises": {"04": "9f86"}, "04": {"jane": row | {"by_hand": ["a"]}}}), read
    )


def sheets():
    def read(folder):
        return [by_hand.points_of(row["points"], None, "line") for row in by_hand.read_sheet(folder / "points.csv")[0]]

    text = 'student,exercise,answer,version,of,points,comment\njane,04,why,abc,3,"2,5",good\njohn,04,why,abd,3,,\n'
    return file_of_a_course("points.csv", text, read)


def messages():
    """Decoder for messages from a student's process to the judge."""

    def decode(data, _):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
            ours.sendall(data)
            ours.close()
            return channel.receive(theirs)

    def message(value):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            channel.send(ours, value)
            ours.close()
            return b"".join(iter(lambda: theirs.recv(2**16), b""))

    values = (
        {"a": [1, 2.5, None, True, "x"]},
        (np.arange(6.0).reshape(2, 3), {1, 2}),
        [..., np.float32(3), 1j, object()],
    )
    return Decoder(tuple(map(message, values)), decode, (channel.ChannelError,))


def platform(name):
    """Decoder that fills a platform's file with marks; no other field may change."""
    mine = [form for form in FORMS.values() if form[0] == name]
    reached = {student: mark(points, number) for form in mine for (student, number), points in form[4].items()}

    def decode(data, folder):
        return platforms.fill({EXERCISE: reached}, written(folder, "file.csv", data), name)

    def wrong(filled, data):
        before, after = csv_text.CsvText(data), csv_text.CsvText(filled.data)
        if before._encoding != after._encoding:  # a mark has replaced the field with bytes that were not UTF-8
            return None
        if [len(row) for row in before.rows] != [len(row) for row in after.rows] or before.data() != data:
            return "rows or bytes have changed"
        fields = [pair for lines in zip(before.rows, after.rows, strict=True) for pair in zip(*lines, strict=True)]
        return "more has changed than marks" if sum(old != new for old, new in fields) > filled.count else None

    examples = [text.replace("\n", ends).encode(encoding) for _, text, encoding, ends, *_ in mine]
    return Decoder(tuple(examples), decode, (LabError,), wrong)


QUICK = {
    each.__name__: each for each in (unpacking, whole_class, names, late_rules, overridden, reports, sheets, messages)
} | {name: (lambda name=name: platform(name)) for name in ("moodle", "canvas", "blackboard", "brightspace")}
made = cache(lambda name: {**QUICK, "notebooks": notebooks}[name]())


@pytest.mark.parametrize("name", QUICK)
@given(data=st.data())
def test_damaged_files_are_refused_or_read_correctly(name, data):
    made(name).check(data.draw(inputs(made(name).examples)))


@settings(max_examples=15)  # a notebook takes a tenth of a second
@given(data=st.data())
def test_damaged_notebooks_are_refused_or_repaired(data):
    made("notebooks").check(data.draw(inputs(made("notebooks").examples)))
