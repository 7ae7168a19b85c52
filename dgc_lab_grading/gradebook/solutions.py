"""Solutions to hand out: each exercise as a notebook with our answers and reasons, without hidden tests."""

from __future__ import annotations

from pathlib import Path

from dgc_lab_grading.course.sources import HIDDEN, MARKERS, assignments, notebook

NOTE = "These are the solutions. Other answers can be correct, too: run the check below an answer to test yours."


def solutions(source: Path, target: Path, names=None) -> list[Path]:
    """Write ``NN_name_solutions.ipynb`` for the named exercises, or for all; nbgrader is not needed.

    nbgrader's metadata are removed, so that the notebook cannot be handed in.
    """
    import nbformat

    written = []
    for name in names or assignments(source):
        made = notebook(source, name)
        made.metadata.pop("jupytext", None)
        cells = []
        for cell in made.cells:
            cell.source = MARKERS.sub("", HIDDEN.sub("", cell.source)).rstrip()
            cell.metadata = {}
            cells += [cell] if cell.source else []
            if cell.source.startswith("# Exercise") and cell.cell_type == "markdown":
                cells.append(nbformat.v4.new_markdown_cell(NOTE, id="solutions"))
        made.cells = cells
        path = Path(target) / f"{name}_solutions.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(made, path)
        written.append(path)
    return written
