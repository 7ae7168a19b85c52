"""The students' versions of the exercises, from one source each: ``NN_name/text/NN_name.md``.

It is the text half of the notebook ``NN_name/NN_name.ipynb``, and jupytext keeps the two in step. nbgrader takes the
solutions and the hidden tests out, and keeps both in the gradebook for grading.
"""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.marking.nbgrader_api import course_api, reason
from dgc_lab.marking.repair import first_line, is_variant

BADGE = r"\[!\[Open in [^\]]*\]\([^)]*\)\]\([^)]*\)"
BADGES = re.compile(rf"{BADGE}(\s+{BADGE})*")
HIDDEN = re.compile(r"(?ms)^[ \t]*### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS[^\n]*\n?")
MARKERS = re.compile(r"(?m)^[ \t]*### (BEGIN|END) SOLUTION[^\n]*\n?")
OWN = (
    "**This copy is yours:** its numbers are nobody else's. Open this file itself: in JupyterLab as it is, on Colab by "
    "*File*, *Upload notebook*."
)


def assignments(source: Path) -> list[str]:
    """Names of all exercises in a folder of sources; a LabError if there are none."""
    if not Path(source).is_dir():
        words = "run this at the top of the repository, or name the folder of the sources (--source)"
        raise LabError(f"no folder {source} in {Path.cwd()}: {words}")
    names = sorted(text.stem for text in Path(source).glob("*/text/*.md") if text == text_half(source, text.stem))
    if not names:
        raise LabError(f"no exercise in {source}: an exercise is a folder NN_name with the text text/NN_name.md in it")
    return names


def text_half(source: Path, name: str) -> Path:
    """Where the text of an exercise is."""
    return Path(source) / name / "text" / f"{name}.md"


def notebook(source: Path, name: str):
    """The source of an exercise as a notebook, with cell ids that stay the same from call to call."""
    import jupytext

    text = text_half(source, name)
    if not text.exists():
        raise LabError(f"no exercise {name!r} in {source}; there are: {', '.join(assignments(source))}")
    found = jupytext.read(text)
    found.metadata["language_info"] = {"name": "python"}  # nbgrader asks for it
    for number, cell in enumerate(found.cells):
        cell["id"] = f"cell-{number}"
    check_source(found, name)
    return found


def check_source(found, name: str) -> None:
    """What grading relies on: one variant cell, unique ids, first lines by which a cell is known again."""
    variants = [cell for cell in found.cells if is_variant(cell)]
    if len(variants) != 1 or variants[0].source != "VARIANT = 0":
        raise LabError(f"{name}: exactly one cell must have the metadata dgc_lab.variant and hold VARIANT = 0")
    ids, lines = set(), set()
    for cell in found.cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        if grade_id is None:
            continue
        if grade_id in ids:
            raise LabError(f"{name}: two cells have the grade_id {grade_id}")
        if first_line(cell) in lines:
            raise LabError(f"{name}: two cells begin with the line {first_line(cell)!r}")
        ids.add(grade_id)
        lines.add(first_line(cell))


def with_variant(found, number: int):
    """The notebook with this number in its variant cell, changed in place; a badge would open the one for everybody."""
    for cell in found.cells:
        if is_variant(cell):
            cell.source = f"VARIANT = {number}"
        elif number and cell.cell_type == "markdown" and BADGES.search(cell.source):
            cell.source = BADGES.sub(OWN, cell.source, count=1)
    return found


def is_prepared(folder: Path, name: str) -> bool:
    """Whether the gradebook of a grading folder knows an exercise; somebody may have removed it."""
    if not (Path(folder) / "gradebook.db").exists():
        return False
    with course_api(folder).gradebook as gradebook:
        return name in {assignment.name for assignment in gradebook.assignments}


def prepare(source: Path, folder: Path, name: str) -> None:
    """Put an exercise into a grading folder: its source, its students' version, and its points in the gradebook."""
    import nbformat

    folder = Path(folder).resolve()
    target = folder / "source" / name
    target.mkdir(parents=True, exist_ok=True)
    made = notebook(source, name)
    made.metadata.pop("jupytext", None)  # a student has no text half
    nbformat.write(made, target / f"{name}.ipynb")
    result = course_api(folder).generate_assignment(name)
    if not result["success"]:
        raise LabError(f"nbgrader makes no students' version of {name}: {reason(result)}")


def pair_with_text(source: Path, name: str) -> None:
    """Write the notebook that an exercise's text is the other half of, for instructors who edit in JupyterLab.

    It says where its text is, so that jupytext writes what is saved there into the text, too.
    """
    import jupytext

    file, found = Path(source) / name / f"{name}.ipynb", jupytext.writes(notebook(source, name), fmt="ipynb") + "\n"
    if not file.exists() or file.read_text() != found:  # it may be open in JupyterLab
        file.write_text(found)


def release(source: Path, target: Path, names=None, variants: dict[str, int] | None = None) -> list[Path]:
    """Write the students' versions, and the notebook of each source; of all exercises where no names are given.

    They are ``NN_name/NN_name.ipynb`` in the target; with variants, each student's number, ``STUDENT/NN_name.ipynb``.
    """
    import nbformat

    written = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names or assignments(source):
            prepare(source, Path(folder), name)
            made = nbformat.read(Path(folder) / "release" / name / f"{name}.ipynb", as_version=4)
            files = (path for path in (Path(source) / name).iterdir() if path.is_file())
            extras = [file for file in files if file.suffix not in (".md", ".ipynb")]
            places = {f"{student}/{name}": number for student, number in (variants or {}).items()}
            for place, number in (places or {f"{name}/{name}": 0}).items():
                path = Path(target) / f"{place}.ipynb"
                path.parent.mkdir(parents=True, exist_ok=True)
                nbformat.write(with_variant(copy.deepcopy(made), number), path)
                written.append(path)
                for extra in extras:
                    shutil.copy(extra, path.parent)
            pair_with_text(source, name)
    return written
