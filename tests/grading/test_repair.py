"""Submitted notebooks are repaired: a student's answers and own cells in the exercise as it was released."""

import copy
import json

import nbformat
import pytest

from dgc_lab.common import LabError
from dgc_lab_grading.marking import reading, repair
from dgc_lab_grading.marking.nbgrader_api import STUB
from instructor import EXERCISES, index


def test_pictures_are_kept_and_missing_ones_do_no_harm():
    answer = nbformat.v4.new_markdown_cell(
        "*Your answer*", metadata={"nbgrader": {"grade_id": "mine", "solution": True}}
    )
    release = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("VARIANT = 0"), answer])
    release.cells[0].metadata["dgc_lab"] = {"variant": True}
    handed = nbformat.v4.new_markdown_cell("![](attachment:a.png) ![](attachment:b.png)", metadata=answer.metadata)
    handed.attachments = {"a.png": {"image/png": "aGk=", "text/html": "aGk="}, "c.html": {"text/html": "aGk="}, "d": 1}
    own = nbformat.v4.new_markdown_cell("![](attachment:a.png)")
    repaired, _ = repair.repair([handed, own], release, "07")
    assert [cell.source for cell in repaired.cells[1:]] == [
        "![](attachment:a.png) ![](missing:b.png)",
        "![](missing:a.png)",
    ]
    assert repaired.cells[1].attachments == {"a.png": {"image/png": "aGk="}}
    nbformat.validate(repaired)


def test_answers_are_identified_without_metadata():
    """By their first line, or else by the name that they define, whatever metadata an editor adds."""
    release = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("VARIANT = 0")])
    release.cells[0].metadata["dgc_lab"] = {"variant": True}
    for grade_id, source in {
        "one": "def one(x):\n    ...",
        "two": "two = None\n...",
        "three": "three = None\n...",
    }.items():
        grading = {"grade_id": grade_id, "solution": True}
        release.cells.append(nbformat.v4.new_code_cell(source, metadata={"nbgrader": grading}))
    older = nbformat.v3.new_notebook(worksheets=[nbformat.v3.new_worksheet()])
    sources = "import math\n\n\ndef one(x):\n    return math.pi", "two = 7", "helper = 1", "three == 3"
    older.worksheets[0].cells = [nbformat.v3.new_code_cell(source) for source in sources]
    older.worksheets[0].cells[0].metadata = {"id": "a1B2", "colab": {"base_uri": "x"}, "nbgrader": ["none"]}
    repaired, remarks = repair.repair(nbformat.convert(older, 4).cells, release, "04")
    assert [cell.source for cell in repaired.cells[1:]] == [*sources, ""], "a deleted answer is restored empty"
    assert [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in repaired.cells[1:3]] == ["one", "two"]
    assert remarks == [
        "answers found in cells without ids: one, two",
        "cells deleted by the student and restored: three",
    ]


def test_a_notebook_of_another_exercise_has_no_answer():
    """Its explanation begins like all others, and its setup has the same id."""
    named = {
        name: nbformat.read(EXERCISES / "source" / name / f"{name}.ipynb", 4)
        for name in ("04_masking", "05_accumulation")
    }
    with pytest.raises(LabError, match="no answer of 04_masking: is it from another exercise"):
        repair.repair(named["05_accumulation"].cells, named["04_masking"], "04_masking")


def test_malformed_metadata_does_no_harm(tmp_path):
    cells = [nbformat.v4.new_code_cell("VARIANT = 0", metadata={"dgc_lab": odd}) for odd in ("x", None, [])]
    written = nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell("last = 1")])
    del written.cells[-1]["cell_type"]
    (tmp_path / "x.ipynb").write_text(json.dumps(written))
    read = reading.read(tmp_path / "x.ipynb")
    assert [repair.is_variant(cell) for cell in read] == [False] * 3


def released(*answers):
    """Return a released exercise with setup, answers and their tests."""
    release = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("VARIANT = 0")])
    release.cells[0].metadata["dgc_lab"] = {"variant": True}

    def add(grade_id, source, **kind):
        kind = {"grade_id": grade_id, "solution": False, "grade": False} | kind
        release.cells.append(nbformat.v4.new_code_cell(source, metadata={"nbgrader": kind}))

    add("setup", "import numpy as np\n\nimport dgc_lab")
    for name in answers:
        add(name, f"def {name}(x):\n    ...", solution=True)
        add(f"marks-{name}", f"passed = dgc_lab.check({name!r}, {name})", grade=True)
    return release


