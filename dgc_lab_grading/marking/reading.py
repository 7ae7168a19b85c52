"""Read a submitted notebook: its cells without their outputs, and with bounded text."""

from __future__ import annotations

import json
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.marking.limited import TooMuch, call_in_fork

MOST_CELLS = 1000
MOST_TEXT, MOST_PICTURES = 2 * 2**20, 20 * 2**20  # characters of all cells, and of the pictures pasted into them
MOST_NAME = 200  # characters of a cell's id
MEMORY, SECONDS = 2**30, 30  # bytes and processor time
KINDS = ("code", "markdown", "raw")
NO_NOTEBOOK = "the file is not a notebook"


def read(path):
    """Return a submitted file's cells, without outputs; LabError, worded for the report, if it is not a notebook."""
    import nbformat

    try:
        return nbformat.from_dict(call_in_fork(_read, Path(path), seconds=SECONDS, memory=MEMORY))
    except TooMuch as error:
        raise LabError(f"the file {error} to read") from None


def _read(path: Path) -> list[dict]:
    """Return a notebook's cells; a LabError says in words why there are none."""
    try:
        return cells_of(path)
    except (LabError, MemoryError):
        raise
    except RecursionError:
        raise LabError(f"{NO_NOTEBOOK}: it is nested too deeply") from None
    except Exception as error:  # nbformat passes on errors of its parser: KeyError, AttributeError, ...
        first = next(iter(str(error).splitlines()), "")
        raise LabError(f"{NO_NOTEBOOK}: {first[:150] or repr(error)[:150]}") from None


def cells_of(path: Path) -> list[dict]:
    """Return a notebook's cells, with the parts that grading uses."""
    data = path.read_bytes()
    if not data.strip():
        raise LabError("the file is empty")
    cells = [cell for cell in _listed(data) if cell.get("cell_type") in KINDS]
    cells = [cell for cell in map(_cleaned, cells) if cell]
    if len(cells) > MOST_CELLS:
        raise LabError(f"the notebook has more than {MOST_CELLS} cells")
    if sum(len(cell["source"]) for cell in cells) > MOST_TEXT:
        raise LabError(f"the notebook has more than {MOST_TEXT // 2**20} MB of text in its cells")
    attached = (data for cell in cells for picture in cell["attachments"].values() for data in picture.values())
    if sum(map(len, attached)) > MOST_PICTURES:
        raise LabError(f"the notebook has more than {MOST_PICTURES // 2**20} MB of pictures pasted into its text")
    return cells


def _listed(data: bytes) -> list[dict]:
    """Return the cells of a notebook in any version of the format, in UTF-8 or, from PowerShell, in UTF-16."""
    try:
        found = json.loads(data)
    except UnicodeDecodeError:
        raise LabError(f"{NO_NOTEBOOK}: it is not text") from None
    if not isinstance(found, dict) or not isinstance(found.get("nbformat"), int):
        raise LabError(f"{NO_NOTEBOOK}: it has no nbformat")
    if found["nbformat"] < 4:
        import nbformat

        sheets = found.get("worksheets", [])
        for cell in [*found.get("cells", []), *(cell for sheet in sheets for cell in sheet.get("cells", []))]:
            cell.pop("outputs", None)
            if cell.get("cell_type") == "code":
                cell["outputs"] = []
        found = nbformat.reads(json.dumps(found), as_version=4)
    return [cell for cell in found["cells"] if isinstance(cell, dict)]


def _cleaned(cell: dict) -> dict | None:
    """Return a cell with the text and metadata that grading uses; None if it has no text."""
    source, metadata = cell.get("source"), cell.get("metadata")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str):
        return None
    metadata = metadata if isinstance(metadata, dict) else {}
    grading, own = metadata.get("nbgrader"), metadata.get("dgc_lab")
    kept = {}
    if isinstance(grading, dict) and isinstance(grading.get("grade_id"), str):
        kept["nbgrader"] = {
            "grade_id": _text(grading["grade_id"][:MOST_NAME]),
            "solution": grading.get("solution") is True,
        }
    if isinstance(own, dict) and own.get("variant"):
        kept["dgc_lab"] = {"variant": True}
    return {"cell_type": cell["cell_type"], "source": _text(source), "metadata": kept, "attachments": pictures(cell)}


def _text(words: str) -> str:
    """Return a text with the line ends of Linux, and without lone surrogates, which cannot be written to a file."""
    return words.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode("utf-8")


def pictures(cell: dict) -> dict[str, dict[str, str]]:
    """Return the pictures attached to a cell."""
    attached = cell.get("attachments")
    found = {}
    for name, data in attached.items() if isinstance(attached, dict) else ():
        if isinstance(data, dict):
            texts = {kind: text for kind, text in data.items() if isinstance(text, str) and kind.startswith("image/")}
            found[_text(name)] = {_text(kind): _text(text) for kind, text in texts.items()}
    return {name: data for name, data in found.items() if data}
