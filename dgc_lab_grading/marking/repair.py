"""Put a student's answers back into the exercise, whatever happened to the notebook around them.

The students' version determines the cells and the content of all but the answers. The answers, and the student's own
cells at their places, come from the submission. So deleting, copying or editing a test neither costs nor gains points.
Cells are identified by nbgrader's id or, if it is lost (some editors drop it), by their first line, or by the name that
an answer defines.
"""

from __future__ import annotations

import copy
import re

from dgc_lab.common import LabError
from dgc_lab_grading.marking.reading import pictures

ATTACHED = re.compile(r"attachment:([^\s()<>\"']+)")
DEFINES = re.compile(r"^(?:def|class)\s+(\w+)|^(\w+)\s*(?::[^=\n]*)?=(?!=)", re.MULTILINE)
# The student's code is searched line by line, and no expression reads a line more than once: a line may be a megabyte.
REACHES = re.compile(
    r"dgc_lab\s*\.\s*(exercises(?!\.variants)|course|check\s*=[^=])|import\s+dgc_lab\s+as\b|setattr\s*\(\s*dgc_lab\b"
    r"|__globals__|sys\.modules|_getframe|get_ipython\s*\(\)\s*\.(?!run_)"
)
IMPORTS = (  # both in one line
    (re.compile(r"\bimport\b"), re.compile(r"\b(inspect|importlib)\b")),
    (re.compile(r"dgc_lab\s+import\b"), re.compile(r"\b(exercises|course)\b")),
)
SETS_VARIANT = re.compile(r"\bVARIANT\b\s*(=(?!=)|:=)")


def is_variant(cell) -> bool:
    """Return whether this cell holds the student's number."""
    own = cell.metadata.get("dgc_lab")
    return isinstance(own, dict) and bool(own.get("variant"))


def first_line(cell) -> str:
    """Return the first line of a cell, which identifies it if its metadata are lost."""
    return cell.source.strip().split("\n")[0].strip()


def repair(cells, release, name: str):
    """Return the exercise with a student's answers, and remarks; ``release`` already has the student's number."""
    from nbformat.v4 import new_code_cell

    known, lines = _index(release)
    names, lost = _names(cells, known, lines)
    own_answers = _answers_in_own_cells(cells, names, release, known)
    before = dict(zip(known, [None, *known], strict=False))
    answers: dict[str, list] = {}
    extras: dict[str | None, list] = {}
    given = {c.metadata["nbgrader"]["grade_id"]: c.source.strip() for c in release.cells if "nbgrader" in c.metadata}
    graded = {c.metadata["nbgrader"]["grade_id"] for c in release.cells if c.metadata.get("nbgrader", {}).get("grade")}
    setups = {n for n, answer in known.items() if not answer} - graded
    seen, replaced, place, remarks, found = [], set(), None, [], []
    for cell, name_of_cell, answer in zip(cells, names, own_answers, strict=True):
        if answer is not None and answer not in names and place in (before[answer], answer):
            name_of_cell = answer  # it is where the missing answer was
            replaced.add(answer)
            found.append(answer)
        elif answer is not None and answer not in replaced:
            answers.setdefault(answer, []).append(cell)  # a copy, because other cells may need this one where it is
            seen.append(answer)
            found.append(answer)
        if name_of_cell is None:
            if not _is_given(cell, release):
                extras.setdefault(place, []).append(_own(cell))
            same = [name for name, source in given.items() if source == cell.source.strip()]
            seen, place = [*seen, *same], same[0] if same else place
            continue
        seen.append(name_of_cell)
        place = name_of_cell
        if known[name_of_cell]:
            answers.setdefault(name_of_cell, []).append(cell)
        elif cell.cell_type == "code" and name_of_cell in setups and (more := added(cell.source, given[name_of_cell])):
            extras.setdefault(name_of_cell, []).append(new_code_cell(more))
            remarks.append(f"lines that the student added to {name_of_cell} were kept")
    if not answers:
        raise LabError(f"this notebook has no answer of {name}: is it from another exercise?")
    if found:
        remarks.append(f"answers found in cells without ids: {', '.join(dict.fromkeys(found))}")
    repaired, others = _assembled(release, answers, extras, seen, lost, known)
    return repaired, [*remarks, *others]


def added(source: str, given: str) -> str:
    """Return the lines of a changed cell that the exercise's version does not have.

    Example:
        >>> added("import math\\nimport numpy as np", "import numpy as np\\nimport dgc_lab")
        'import math'
    """
    known = {line.strip() for line in given.split("\n")}
    return "\n".join(line for line in source.split("\n") if line.strip() and line.strip() not in known)


def reaches(line: str) -> bool:
    """Return whether a line of code accesses the checks, or the kernel, as no answer needs to.

    Example:
        >>> reaches("import dgc_lab, inspect"), reaches("import math  # not importlike")
        (True, False)
    """
    return bool(REACHES.search(line)) or any(one.search(line) and other.search(line) for one, other in IMPORTS)