@pytest.mark.parametrize("lost", [False, True])
def test_own_cells_are_not_mistaken_for_given_ones(lost):
    """Own cells may begin like the setup, like an answer that has its id, or like a test."""
    release = released("one", "two")
    handed = copy.deepcopy(release)
    own = ["import numpy as np\nhelper = np.pi", "import numpy as np"]
    own += [] if lost else ["def one(x):\n    return helper", "passed = dgc_lab.check('one', one)\nmine = 1"]
    handed.cells[2:2] = [nbformat.v4.new_code_cell(source) for source in own]
    for cell in handed.cells if lost else ():
        cell.metadata = {}
    repaired, _ = repair.repair(handed.cells, release, "04")
    sources = [cell.source for cell in repaired.cells]
    assert [source for source in sources if source in own] == own
    assert sources.count(release.cells[1].source) == 1
    assert sources.index(release.cells[1].source) < sources.index(own[0]), "the setup comes first"
    assert [cell.metadata["nbgrader"]["grade_id"] for cell in repaired.cells if "nbgrader" in cell.metadata] == [
        *("setup", "one", "marks-one", "two", "marks-two")
    ]


def a_value(name):
    """Return a released exercise with one answer that is a value."""
    release = released(name)
    release.cells[index(release, name)].source = f"{name} = None  # seconds\n{STUB}"
    return release


def source_of(notebook, grade_id):
    return notebook.cells[index(notebook, grade_id)].source


@pytest.mark.parametrize("lost", [False, True])
def test_an_experiment_does_not_replace_a_filled_in_answer(lost):
    """Many students fill in the first line, and leave the second."""
    release = a_value("my_end")
    handed, answer, experiment = copy.deepcopy(release), f"my_end = 17\n{STUB}", "my_end = 3  # what if?"
    handed.cells[index(handed, "my_end")].source = answer
    handed.cells.append(nbformat.v4.new_code_cell(experiment))
    for cell in handed.cells if lost else ():
        cell.metadata = {}
    repaired, _ = repair.repair(handed.cells, release, "01")
    assert source_of(repaired, "my_end") == answer
    assert repaired.cells[-1].source == experiment


@pytest.mark.parametrize("blank", ["my_end = None  # my guess\n...", f"my_end = None\n# it is below\n{STUB}", "pass"])
def test_comments_are_no_answer(blank):
    release = a_value("my_end")
    handed, below = copy.deepcopy(release), "my_end = 17"
    handed.cells[index(handed, "my_end")].source = blank
    handed.cells.append(nbformat.v4.new_code_cell(below))
    repaired, _ = repair.repair(handed.cells, release, "01")
    assert source_of(repaired, "my_end") == f"{blank}\n\n{below}"


@pytest.mark.parametrize("deleted", [False, True])
def test_an_own_cell_with_an_answer_also_stays_in_its_place(deleted):
    """Another answer may need it there."""
    release = released("may_start", "backup_seconds")
    handed, own = copy.deepcopy(release), "def slack(x):\n    return x\n\n\nbackup_seconds = slack"
    if deleted:
        del handed.cells[index(handed, "backup_seconds")]
    handed.cells.insert(index(handed, "may_start"), nbformat.v4.new_code_cell(own))
    repaired, _ = repair.repair(handed.cells, release, "03")
    assert repaired.cells[index(repaired, "may_start") - 1].source == own
    assert source_of(repaired, "backup_seconds").startswith(own)


def test_an_own_cell_below_an_answer_runs_after_its_helpers():
    release = a_value("my_end")
    handed, own = copy.deepcopy(release), ["half = 8", "my_end = 2 * half"]
    place = index(handed, "my_end") + 1
    handed.cells[place:place] = [nbformat.v4.new_code_cell(source) for source in own]
    repaired, _ = repair.repair(handed.cells, release, "01")
    assert [cell.source for cell in repaired.cells[place : place + 2]] == own
    assert source_of(repaired, "my_end").endswith(own[1])
