"""Submitted files that would cost the instructor's process its time or memory, and what is kept of the others."""

import gc
import json
import os
import time
import types

import nbformat
import pytest
from test_repair import released

from dgc_lab.common import LabError
from dgc_lab_grading.course import feedback, unzip
from dgc_lab_grading.course.report import without_control
from dgc_lab_grading.marking import limited, outputs, reading, repair


def file_of(folder, cells, **more):
    """Return the path of a notebook with these cells, written without nbformat."""
    path = folder / "x.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5} | more))
    return path


def code(source, **more):
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None} | more


def test_large_stored_outputs_are_dropped(tmp_path):
    picture = {"output_type": "display_data", "data": {"image/png": "A" * 21 * 2**20}, "metadata": {}}
    (cell,) = reading.read(file_of(tmp_path, [code("x = 1", outputs=[picture])]))
    assert (cell.source, "outputs" in cell) == ("x = 1", False)


def test_line_ends_and_lone_surrogates_are_cleaned(tmp_path):
    name = {"nbgrader": {"grade_id": "a\ud800", "solution": True}}
    cells = reading.read(file_of(tmp_path, [code(["x = 1\r\n", "y = 2\r"], metadata=name), code("'\ud800'")]))
    assert [cell.source for cell in cells] == ["x = 1\ny = 2\n", "'?'"]
    assert cells[0].metadata == {"nbgrader": {"grade_id": "a?", "solution": True}}


def test_utf_16_as_powershell_writes_it_is_read(tmp_path):
    path = file_of(tmp_path, [code("x = 'é'")])
    path.write_bytes(path.read_text().encode("utf-16"))
    assert [cell.source for cell in reading.read(path)] == ["x = 'é'"]


