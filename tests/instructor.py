"""Shared by the tests of grading: the instructors' commands, and students' notebooks."""

import json
import os
import subprocess
from pathlib import Path

import nbformat
import pytest

from dgc_lab_grading.course import sources

ROOT = Path(__file__).resolve().parents[1]
EXERCISES = ROOT / "notebooks" / "exercises"
PYTHON = Path(os.environ.get("DGC_LAB_COURSE_PYTHON", ROOT / ".venv-course" / "bin" / "python"))
CAN_GRADE = PYTHON.exists() and (EXERCISES / "source").exists()  # a students' copy has no sources
needs_instructor = pytest.mark.skipif(not CAN_GRADE, reason="no instructors' environment (make course), or no sources")


class Instructor:
    """Runs commands of the command line in one process, so that nbgrader is imported once."""

    LOOP = """
import contextlib, io, json, sys
from dgc_lab_grading.__main__ import main
for line in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(json.loads(line))
    print(json.dumps([code, printed.getvalue()]), flush=True)
"""

    def __init__(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([PYTHON, "-c", self.LOOP], stdin=pipe, stdout=pipe, text=True, cwd=ROOT)

    def __call__(self, *arguments, expected=0):
        """Run a command, and return its output."""
        self.process.stdin.write(json.dumps([str(each) for each in arguments]) + "\n")
        self.process.stdin.flush()
        code, printed = json.loads(self.process.stdout.readline())
        assert code == expected, printed
        return printed


@pytest.fixture(scope="session")
def course():
    instructor = Instructor()
    yield instructor
    instructor.process.stdin.close()
    assert instructor.process.wait(120) == 0


def answered(name, answers=(), solved=True, variant=0, texts=False):
    """A student's notebook: the release with these answers; the others are solved or left untouched.

    Answers that a person marks are left untouched, too, unless ``texts`` is true.
    """
    notebook = nbformat.read(EXERCISES / "release" / name / f"{name}.ipynb", as_version=4)
    source = sources.notebook(EXERCISES / "source", name)
    for cell, given in zip(notebook.cells, source.cells, strict=True):
        grading = cell.metadata.get("nbgrader", {})
        if grading.get("solution"):
            fill = solved and (texts or not grading["grade"])
            cell.source = dict(answers).get(grading["grade_id"], given.source if fill else cell.source)
    return sources.with_variant(notebook, variant)


def index(notebook, grade_id):
    return next(i for i, c in enumerate(notebook.cells) if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def write(notebook, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
