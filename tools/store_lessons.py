"""Run every lesson from its text half and store the result: ``make notebooks``.

People edit the .md file in ``notebooks/text``. GitHub and nbviewer show the outputs stored in the .ipynb file to
readers without a kernel. These outputs contain no messages of this machine, and pictures only as PNG: the ``<img>``
with alternative text for JupyterLab would not be shown on GitHub. tools/picture_widgets.py adds pictures of widgets.
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
    """Return a cell's outputs without standard error, finished progress bars, and the HTML versions of pictures."""
    kept = [output for output in outputs if output.get("name") != "stderr" and not is_bar(output)]
    for output in kept:
        if "image/png" in output.get("data", {}):
            output["data"].pop("text/html", None)
    return kept


def is_bar(output):
    """Return whether an output is a tqdm progress bar, which ends as an empty widget."""
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
