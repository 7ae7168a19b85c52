"""A real Jupyter in a real Chromium, for tests that use a lesson as a student does.

A test module names its lesson in ``LESSON`` and takes the fixtures from here (`tests/conftest.py` hands them on;
`colab/conftest.py` has the classic notebook front end instead of JupyterLab). One that needs another notebook than a
lesson writes its ``CELL``, or defines a ``lesson_file`` of its own.
Needs Chromium or Chrome; in continuous integration its absence is an error, elsewhere such tests are left out.
Screenshots go to ``artefacts/``.
"""

import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
# Whoever has it can run code as this user. Servers learn it from their environment: commands can be read by all.
TOKEN = secrets.token_urlsafe()
# The badges' pictures come from outside and stay away where there is no network.
# What axe-core is asked about: the outputs and the texts of a notebook. The rest of the page is JupyterLab's own.
OURS = (".jp-OutputArea-output", ".jp-RenderedMarkdown")
# Rules of axe-core, and the elements of JupyterLab and ipywidgets that break them whatever we give them to show.
NOT_OURS = {
    # The frame of a table scrolls when the table is too wide; browsers let the arrow keys scroll it all the same.
    "scrollable-region-focusable": ".jp-OutputArea-output",
    # ipywidgets ties no name to the handle of a slider; its label stands beside it.
    "aria-input-field-name": ".widget-slider .noUi-handle",
}
BADGES = ("https://colab.research.google.com/assets/colab-badge.svg", "https://mybinder.org/badge_logo.svg")


@pytest.fixture(scope="module")
def lesson_file(request, tmp_path_factory):
    """Where the notebook lies that the tests use a copy of: the lesson, or one with the module's ``CELL`` alone."""
    if not hasattr(request.module, "CELL"):
        return ROOT / "notebooks" / request.module.LESSON
    return one_cell_notebook(tmp_path_factory.mktemp("notebook"), request.module.LESSON, request.module.CELL)


def one_cell_notebook(folder, name, source):
    """Write a notebook with one cell, for a widget whose lesson trains for minutes; gives its path."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    nbformat.write(notebook, folder / name)
    return folder / name


# Below those that Linux gives away by chance, and of each of pytest-xdist's workers its own: a server takes its port
# seconds after it was chosen.
PORTS = itertools.count(20_000 + 2_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) + os.getpid() % 1_000)


def free_port():
    """A port of the loopback interface that nothing listens on, and nobody else is given."""
    for port in PORTS:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def served(folder, port, *command):
    """A Jupyter server that ``command`` starts on the loopback interface, up; gives its address."""
    if BROWSER is None and not os.environ.get("CI"):
        pytest.skip("no Chromium or Chrome on this machine")
    log = (folder / "server.log").open("w")
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JUPYTER_CONFIG_DIR": str(folder / "config")}
    environment["JUPYTER_TOKEN"] = TOKEN
    command = [sys.executable, "-m", *command, "--allow-root", "--no-browser"]
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    address = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 300
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/api/status?token={TOKEN}", timeout=2)
                break
            except OSError:
                assert process.poll() is None, (folder / "server.log").read_text()
                assert time.monotonic() < end, "the Jupyter server did not start"
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(120)
        log.close()


@contextlib.contextmanager
def opened(address):
    """A page of a new browser; messages of the browser's console are kept in ``page.complaints``."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS, timeout=180_000)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(120_000)
        page.set_default_navigation_timeout(180_000)
        expect.set_options(timeout=30_000)  # much that is expected comes from the kernel, on a machine with other work
        page.complaints = []
        page.on(
            "console",
            lambda said: page.complaints.append((said.text, said.location["url"])) if said.type == "error" else None,
        )
        page.on("pageerror", lambda error: page.complaints.append((str(error), "")))
        page.goto(address)
        yield page
        browser.close()


@contextlib.contextmanager
def jupyterlab_on(files, folder, settings):
    """JupyterLab on copies of some notebooks in ``folder``, loopback only, with a token; gives its address.

    ``settings`` are what a student would choose in JupyterLab's own settings, by extension and plugin.
    """
    port = free_port()
    for file in files:
        shutil.copy(file, folder)
    for plugin, chosen in settings.items():
        path = folder / "config" / "lab" / "user-settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(chosen))
    options = [f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={folder}"]
    options += ["--LabApp.expose_app_in_browser=True"]
    options += ["--KernelManager.transport_encryption=auto"]  # as `make lab` has it
    with served(folder, port, "jupyterlab", *options) as address:
        yield address


@contextlib.contextmanager
def opened_notebook(address, name):
    """A notebook of JupyterLab's in a page of a new browser, its kernel ready."""
    with opened(f"{address}/lab/tree/{name}?token={TOKEN}") as page:
        page.locator(".jp-Notebook").wait_for(timeout=180_000)
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=180_000)
        yield page


@pytest.fixture(scope="module")
def jupyterlab(request, lesson_file, tmp_path_factory):
    """JupyterLab on a copy of the module's ``LESSON``, with its ``SETTINGS``; yields its address.

    Where ``lesson_file`` is a list of files, it has copies of them all.
    """
    files = lesson_file if isinstance(lesson_file, list) else [lesson_file]
    with jupyterlab_on(files, tmp_path_factory.mktemp("lab"), getattr(request.module, "SETTINGS", {})) as address:
        yield address