def _names(cells, known, lines) -> tuple[list[str | None], int]:
    """Return the id of each cell, None for cells outside the exercise; and how many had lost theirs.

    The first line of another exercise's cell identifies nothing: all explanations begin alike.
    """
    ids = []
    for cell in cells:
        grading = cell.metadata.get("nbgrader") if isinstance(cell.metadata, dict) else None
        grade_id = grading.get("grade_id") if isinstance(grading, dict) else None
        ids.append(grade_id if isinstance(grade_id, str) else None)
    names = [grade_id if grade_id in known else None for grade_id in ids]
    had = sum(name is not None for name in names)
    lines = {line: name for line, name in lines.items() if name not in names}
    for place, cell in enumerate(cells):
        if ids[place] is None and cell.source.strip():
            names[place] = lines.get(first_line(cell))
    return names, sum(name is not None for name in names) - had


def _answers_in_own_cells(cells, names, release, known) -> list[str | None]:
    """Return the missing or blank answer that each cell without an id defines; None if it defines none."""
    defined = {}
    for given in release.cells:
        grade_id = given.metadata.get("nbgrader", {}).get("grade_id")
        if not known.get(grade_id):
            continue
        same = (cell for cell, name in zip(cells, names, strict=True) if name == grade_id)
        if not any(_code_added(cell.source, given.source) for cell in same):
            defined.update(dict.fromkeys(_defined(given)[:1], grade_id))
    return [
        next((defined[name] for name in _defined(cell) if name in defined), None) if cell_id is None else None
        for cell, cell_id in zip(cells, names, strict=True)
    ]


def _code_added(source: str, stub: str) -> bool:
    """Return whether an answer has code that its stub does not have, comments and a bare ``...`` aside."""
    code, given = (re.sub("#.*", "", text) for text in (source, stub))
    return any(line.strip() not in ("...", "pass") for line in added(code, given).split("\n") if line)


def _defined(cell) -> list[str]:
    """Return the names that a code cell defines at its top level."""
    if cell.cell_type != "code":
        return []
    return [function or value for function, value in DEFINES.findall(cell.source)]


def _assembled(release, answers, extras, seen, lost, known):
    sources = [cell.source for cells in answers.values() for cell in cells]
    sources += [cell.source for cells in extras.values() for cell in cells if cell.cell_type == "code"]
    sets_variant = any(SETS_VARIANT.search(source) for source in sources)
    variant_cell = next(cell for cell in release.cells if is_variant(cell))
    result = copy.deepcopy(release)
    result.cells = [*extras.get(None, [])]
    for cell in copy.deepcopy(release.cells):
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        if known.get(grade_id):
            _put(cell, answers.get(grade_id, []))
        elif grade_id and sets_variant:
            result.cells.append(_own(variant_cell))
        result.cells += [cell, *extras.get(grade_id, [])] if grade_id else [cell]
    for number, cell in enumerate(result.cells):
        cell["id"] = f"cell-{number}"
    remarks = []
    missing = [grade_id for grade_id in known if grade_id not in seen]
    twice = sorted({grade_id for grade_id in seen if seen.count(grade_id) > 1})
    if sets_variant:
        remarks.append("the student's code sets VARIANT; the tests run with the correct one")
    given = {line.strip() for cell in release.cells for line in cell.source.split("\n")}
    if any(reaches(line) for source in sources for line in source.split("\n") if line.strip() not in given):
        remarks.append("the student's code accesses checks or the kernel: read it before you trust the marks")
    if lost:
        remarks.append(f"metadata lost: cells identified by their first lines: {lost}")
    if missing:
        remarks.append(f"cells deleted by the student and restored: {', '.join(missing)}")
    if twice:
        remarks.append(f"cells that occur more than once, all of which were run: {', '.join(twice)}")
    return result, remarks


def _index(release):
    """Map each id to whether it is an answer, and first lines of answers and tests to their ids."""
    known, lines = {}, {}
    for cell in release.cells:
        grading = cell.metadata.get("nbgrader")
        if grading:
            known[grading["grade_id"]] = bool(grading["solution"])
            if grading["solution"] or grading.get("grade"):
                lines[first_line(cell)] = grading["grade_id"]
    return known, lines


def _is_given(cell, release) -> bool:
    """Return whether a cell without an id belongs to the exercise: text, the setup, the variant."""
    if is_variant(cell) or re.fullmatch(r"VARIANT\s*=\s*\d+", cell.source.strip()):
        return True
    return any(cell.source.strip() == given.source.strip() for given in release.cells)


def _own(cell):
    """Copy a student's own cell, without metadata for nbgrader and without outputs."""
    from nbformat.v4 import new_code_cell, new_markdown_cell

    own = new_code_cell() if cell.cell_type == "code" else new_markdown_cell()
    return _put(own, [cell])


def _put(target, cells):
    """Merge cells into one: their text and, in Markdown, the pictures pasted into it.

    nbconvert fails on text that refers to a missing picture, so such references are changed.
    """
    target.source = "\n\n".join(cell.source for cell in cells)
    if target.cell_type == "markdown":
        images = {name: data for cell in cells for name, data in pictures(cell).items()}
        target.source = ATTACHED.sub(lambda name: name[0] if name[1] in images else f"missing:{name[1]}", target.source)
        if images:
            target.attachments = images
    return target
