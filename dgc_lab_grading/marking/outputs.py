"""Outputs of cells, as a notebook can hold them."""

from __future__ import annotations

import json

import nbformat
from nbformat.v4 import new_output


def clean(cell) -> None:
    """Remove lone surrogates and invalid outputs, which a notebook cannot hold, from a cell that has run."""
    if cell.cell_type != "code":
        return
    if type(cell.get("execution_count")) is not int:
        cell.execution_count = None
    cell.metadata.pop("execution", None)  # times, as the kernel gives them
    outputs, cell.outputs = cell.outputs, []
    for output in outputs:
        try:
            plain = json.loads(json.dumps(output, ensure_ascii=False).encode("utf-8", "replace"))
            nbformat.validate(plain, ref="output", version=4)
        except Exception:  # of any type: the student's process chose it
            plain = new_output("stream", name="stdout", text="(an output that no notebook can show)\n")
        cell.outputs.append(nbformat.from_dict(plain))


def error_output(name: str, words: str):
    """Return an error output, for which nbgrader gives no points."""
    return new_output("error", ename=name, evalue=words, traceback=[words])