NESTED = '{"cells": [{"cell_type": "code", "source": "", "outputs": %s}], "nbformat": 4}'
UNREADABLE = {
    "deep": (NESTED % ("[" * 10**6 + "]" * 10**6), "nested too deeply"),
    "a deep name": ('{"nbformat": ' + '{"a":' * 10**5 + "1" + "}" * 10**5 + "}", "nested too deeply"),
    "text": (json.dumps({"nbformat": 4, "cells": [code("x" * 3 * 2**20)]}), "more than 2 MB of text"),
    "cells": (json.dumps({"nbformat": 4, "cells": [code("x")] * 1001}), "more than 1000 cells"),
    "a list": ("[]", "no nbformat"),
    "no cells": ('{"nbformat": 4, "cells": 7}', "not a notebook"),
    "an old one": ('{"nbformat": 3, "worksheets": [7]}', "not a notebook"),
    "a picture": ("\x89PNG \xff", "not text"),
    "a conflict of versions": ("<<<<<<< HEAD\n{}", "not a notebook"),
    "a long number": ('{"nbformat": ' + "7" * 10_000 + "}", "not a notebook"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_files_are_refused_in_words(tmp_path, name):
    text, words = UNREADABLE[name]
    (tmp_path / "x.ipynb").write_text(text, encoding="latin-1")
    with pytest.raises(LabError, match=words):
        reading.read(tmp_path / "x.ipynb")


@pytest.mark.nightly
def test_a_file_that_needs_too_much_memory_is_refused(tmp_path):
    (tmp_path / "x.ipynb").write_text(NESTED % ("[" + '{"a":1},' * 6_000_000 + "1]"))
    with pytest.raises(LabError, match="more than 30 s or 1 GB of memory to read"):
        reading.read(tmp_path / "x.ipynb")


@pytest.mark.timeout(60)
def test_long_lines_are_searched_in_linear_time():
    release = released("one")
    for text in ("import " * 250_000, "dgc_lab import " * 100_000, "dgc_lab" + " " * 10**6, "VARIANT" + " " * 10**6):
        handed = released("one")
        handed.cells[2].source = f"def one(x):\n    return x  # {text}"
        _, remarks = repair.repair(handed.cells, release, "04")
        assert remarks == []


def test_only_the_students_own_lines_are_searched():
    release = released("one")
    release.cells[1].source += "\nimport importlib.util"
    handed = nbformat.from_dict(json.loads(json.dumps(release)))
    handed.cells[1].metadata = {}  # an editor has dropped it
    handed.cells[1].source = f"import math\n{handed.cells[1].source}"
    assert "accesses checks" not in " ".join(repair.repair(handed.cells, release, "04")[1])
    handed.cells[1].source += "\nimport inspect"
    assert "accesses checks" in " ".join(repair.repair(handed.cells, release, "04")[1])


def test_lines_added_to_the_setup_are_kept():
    release = released("one")
    handed = released("one")
    handed.cells[1].source = "import math\n\n" + handed.cells[1].source
    repaired, remarks = repair.repair(handed.cells, release, "04")
    assert [cell.source for cell in repaired.cells[1:3]] == [release.cells[1].source, "import math"]
    assert remarks == ["lines that the student added to setup were kept"]


def within(make, seconds=20):
    """What comes of a function that has a second processor time, or more, and a gigabyte."""
    try:
        return limited.call_in_fork(make, seconds=seconds, memory=2**30)
    except (LabError, OSError) as error:
        return error


@pytest.mark.timeout(120)
def test_a_function_is_given_up_at_its_limits():
    assert within(lambda: {"x": ["y" * 2**20]}) == {"x": ["y" * 2**20]}, "more than a pipe holds"
    slow, large, killed = within(loop, seconds=1), within(lambda: bytes(2**31)), within(lambda: os.kill(os.getpid(), 9))
    assert [type(error) for error in (slow, large, killed)] == [limited.TooMuch] * 3
    assert str(slow) == "takes more than 1 s or 1 GB of memory"
    assert str(within(lambda: 1 / 0)) == "ZeroDivisionError: division by zero"
    full = within(lambda: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
    assert unzip.is_full(full), "a full disk is nobody's fault, and ends the grading"


def loop():
    while True:
        pass


class WaitsInAFork:
    """An object in a cycle whose destructor takes a minute in a fork; that of a tf.data iterator might never return."""

    def __init__(self):
        self.cycle, self.process = self, os.getpid()

    def __del__(self):
        if os.getpid() != self.process:
            time.sleep(60)  # longer than its test waits, but no process stays behind when the test fails


def test_a_fork_ignores_the_parents_garbage():
    gc.disable()
    try:
        WaitsInAFork()
        assert isinstance(within(gc.collect, seconds=5), int)
    finally:
        gc.enable()
        gc.collect()  # or a later fork might


@pytest.mark.timeout(120)
def test_a_page_that_takes_too_long_is_given_up(tmp_path, monkeypatch):
    """Nested elements take time that grows with the square of their number."""
    page = tmp_path / "page.html"
    page.write_text("<body>" + "<div>" * 200_000)
    api = types.SimpleNamespace(generate_feedback=lambda *which: {"success": True})
    monkeypatch.setattr(feedback, "SECONDS_OF_A_PAGE", 1)
    assert feedback._failure(api, "04", "ann", page, "x") == "its page takes more than 1 s or 4 GB of memory to make"
    page.write_text("<body><div>x")
    monkeypatch.setattr(feedback, "SECONDS_OF_A_PAGE", 20)
    assert feedback._failure(api, "04", "ann", page, "x") == ""
    assert "<body><div>x</div></body>" in page.read_text()


def test_pages_show_no_internal_errors():
    row = {"remarks": ["handed in as x", "KeyError: 'state'; see logs/04-x.log"], "read": 1}
    page = feedback._not_graded("04", row, None)
    assert "handed in as x" in page
    assert "an error in grading" in page
    assert "KeyError" not in page
    assert "longer than 300 s" in feedback._not_graded(
        "04", row | {"limit": "it took longer than 300 s in total"}, None
    )


def test_outputs_that_no_notebook_can_hold_are_replaced():
    forged = {"output_type": "error", "ename": 7, "evalue": [], "traceback": "x"}
    printed = nbformat.v4.new_output("stream", text="half \ud800")
    cell = nbformat.v4.new_code_cell("x")
    cell.outputs, cell.execution_count = [nbformat.from_dict(forged), printed], "seven"
    outputs.clean(cell)
    assert [output.text for output in cell.outputs] == ["(an output that no notebook can show)\n", "half ?"]
    nbformat.validate(nbformat.v4.new_notebook(cells=[cell]))


def test_halves_of_characters_are_not_printed():
    without_control("Jos\udce9").encode("utf-8")
