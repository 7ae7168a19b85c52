"""Store a picture of every widget in the lessons, taken after its run: the second half of ``make notebooks``.

Without a kernel, for example on GitHub, on the site, or in a notebook that was just opened, widgets show nothing. This
program therefore runs each lesson up to its last widget, in JupyterLab in a real browser, and presses Run if a widget
has that button. In the stored output it replaces the widget with a screenshot, an alternative text, the widget's table,
and a line on how to use it.
"""

from __future__ import annotations

import base64
import io
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from PIL import Image
from playwright.sync_api import expect

from browser import jupyterlab_on, opened_notebook, wait_until_run

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
VIEW = "application/vnd.jupyter.widget-view+json"
ALL_CELLS = {"notebook-extension/tracker": {"windowingMode": "none"}}  # render cells outside the window, too
LONGEST = 600  # seconds, time limit for a widget's run
LINE = "*A picture of the widget{after}. To use it, run this lesson: with `make lab`, on Colab or on Binder.*"


def is_widget(output) -> bool:
    """Return whether an output is a widget, or a picture of one that this program stored."""
    return VIEW in output.get("data", {}) or "widget" in output.get("metadata", {})


def words_of(widget) -> str:
    """Return an alternative text: the names of the controls, and the figures' texts, or messages and questions."""
    labels = widget.locator(".widget-label, .widget-label-basic").all_inner_texts()
    labels = [label.strip(" \n\u200b") for label in labels]  # checkboxes also have a label of zero width
    buttons = [button.strip() for button in widget.get_by_role("button").all_inner_texts()]
    figures = [figure.get_attribute("alt") for figure in widget.locator("img").all()]
    said = figures or widget.locator("[role=status], .dgc-lab-question").all_inner_texts()
    controls = ", ".join(dict.fromkeys(filter(None, [*labels, *buttons])))
    return " ".join([f"A widget with the controls {controls}.", *said]).strip()


def after_its_run(widget) -> str:
    """Press Run if there is such a button, and wait for the run; return words for the caption."""
    run = widget.locator("button", has_text=re.compile(r"^\s*Run\s*$"))
    if not run.count():
        return ""
    run.click()
    # If the lesson has already trained the same rows by `run()`, there is nothing to do.
    ended = re.compile("^Done|has these rows already")
    expect(widget.locator("[role=status]").first).to_contain_text(ended, timeout=1000 * LONGEST)
    return " after its run"


def outputs_of(widget) -> list[nbformat.NotebookNode]:
    """Return the outputs that replace a widget for readers without a kernel."""
    said, file = after_its_run(widget), io.BytesIO()
    Image.open(io.BytesIO(widget.screenshot())).convert("RGB").quantize(256).save(file, "png", optimize=True)
    picture = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": "A widget"}
    line = {"text/markdown": LINE.format(after=said), "text/plain": LINE.format(after=said).strip("*")}
    outputs = [(picture, {"image/png": {"alt": words_of(widget)}, "widget": True}), (line, {"widget": True})]
    for table in widget.locator("table").all():
        html = f"<details><summary>Its table</summary>{table.evaluate('table => table.outerHTML')}</details>"
        outputs.append(({"text/html": html, "text/plain": table.inner_text()}, {"widget": True}))
    return [nbformat.v4.new_output("display_data", data, metadata=metadata) for data, metadata in outputs]


def run_up_to(page, place: int) -> None:
    """Run a notebook's cells up to the given one, and wait for them."""
    page.evaluate(
        """place => {
            window.jupyterapp.shell.currentWidget.content.activeCellIndex = place + 1;
            return window.jupyterapp.commands.execute("notebook:run-all-above");
        }""",
        place,
    )
    wait_until_run(page)
    failed = page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']")
    assert not failed.count(), failed.first.inner_text()


def picture_lesson(file: Path) -> int:
    """Run a lesson and replace its widgets with pictures; return the number of widgets."""
    notebook = nbformat.read(file, as_version=4)
    places = [place for place, cell in enumerate(notebook.cells) if any(map(is_widget, cell.get("outputs", [])))]
    if not places:
        return 0
    with (
        tempfile.TemporaryDirectory() as folder,
        jupyterlab_on([file], Path(folder), ALL_CELLS) as address,
        opened_notebook(address, file.name) as page,
    ):
        run_up_to(page, places[-1])
        for place in places:
            widget = page.locator(".jp-Notebook .jp-Cell").nth(place).locator(".jupyter-widgets").first
            widget.wait_for(timeout=1000 * LONGEST)
            others = [output for output in notebook.cells[place].outputs if not is_widget(output)]
            notebook.cells[place].outputs = [*others, *outputs_of(widget)]
    notebook.metadata.pop("widgets", None)
    nbformat.write(notebook, file)
    return len(places)


def main(names: list[str]) -> None:
    """Store pictures of the widgets in the named lessons, or in all lessons."""
    for file in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("[0-9]*.ipynb")):
        start = time.monotonic()
        print(f"{file.stem}: {picture_lesson(file)} widgets in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
