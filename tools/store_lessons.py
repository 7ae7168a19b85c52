"""Run every lesson from its text half and store the result: ``make notebooks``.

The .md file, in ``notebooks/text``, is what people edit. What is stored in the .ipynb is what GitHub and nbviewer show
to readers without a kernel: no messages of this machine, and of each picture the PNG alone (JupyterLab is given an
``<img>`` with alternative text beside it, which GitHub would not show). Widgets get theirs by tools/picture_widgets.py.
"""

import os
import re
import sys
import time
from pathlib import Path

import jupytext
import nbclient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"


def tidied(outputs):
    """The outputs of a cell without standard error, finished progress bars and the HTML twin of a picture."""
    kept = [output for output in outputs if output.get("name") != "stderr" and not is_bar(output)]
    for output in kept:
        if "image/png" in output.get("data", {}):
            output["data"].pop("text/html", None)
    return kept


def is_bar(output):
    """Whether an output is one of tqdm's progress bars, which end as an empty widget."""
    return re.match(r".*\d+%\|", output.get("data", {}).get("text/plain", "")) is not None


def main(names):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    texts = [FOLDER / "text" / f"{name}.md" for name in names] or sorted((FOLDER / "text").glob("[0-9]*.md"))
    for text in texts:
        start = time.monotonic()
        notebook = jupytext.read(text)
        resources = {"metadata": {"path": str(FOLDER)}}
        options = {"timeout": 600, "kernel_name": "python3", "store_widget_state": False}
        nbclient.NotebookClient(notebook, resources=resources, **options).execute()
        for number, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{number}"
            cell.metadata.pop("execution", None)
            if cell.cell_type == "code":
                cell.outputs = tidied(cell.outputs)
        jupytext.write(notebook, FOLDER / f"{text.stem}.ipynb")
        print(f"{text.stem}: run in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
