"""Make the students' versions of the exercises from one source each: ``NN_name/text/NN_name.md``.

jupytext pairs this text with the notebook ``NN_name/NN_name.ipynb``. nbgrader removes the solutions and hidden tests,
and keeps both in the gradebook for grading.
"""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.marking.nbgrader_api import course_api, reason
from dgc_lab_grading.marking.repair import first_line, is_variant

BADGE = r"\[!\[Open in [^\]]*\]\([^)]*\)\]\([^)]*\)"
BADGES = re.compile(rf"{BADGE}(\s+{BADGE})*")
HIDDEN = re.compile(r"(?ms)^[ \t]*### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS[^\n]*\n?")
MARKERS = re.compile(r"(?m)^[ \t]*### (BEGIN|END) SOLUTION[^\n]*\n?")
OWN = (
    "**This copy is yours:** its numbers are nobody else's. Open this file itself: in JupyterLab as it is, on Colab by "
    "*File*, *Upload notebook*."
)


def assignments(source: Path) -> list[str]:
    """Return the names of all exercises in a folder of sources; LabError if there are none."""
    if not Path(source).is_dir():
        words = "run this in the root of the repository, or pass the folder of the sources (--source)"
        raise LabError(f"no folder {source} in {Path.cwd()}: {words}")
    names = sorted(text.stem for text in Path(source).glob("*/text/*.md") if text == text_half(source, text.stem))
    if not names:
        raise LabError(f"no exercises in {source}: an exercise is a folder NN_name that contains text/NN_name.md")
    return names


def text_half(source: Path, name: str) -> Path:
    """Return the path of an exercise's text."""
    return Path(source) / name / "text" / f"{name}.md"


def notebook(source: Path, name: str):
    """Return the source of an exercise as a notebook with reproducible cell ids."""
    import jupytext

    text = text_half(source, name)
    if not text.exists():
        raise LabError(f"no exercise {name!r} in {source}; choose from: {', '.join(assignments(source))}")
    found = jupytext.read(text)
    found.metadata["language_info"] = {"name": "python"}  # required by nbgrader
    for number, cell in enumerate(found.cells):
        cell["id"] = f"cell-{number}"
    check_source(found, name)
    return found


def check_source(found, name: str) -> None:
    """Check the requirements of grading: one variant cell, unique ids, and unique first lines."""
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
    """Set the variant number in place, and replace the badge, which would open the version without one."""
    for cell in found.cells:
        if is_variant(cell):
            cell.source = f"VARIANT = {number}"
        elif number and cell.cell_type == "markdown" and BADGES.search(cell.source):
            cell.source = BADGES.sub(OWN, cell.source, count=1)
    return found


def is_prepared(folder: Path, name: str) -> bool:
    """Return whether the gradebook of a grading folder has an exercise; someone may have removed it."""
    if not (Path(folder) / "gradebook.db").exists():
        return False
    with course_api(folder).gradebook as gradebook:
        return name in {assignment.name for assignment in gradebook.assignments}


def prepare(source: Path, folder: Path, name: str) -> None:
    """Add an exercise to a grading folder: source, students' version, and points in the gradebook.

    Raises a LabError if nbgrader refuses the source, for example because its tasks differ from those of the submissions
    that have been graded. The folder then stays as it was, so that their marks can still be read.
    """
    import nbformat

    folder = Path(folder).resolve()
    parts = [folder / part / name for part in ("source", "release")]
    made = notebook(source, name)
    made.metadata.pop("jupytext", None)  # students have no paired text
    with tempfile.TemporaryDirectory(dir=folder) as before:
        kept = {part: Path(before) / part.parent.name for part in parts if part.exists()}
        for part, copied in kept.items():
            shutil.copytree(part, copied)
        parts[0].mkdir(parents=True, exist_ok=True)
        nbformat.write(made, parts[0] / f"{name}.ipynb")
        result = course_api(folder).generate_assignment(name)
        if result["success"]:
            return
        for part in parts:
            shutil.rmtree(part, ignore_errors=True)
        for part, copied in kept.items():
            shutil.copytree(copied, part)
    why = reason(result)
    if "add or remove cells" in why:
        raise LabError(
            f"{name} has got other tasks or cells since submissions were graded in {folder}: grade it into another "
            "folder (--folder), or undo the change in the source"
        )
    raise LabError(f"nbgrader cannot make the students' version of {name}: {why}")


def pair_with_text(source: Path, name: str) -> None:
    """Write the notebook paired with an exercise's text, for instructors who edit in JupyterLab.

    The notebook names its text, so that jupytext saves edits to both.
    """
    import jupytext

    file, found = Path(source) / name / f"{name}.ipynb", jupytext.writes(notebook(source, name), fmt="ipynb") + "\n"
    if not file.exists() or file.read_text() != found:  # otherwise leave it: it may be open in JupyterLab
        file.write_text(found)


def release(source: Path, target: Path, names=None, variants: dict[str, int] | None = None) -> list[Path]:
    """Write the students' versions and the notebook of each source, for the named exercises or for all.

    The files are ``NN_name/NN_name.ipynb`` in the target. With ``variants``, numbers by student, they are
    ``STUDENT/NN_name.ipynb``.
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