@pytest.fixture(scope="module")
def page(request, jupyterlab):
    """The module's ``LESSON``, opened in JupyterLab."""
    with opened_notebook(jupyterlab, request.module.LESSON) as page:
        yield page


@pytest.fixture
def screenshot_of_a_failure(request, page):
    """A picture of the page when the test fails; a module uses it for all its tests."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        screenshot(page, f"failed_{request.node.name}")


def screenshot(page, name):
    """The window as the student sees it, in ``artefacts/NAME.png``."""
    folder = ROOT / "artefacts"
    folder.mkdir(exist_ok=True)
    page.screenshot(path=folder / f"{name}.png")


def run_all(page, restart=False):
    """Menu Run > Run All Cells, then wait until all cells have run."""
    page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
    name = "Restart Kernel and Run All Cells" if restart else "Run All Cells"
    page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{name}")).first.click()
    if restart:
        page.get_by_role("button", name="Confirm Kernel Restart").click()
    wait_until_run(page)


# Where a run has begun, what has not run yet has no number. The prompts alone do not tell: a cell far outside the
# window need not be in the page.
CELLS_LEFT = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells].filter(
    cell => cell.type === "code" && cell.sharedModel.source.length && cell.executionCount === null).length"""


def wait_until_run(page):
    """Wait until all cells that were told to run have done so, as long as one ends in every five minutes."""
    # Done when no cell has waited or run for two seconds; between cells the kernel is idle for a moment, on a slow
    # machine for several. Where it stays so, an error has ended the run.
    idle = page.get_by_text("Python 3 (ipykernel) | Idle")
    left, calm = None, 0
    while calm < (150 if left else 10):
        if (now := page.evaluate(CELLS_LEFT)) != left:
            left, calm, end = now, 0, time.monotonic() + 300
        assert time.monotonic() < end, f"the lesson stands still: {left} cells are left"
        time.sleep(0.2)
        busy = page.locator(".jp-InputPrompt", has_text="[*]").count() or not idle.count()
        calm = 0 if busy else calm + 1
    errors = ["\n".join(output["traceback"]) for kind, output in all_outputs(page) if kind == "error"]
    assert not left, f"{left} cells have not run:\n" + "\n".join(errors)


def run_cell(page, words):
    """Run the first code cell with these words again, as Control and Enter do, and give it back."""
    cell = page.locator(".jp-CodeCell", has_text=words).first
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    return cell


def all_outputs(page):
    """A list of (kind, output) of all code cells, those outside the window included, as JupyterLab holds them."""
    cells = page.evaluate("() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells")
    return [(output["output_type"], output) for cell in cells for output in cell.get("outputs", [])]


def errors_of_all_cells(page):
    """What the errors of a lesson say; its cells have run once, in their order, in the kernel that is there now."""
    cells = page.evaluate("() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells")
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in code]
    assert counts == list(range(1, len(code) + 1)), counts
    assert kernel_says(page, "len(In) - 1") == str(len(code))
    return [output["evalue"] for cell in code for output in cell["outputs"] if output["output_type"] == "error"]


def control(page, label):
    """A control by the label that the student reads."""
    return page.get_by_label(label, exact=True).first


def kernel_says(page, expression):
    """What a Python expression comes to in the lesson's kernel: its ``repr``. The notebook does not notice."""
    said = page.evaluate(
        """async expression => {
            const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
            const asked = {code: "", store_history: false, user_expressions: {said: expression}};
            return (await kernel.requestExecute(asked).done).content.user_expressions.said;
        }""",
        expression,
    )
    assert said["status"] == "ok", said
    return said["data"]["text/plain"]


def end_animations(page):
    """Bring what is still changing its looks to its end, but for what never ends."""
    page.evaluate(
        """() => document.getAnimations()
            .filter(change => Number.isFinite(change.effect.getComputedTiming().endTime))
            .forEach(change => change.finish())"""
    )


def axe_complaints(page, but=None, of=OURS):
    """What axe-core finds serious or critical in the outputs and texts that are in the page, one text each.

    ``but`` has further exceptions beside ``NOT_OURS``: by rule, the selector of elements that may break it. ``of`` are
    the selectors of what is looked at. Colours that are still changing are brought to their end first.
    """
    from axe_playwright_python.base import AXE_SCRIPT

    page.evaluate(AXE_SCRIPT)
    end_animations(page)
    return page.evaluate(
        """async ([parts, spared]) => {
            const found = await axe.run({include: parts.map(part => [part])}, {elementRef: true});
            const bad = found.violations.filter(rule => ["serious", "critical"].includes(rule.impact));
            return bad.flatMap(rule => rule.nodes
                .filter(node => !(rule.id in spared && node.element.matches(spared[rule.id])))
                .map(node => `${rule.id}: ${node.failureSummary} ${node.html.slice(0, 300)}`));
        }""",
        [[part for part in of if page.locator(part).count()], {**NOT_OURS, **(but or {})}],
    )
