"""Fixtures that run Jupyter in Chromium, for tests that use a lesson like a student would.

A test module names its lesson in ``LESSON`` and uses these fixtures through `tests/conftest.py`
(`colab/conftest.py` provides the classic notebook front end instead of JupyterLab). Modules that need a notebook other
than a lesson define ``CELL`` or their own ``lesson_file``.
Needs Chromium or Chrome: without a browser these tests fail in continuous integration and are skipped elsewhere.
Screenshots are saved to ``artefacts/``.
"""

import contextlib
import functools
import http.server
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
# The token allows running code as this user. Servers get it from the environment, because all users can read commands.
TOKEN = secrets.token_urlsafe()
# axe-core checks only a notebook's outputs and texts; the rest of the page belongs to JupyterLab.
OURS = (".jp-OutputArea-output", ".jp-RenderedMarkdown")
# axe-core rules that JupyterLab and ipywidgets elements violate regardless of our content.
NOT_OURS = {
    # Wide tables scroll in their frame; arrow keys work anyway.
    "scrollable-region-focusable": ".jp-OutputArea-output",
    # ipywidgets gives slider handles no accessible name; the label is next to the slider.
    "aria-input-field-name": ".widget-slider .noUi-handle",
}
# Badge images are remote and fail to load without a network.
BADGES = ("https://colab.research.google.com/assets/colab-badge.svg", "https://mybinder.org/badge_logo.svg")


@pytest.fixture(scope="module")
def lesson_file(request, tmp_path_factory):
    """Path of the notebook under test: the lesson, or a notebook with only the module's ``CELL``."""
    if not hasattr(request.module, "CELL"):
        return ROOT / "notebooks" / request.module.LESSON
    return one_cell_notebook(tmp_path_factory.mktemp("notebook"), request.module.LESSON, request.module.CELL)


def one_cell_notebook(folder, name, source):
    """Write a one-cell notebook, for widgets whose lesson trains for minutes; return its path."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    nbformat.write(notebook, folder / name)
    return folder / name


# Below Linux's ephemeral ports, with a range per pytest-xdist worker: a server only binds its port seconds after it was
# chosen.
PORTS = itertools.count(20_000 + 2_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) + os.getpid() % 1_000)


def free_port():
    """Return an unused loopback port that no other caller gets."""
    for port in PORTS:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def served(folder, port, *command):
    """Start a Jupyter server with ``command``, wait until it is ready, and yield its address."""
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
    """Open an address in a new browser; console errors are collected in ``page.complaints``."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS, timeout=180_000)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(120_000)
        page.set_default_navigation_timeout(180_000)
        expect.set_options(timeout=30_000)  # kernel responses can be slow on a busy machine
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
def opened_folder(folder):
    """Serve a folder's pages on the loopback interface; yield a browser page, whose ``home`` is their address."""
    if BROWSER is None and not os.environ.get("CI"):
        pytest.skip("no Chromium or Chrome on this machine")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}"
        # Not home: Chromium asks for the icon of a list of files, which has none.
        with opened("about:blank") as page:
            page.home = home
            yield page
        server.shutdown()


@contextlib.contextmanager
def jupyterlab_on(files, folder, settings):
    """Start JupyterLab on copies of notebooks in ``folder``, on loopback with a token; yield its address.

    ``settings`` are JupyterLab user settings by extension and plugin.
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
    options += ["--KernelManager.transport_encryption=auto"]  # same as in `make lab`
    with served(folder, port, "jupyterlab", *options) as address:
        yield address


@contextlib.contextmanager
def opened_notebook(address, name):
    """Open a notebook in a new browser and wait for its kernel; in its own workspace, no other notebook is open."""
    with opened(f"{address}/lab/workspaces/{name.partition('.')[0]}/tree/{name}?token={TOKEN}") as page:
        page.locator(".jp-Notebook").wait_for(timeout=180_000)
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=180_000)
        yield page


@pytest.fixture(scope="module")
def jupyterlab(request, lesson_file, tmp_path_factory):
    """JupyterLab on a copy of the module's ``LESSON``, with its ``SETTINGS``; yields its address.

    If ``lesson_file`` is a list, all its files are copied.
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
    """Take a screenshot if the test fails; modules use this fixture for all their tests."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        screenshot(page, f"failed_{request.node.name}")


def screenshot(page, name):
    """Save a screenshot of the window to ``artefacts/NAME.png``."""
    folder = ROOT / "artefacts"
    folder.mkdir(exist_ok=True)
    page.screenshot(path=folder / f"{name}.png")


def run_all(page, restart=False):
    """Choose Run > Run All Cells and wait until all cells have run."""
    page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
    name = "Restart Kernel and Run All Cells" if restart else "Run All Cells"
    page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{name}")).first.click()
    if restart:
        page.get_by_role("button", name="Confirm Kernel Restart").click()
    wait_until_run(page)


# During a run, cells that have not run have no execution count. Prompts are not reliable: cells outside the window may
# be missing from the page.
CELLS_LEFT = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells].filter(
    cell => cell.type === "code" && cell.sharedModel.source.length && cell.executionCount === null).length"""


def wait_until_run(page):
    """Wait until all queued cells have run; fails if none finishes within five minutes."""
    # Finished when no cell has been queued or running for two seconds. The kernel is briefly idle between cells, longer
    # on slow machines; if it stays idle with cells left, an error ended the run.
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
    """Rerun the first code cell containing these words with Control+Enter and return it."""
    cell = page.locator(".jp-CodeCell", has_text=words).first
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    return cell


def all_outputs(page):
    """List (kind, output) for all code cells, including those outside the window."""
    cells = page.evaluate("() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells")
    return [(output["output_type"], output) for cell in cells for output in cell.get("outputs", [])]


def errors_of_all_cells(page):
    """List a lesson's error messages; checks that all cells ran once, in order, in this kernel."""
    cells = page.evaluate("() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells")
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in code]
    assert counts == list(range(1, len(code) + 1)), counts
    assert kernel_says(page, "len(In) - 1") == str(len(code))
    return [output["evalue"] for cell in code for output in cell["outputs"] if output["output_type"] == "error"]


def control(page, label):
    """Locate a control by its visible label."""
    return page.get_by_label(label, exact=True).first


def kernel_says(page, expression):
    """Return the ``repr`` of an expression evaluated in the lesson's kernel, outside the notebook."""
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
    """Finish all finite animations."""
    page.evaluate(
        """() => document.getAnimations()
            .filter(change => Number.isFinite(change.effect.getComputedTiming().endTime))
            .forEach(change => change.finish())"""
    )


def axe_complaints(page, but=None, of=OURS):
    """List serious and critical axe-core violations in the outputs and texts on the page.

    ``but`` adds exceptions to ``NOT_OURS``: {rule: selector of exempt elements}. ``of`` lists the selectors to check.
    Animations are finished first.
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
