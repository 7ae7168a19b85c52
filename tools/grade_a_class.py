"""Hand in for a whole class and grade it: .venv-course/bin/python tools/grade_a_class.py [--students 200] [--jobs 2].

One in ten is hostile, in ten ways that take turns. Says how long grading took, how long the same command takes once
more, who was lost or got other marks than are due, and what was left behind; ends with 1 if anything was.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import psutil

from dgc_lab.course import sources
from dgc_lab.course.__main__ import main as course
from dgc_lab.course.grading import TEMPORARY, home_prefix
from dgc_lab.marking import cgroup

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "notebooks" / "exercises" / "source"
NAME, MOST = "04_masking", 18
HONEST = (  # answers in place of the solutions, None for an untouched one, and the marks that are due
    ({}, 18),
    ({"top-k-mask": "def top_k_mask(gradient, k):\n    return gradient > 0"}, 15),
    ({"split": "def split(gradient, mask):\n    return gradient[mask], gradient[~mask]"}, 17),
    ({"fewest-elements": None}, 16),
    ({"sampled-threshold": "x =", "share-sent": None}, 11),
    ({"my-threshold": "my_threshold = 1e9"}, 16),
    (None, 0),
)
UNSTOPPABLE = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
HOSTILE = {  # code of a cell of one's own, or answers, and the marks that are due; None for what cannot be graded
    "an endless answer": (
        {"share-sent": "def share_sent(gradients, ratio, whose):\n    while True:\n        pass"},
        13,  # and my_counts is made with it
    ),
    "a cell that cannot be stopped": ({"fewest-elements": UNSTOPPABLE}, 16),
    "a cell that ends its process": ("import os\nos._exit(0)", 18),
    "a cell that prints without end": ("while True:\n    print('x' * 1000)", 18),
    "very many processes": ("import os, time\nfor _ in range(300):\n    os.fork() or time.sleep(600)", None),
    "very much memory": ("import numpy as np\nkept = [np.ones(10**8) for _ in range(100)]", 18),
    "very large files": ("for number in range(9):\n    open(f'/tmp/{number}', 'wb').write(bytes(10**8))", 18),
    "processes that stay": ("import subprocess\nsubprocess.Popen(['sleep', '4242'], start_new_session=True)", 18),
    "checks that say yes": (
        "import dgc_lab, numpy\ndgc_lab.check = numpy.isclose = numpy.array_equal = lambda *a, **k: True",
        18,
    ),
    "what is no notebook": (b"%PDF-1.7 \xff\xfe", None),
}


def hand_in(folder: Path, students: int) -> dict[str, float | None]:
    """Write a hand-in for each student, as Moodle's folders; the marks that are due, by student."""
    release = sources.with_variant(nbformat.read(ROOT / "notebooks/exercises/release" / NAME / f"{NAME}.ipynb", 4), 0)
    solutions = {
        cell.metadata.nbgrader.grade_id: cell.source
        for cell in sources.notebook(SOURCE, NAME).cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }
    due = {}
    for number in range(students):
        student = f"Student-{number:03}"
        path = folder / f"Student {number:03}_{4000 + number}_assignsubmission_file_" / f"{NAME}.ipynb"
        path.parent.mkdir(parents=True)
        what, due[student] = HONEST[number % len(HONEST)]
        if number % 10 == 9:
            what, due[student] = list(HOSTILE.values())[number // 10 % len(HOSTILE)]
        if isinstance(what, bytes):
            path.write_bytes(what)
            continue
        notebook = nbformat.from_dict(release)
        for cell in notebook.cells:
            grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
            if grade_id in solutions:
                answers = what if isinstance(what, dict) else {grade_id: None} if what is None else {}
                cell.source = answers.get(grade_id, solutions[grade_id]) or RELEASED[grade_id]
        if isinstance(what, str):
            notebook.cells.insert(4, nbformat.v4.new_code_cell(what))
        notebook.cells.append(nbformat.v4.new_markdown_cell(f"Handed in by {student}."))
        nbformat.write(notebook, path)
    return due


RELEASED = {
    cell.metadata.nbgrader.grade_id: cell.source
    for cell in nbformat.read(ROOT / "notebooks/exercises/release" / NAME / f"{NAME}.ipynb", 4).cells
    if cell.metadata.get("nbgrader", {}).get("solution")
}


def left_behind(folder: Path, before: set[int]) -> list[str]:
    """Processes, temporary folders and control groups that were not there before."""
    found = list(Path(TEMPORARY).glob(f"{home_prefix(folder.resolve())}*"))
    found += cgroup.left_behind()
    processes = [each for each in psutil.process_iter(["cmdline"]) if each.pid not in before]
    words = (str(folder), "dgc_lab.marking", "4242")
    found += [each for each in processes if any(word in " ".join(each.info["cmdline"] or ()) for word in words)]
    return list(map(str, found))


def main() -> int:
    """Do all that."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--students", type=int, default=200)
    options.add_argument("--jobs", default="2")
    given = options.parse_args()
    before = set(psutil.pids())
    with tempfile.TemporaryDirectory() as place:
        due = hand_in(Path(place) / "in", given.students)
        folder = Path(place) / "grading"
        command = ["grade", NAME, f"{place}/in", "--folder", str(folder), "--source", str(SOURCE), "--jobs", given.jobs]
        times = []
        for _ in range(2):
            start = time.monotonic()
            course(command)
            times.append(time.monotonic() - start)
        rows = json.loads((folder / "report.json").read_text())[NAME]
        reached = {name: row["score"] if row["status"] == "graded" else None for name, row in rows.items()}
        lost = sorted(set(due) - set(rows))
        wrong = {name: (reached[name], due[name]) for name in due if name in rows and reached[name] != due[name]}
        left = left_behind(folder, before - {psutil.Process().pid})
    hostile = len([number for number in range(given.students) if number % 10 == 9])
    print(f"{given.students} hand-ins, {hostile} of them hostile: {times[0] / 60:.1f} min, once more {times[1]:.1f} s")
    print(f"lost: {lost or 'nobody'}; other marks than are due: {wrong or 'nobody'}; left behind: {left or 'nothing'}")
    return int(bool(lost or wrong or left))


if __name__ == "__main__":
    sys.exit(main())
