"""Helpers for the classic notebook front end with ipywidgets 7 in a real Chromium, like `tests/browser.py`."""

import re
import shutil
import time

import pytest
from playwright.sync_api import expect

from browser import BADGES, TOKEN, free_port, opened, served

# The font for formulas also comes from outside, and is missing without a network.
OUTSIDE = (*BADGES, "https://cdnjs.cloudflare.com/")
# Stored outputs of a lesson come from ipywidgets 8, and some of their models do not exist in ipywidgets 7.
STORED = re.compile(r"Cannot find model module @jupyter-widgets/\w+@2\.")


@pytest.fixture(scope="session")
def classic(tmp_path_factory):
    """Run the classic notebook server in an empty folder, on loopback with a token; yield folder and address."""
    folder, port = tmp_path_factory.mktemp("classic"), free_port()
    options = [f"--NotebookApp.port={port}", "--NotebookApp.ip=127.0.0.1", f"--NotebookApp.notebook_dir={folder}"]
    with served(folder, port, "notebook", *options) as address:
        yield folder, address


@pytest.fixture(scope="session")
def page(classic):
    """Yield one browser page for all tests; ``show`` opens a notebook in it."""
    with opened(f"{classic[1]}/tree?token={TOKEN}") as page:
        yield page


@pytest.fixture
def show(page, classic):
    """Yield a function that opens a copy of a notebook with a kernel, which is shut down when the test ends."""
    folder, address = classic

    def show(file):
        shutil.copy(file, folder)
        page.complaints.clear()
        page.goto(f"{address}/notebooks/{file.name}")
        page.wait_for_function("() => window.Jupyter?.notebook?.kernel?.is_connected()", timeout=60_000)

    yield show
    page.evaluate("() => Jupyter.notebook.session.delete()")


def run_all(page, seconds=300):
    """Choose Cell > Run All, wait until all cells have run, and return the cells' error messages."""
    page.locator("#celllink").click()
    page.locator("#run_all_cells").click()
    waiting = "() => Jupyter.notebook.get_cells().filter(cell => cell.input_prompt_number === '*').length"
    end, calm = time.monotonic() + seconds, 0
    while calm < 10:
        assert time.monotonic() < end, "the notebook did not finish"
        time.sleep(0.2)
        calm = 0 if page.evaluate(waiting) else calm + 1
    cells = page.evaluate("() => Jupyter.notebook.toJSON().cells")
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return [output["evalue"] for output in outputs if output["output_type"] == "error"]


def widget(page, holding):
    """Return the first widget that contains an element matching the selector, scrolled into view."""
    found = page.locator(f".widget-vbox:has({holding})").first
    found.scroll_into_view_if_needed()
    return found


def press(widget, name):
    """Press a button of the widget."""
    widget.get_by_role("button", name=name).click()


def fill(widget, **values):
    """Type values into fields, which are found by their visible labels."""
    for label, value in values.items():
        field = widget.get_by_label(label, exact=True).first
        field.fill(value)
        field.press("Tab")


def move(widget, times, slider=0):
    """Move a slider the given number of steps to the right with the keyboard."""
    handle = widget.locator(".ui-slider-handle").nth(slider)
    handle.focus()
    for _ in range(times):
        handle.press("ArrowRight")


def expect_message(widget, words, seconds=120):
    """Wait for a message of the widget that matches ``words``."""
    line = widget.locator("[role=status], [role=alert]").first
    expect(line).to_contain_text(re.compile(words), timeout=1000 * seconds)


def expect_live(widget, picture, frames=3, seconds=60):
    """Wait until the picture has been seen in ``frames`` different states."""
    seen, end = set(), time.monotonic() + seconds
    while len(seen) < frames:
        assert time.monotonic() < end, "the picture does not move"
        seen.add(widget.locator(picture).get_attribute("src"))
        time.sleep(0.1)


def complaints(page):
    """Return the browser console's messages, except those on outside files and on outputs of ipywidgets 8."""
    return [each for each in page.complaints if not each[1].startswith(OUTSIDE) and not STORED.match(each[0])]
