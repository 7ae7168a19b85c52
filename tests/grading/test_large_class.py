"""A class of two hundred, of whom twenty are hostile: everyone else gets the marks due, and nothing is left behind."""

import copy
import io
import json
import types
import zipfile
from pathlib import Path

import nbformat
import pytest
from attacks import OWN_CELLS
from hand_ins import DEEP

from dgc_lab_grading.course import grading
from dgc_lab_grading.marking import cgroup, sandbox
from instructor import index, needs_instructor
from kernels import until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(7200),
    needs_instructor,
    pytest.mark.skipif(sandbox.fence_missing() is not None, reason="this machine allows no sandbox"),
]
NAME, CLASS = "08_my_idea", 200
RIGHT = "def mean(values):\n    return np.sum(values) / np.size(values)"
# Answers, and the points due: all of two that a new student might write in a hurry, none of the wrong ones.
HONEST = {
    RIGHT: 2,
    f"!echo hi\r\nimport nowhere\r\n{RIGHT}": 2,
    RIGHT.replace("np.size", "len"): 0,
    "def mean(values)\n    return np.mean(values)": 0,
}
ENDLESS = """while True:
    try:
        while True:
            pass
    except BaseException:
        pass"""
CELLS = {
    **{name: OWN_CELLS[name] for name in ("everybody is killed", "results for whoever reads", "another kernel")},
    **{name: OWN_CELLS[name] for name in ("words in the kernel's keyrings", "messages that no front end expects")},
    "deep folders": DEEP,
    "deleted files that stay open": "import os\nkept = []\nfor number in range(99):\n    kept.append(open('x', 'wb'))\n"
    "    os.unlink('x')\n    kept[-1].write(bytes(2**26))",
    "files in flight": "import os, socket\nhere, there = socket.socketpair()\nfor number in range(99):\n"
    "    file = os.memfd_create('x')\n    os.write(file, bytes(2**27))\n    socket.send_fds(here, [b'x'], [file])\n"
    "    os.close(file)",
    "a hundred thousand messages": """from ipykernel.kernelapp import IPKernelApp
kernel = IPKernelApp.instance().kernel
for number in range(100_000):
    kernel.session.send(kernel.iopub_socket, "stream", {}, parent=kernel.get_parent())""",
    "processes without end": "import os\nwhile True:\n    os.fork()",
    "one huge line": "print('x' * 300_000_000)",
    "an endless loop": ENDLESS,
}


def handed_in(released, answer, own=""):
    """A notebook with an answer, and a cell of the student's own before it."""
    notebook = copy.deepcopy(released)
    notebook.cells[index(notebook, "mean")].source = answer
    notebook.cells.insert(3, nbformat.v4.new_code_cell(own))
    return nbformat.writes(notebook)


def files_of_hostile(released):
    """The files of each hostile submission: names and contents."""
    text = copy.deepcopy(released)
    text.cells.insert(3, nbformat.v4.new_markdown_cell("<div>" * 200_000))
    outputs = '"outputs": ' + "[" * 10**6 + "]" * 10**6
    listed = io.BytesIO()
    with zipfile.ZipFile(listed, "w") as file:
        for number in range(50_000):
            file.writestr(f"{number}", "")
    plain = handed_in(released, RIGHT)
    found = [handed_in(released, RIGHT, source) for source in CELLS.values()]
    found += [handed_in(released, RIGHT, f"# {'import ' * 60_000}"), handed_in(released, f"y = {'-' * 10_000}1")]
    found += [handed_in(released, RIGHT, "VARIANT = 'HALF'").replace("HALF", "\\ud800"), nbformat.writes(text)]
    found += [plain.replace('"outputs": []', outputs, 1), "%PDF-1.7"]
    many = {"x.ipynb": plain} | {f"{number}.txt": "" for number in range(10_001)}
    return [*({"x.ipynb": content} for content in found), many, {"x.zip": listed.getvalue()}]


@pytest.fixture(scope="module")
def graded(tmp_path_factory, course):
    """The class, graded; has the report's rows, the points due by student, the output, and the folder."""
    place = tmp_path_factory.mktemp("class")
    source, folder = ("--source", place / "source"), ("--folder", place / "grading")
    course("new", NAME, *source)
    course("release", NAME, *source, "--to", place / "release")
    released = nbformat.read(place / "release" / NAME / f"{NAME}.ipynb", as_version=4)
    honest = [(handed_in(released, answer), points) for answer, points in HONEST.items()]
    hostile, due = files_of_hostile(released), {}
    with zipfile.ZipFile(place / "all.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for number in range(CLASS):
            name, files = f"Eve {number}", hostile[number // 10 % len(hostile)]
            if number % 10:
                text, due[f"Ann-{number}"] = honest[number % len(honest)]
                name, files = f"Ann {number}", {f"{NAME}.ipynb": text}
            for each, content in files.items():
                file.writestr(f"{name}_{number + 7000}_assignsubmission_file_/{each}", content)
    options = ("--jobs", 2, "--cell-seconds", 20, "--minutes", 3)
    said = course("grade", NAME, place / "all.zip", *source, *folder, *options, expected=1)
    said += course("feedback", *folder, expected=1)
    rows = json.loads((place / "grading" / "report.json").read_text())[NAME]
    return types.SimpleNamespace(place=place, rows=rows, due=due, said=said)


def test_everyone_else_gets_the_marks_due(graded):
    assert len(graded.due) == CLASS - CLASS // 10
    found = {student: graded.rows[student]["score"] for student in graded.due}
    assert {name: (found[name], points) for name, points in graded.due.items() if found[name] != points} == {}


def test_every_hostile_submission_has_a_row_in_words(graded):
    rows = {name: row for name, row in graded.rows.items() if name not in graded.due}
    assert len(rows) == CLASS // 10
    for name, row in rows.items():
        assert row["status"] == "graded" or row["remarks"], name
    assert "Traceback" not in graded.said


def test_a_large_class_leaves_nothing_behind(graded):
    assert not list(Path("/tmp").glob(f"{grading.home_prefix(graded.place.resolve() / 'grading')}*"))
    assert not (graded.place / "grading" / "unpacked" / NAME).exists()
    until(lambda: cgroup.left_behind() == [], 60)
    assert sum(path.stat().st_size for path in graded.place.rglob("*")) < 2**30
