"""Lesson 4 in a real JupyterLab in a real Chromium: run all, use the widget as a student does, look at the plot.

Needs Chromium or Chrome; in continuous integration its absence is an error, elsewhere the test is left out.
Screenshots go to ``artefacts/``.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LESSON = "04_dgc_masking.ipynb"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
TOKEN = "lesson-token"

if BROWSER is None and not os.environ.get("CI"):
    pytest.skip("no Chromium or Chrome on this machine", allow_module_level=True)


@pytest.fixture(scope="module")
def jupyterlab(tmp_path_factory):
    """JupyterLab on a copy of the lessons, loopback only, with a token; yields its address."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(ROOT / "notebooks" / LESSON, folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", f"--ServerApp.port={port}"]
    command += ["--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}"]
    log = (folder / "lab.log").open("w")
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JUPYTER_CONFIG_DIR": str(folder / "config")}
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    address = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{address}/api/status?token={TOKEN}", timeout=2)
            break
        except OSError:
            assert process.poll() is None, (folder / "lab.log").read_text()
            assert time.monotonic() < end, "JupyterLab did not start"
            time.sleep(0.2)
    yield address
    process.terminate()
    process.wait(20)
    log.close()


@pytest.fixture(autouse=True)
def screenshot_of_a_failure(request, page):
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        screenshot(page, f"failed_{request.node.name}")


@pytest.fixture(scope="module")
def page(jupyterlab):
    """The lesson, opened; messages of the browser's console are kept in ``page.complaints``."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.complaints = []
        page.on(
            "console",
            lambda said: page.complaints.append((said.text, said.location["url"])) if said.type == "error" else None,
        )
        page.on("pageerror", lambda error: page.complaints.append((str(error), "")))
        page.goto(f"{jupyterlab}/lab/tree/{LESSON}?token={TOKEN}")
        page.locator(".jp-Notebook").wait_for(timeout=60_000)
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
        yield page
        browser.close()


def screenshot(page, name):
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
    # Done when no cell has waited or run for two seconds; between cells the kernel is idle for a moment.
    end, calm = time.monotonic() + 180, 0
    while calm < 10:
        assert time.monotonic() < end, "the lesson did not finish"
        time.sleep(0.2)
        calm = 0 if page.locator(".jp-InputPrompt", has_text="[*]").count() else calm + 1


def control(page, label):
    """A control by the label that the student reads."""
    return page.get_by_label(label, exact=True).first


def widget(page):
    found = page.locator(".widget-vbox:has(button:has-text('Run'))").first
    found.scroll_into_view_if_needed()
    return found


def plot(page):
    return widget(page).locator("img[alt^='Training loss']").get_attribute("src")


def table_rows(page):
    return widget(page).locator("table tbody tr").count()


def wait_for_message(page, words, seconds=60):
    widget(page).get_by_text(re.compile(words)).wait_for(timeout=1000 * seconds)


def default_sweep(page):
    """What the lesson asks for first: press Run, and five ratios are trained."""
    assert table_rows(page) == 0
    widget(page).get_by_role("button", name="Run").click()
    wait_for_message(page, "Done: 5 rows")
    assert table_rows(page) == 5


def test_lesson_opens_without_questions(page):
    assert page.locator(".jp-Dialog").count() == 0
    assert page.get_by_text("Would you like to").count() == 0, "the question about Jupyter news is switched off"
    assert page.get_by_role("heading", name="Deep Gradient Compression 1: masking").count() == 1


def test_run_all_fills_the_lesson(page):
    run_all(page)
    default_sweep(page)
    errors = page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']")
    assert errors.count() == 0
    pictures = page.locator(".jp-OutputArea-output img")
    assert all(pictures.nth(place).get_attribute("alt") for place in range(pictures.count()))
    screenshot(page, "lesson4_run_all")
    widget(page).screenshot(path=ROOT / "artefacts" / "widget.png")


def test_slider_sets_the_ratio_and_run_draws_live(page):
    widget(page).get_by_role("button", name="Clear").click()
    wait_for_message(page, "Press Run")
    assert table_rows(page) == 0
    page.locator(".widget-slider .noUi-handle").first.focus()
    before = control(page, "Ratios").input_value()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "before => [...document.querySelectorAll('input')].every(i => i.value !== before)", arg=before
    )
    assert 0 < float(control(page, "Ratios").input_value()) <= 1
    steps = control(page, "Steps")
    steps.fill("2500")
    steps.press("Tab")
    control(page, "Ratios").fill("0.1, 0.01")
    control(page, "Ratios").press("Tab")
    widget(page).get_by_role("button", name="Run").click()
    wait_for_message(page, r"step \d+ of 5000")
    seen = {plot(page)}
    end = time.monotonic() + 60
    while len(seen) < 4:
        assert time.monotonic() < end, "the plot does not move"
        time.sleep(0.1)
        seen.add(plot(page))
    wait_for_message(page, "Ratio 0.01: step")
    assert table_rows(page) == 1, "the first ratio's row is there while the second one trains"
    screenshot(page, "widget_running")


def test_stop_keeps_finished_rows_and_run_goes_on(page):
    asked = time.monotonic()
    widget(page).get_by_role("button", name="Stop").click()
    wait_for_message(page, "Stopped at step")
    assert time.monotonic() - asked < 3
    assert table_rows(page) == 1
    widget(page).get_by_role("button", name="Run").press("Enter")
    wait_for_message(page, "Done: 1 row", 120)
    assert table_rows(page) == 2


def test_a_wrong_value_is_said_in_the_widget(page):
    control(page, "Ratios").fill("2")
    control(page, "Ratios").press("Tab")
    widget(page).get_by_role("button", name="Run").click()
    widget(page).get_by_role("alert").get_by_text("ratios must be in [0, 1], got 2.0").wait_for(timeout=10_000)
    assert table_rows(page) == 2


def test_other_controls_by_label(page):
    control(page, "Ratios").fill("0.05")
    control(page, "Threshold").select_option("hierarchical")
    control(page, "Whose").select_option("one over all tensors")
    for label, value in {"Learning rate": "0.02", "Momentum": "0.8", "Batch": "32", "Steps": "50", "Seed": "3"}.items():
        control(page, label).fill(value)
        control(page, label).press("Tab")
    widget(page).get_by_role("button", name="Run").click()
    wait_for_message(page, "Done: 1 row")
    assert table_rows(page) == 3
    row = widget(page).locator("table tbody tr", has_text="hierarchical")
    assert "global" in row.inner_text()


def test_restart_and_run_all(page):
    run_all(page, restart=True)
    default_sweep(page)


def test_console_is_silent_about_the_lesson(page):
    """But for the badges' pictures, which come from outside and stay away where there is no network."""
    badges = ("https://colab.research.google.com/assets/colab-badge.svg", "https://mybinder.org/badge_logo.svg")
    ours = [complaint for complaint in page.complaints if complaint[1] not in badges]
    assert not ours
