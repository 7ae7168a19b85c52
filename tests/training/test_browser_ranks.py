"""Lesson 5's widget on real Horovod ranks, in a real JupyterLab in a real Chromium.

In a notebook with that one cell: the lesson around it trains for minutes, and nbval runs it.
"""

import re
import time

import pytest
from browser import ROOT, all_outputs, axe_complaints, control, one_cell_notebook, run_all, screenshot
from controls import change_all_by_keyboard, change_all_by_mouse
from playwright.sync_api import expect

LESSON = "ranks.ipynb"
CELL = """\
from dgc_lab.training.distributed_widget import DistributedSweep

lab = DistributedSweep(ratios="1, 0.01, 0.001")
lab"""
pytestmark = [pytest.mark.usefixtures("screenshot_of_a_failure"), pytest.mark.usefixtures("horovod")]


@pytest.fixture(scope="module")
def lesson_file(tmp_path_factory):
    return one_cell_notebook(tmp_path_factory.mktemp("notebook"), LESSON, CELL)


def widget(page):
    found = page.locator(".widget-vbox:has(button:has-text('Run'))").first
    found.scroll_into_view_if_needed()
    return found


def table_rows(page):
    return widget(page).locator("table tbody tr").count()


def wait_for_message(page, words, seconds=120):
    widget(page).get_by_text(re.compile(words)).first.wait_for(timeout=1000 * seconds)


def fill(page, **values):
    for label, value in values.items():
        control(page, label).fill(value)
        control(page, label).press("Tab")


def test_the_widget_appears(page):
    run_all(page)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    wait_for_message(page, "Press Run to train")
    assert table_rows(page) == 0


def test_run_starts_the_ranks_and_switches_by_label_reach_them(page):
    fill(page, Ratios="1, 0.01", Steps="60")
    expect(control(page, "Momentum factor masking")).to_be_checked()
    control(page, "Momentum factor masking").uncheck()
    control(page, "Warm-up").select_option("geometric")
    control(page, "Values").select_option("float16")
    fill(page, **{"Clip norm": "1", "Steps a stage": "5"})
    expect(control(page, "Method")).to_have_value("no momentum factor masking", timeout=30_000)
    widget(page).get_by_role("button", name="Run").click()
    wait_for_message(page, "Done: 2 rows")
    assert table_rows(page) == 2
    widget(page).screenshot(path=ROOT / "artefacts" / "distributed_widget.png")


def test_another_method_is_drawn_live(page):
    fill(page, Ratios="0.01", Steps="4000")
    control(page, "Method").select_option("masking alone")
    expect(control(page, "Accumulate what is not sent")).not_to_be_checked(timeout=30_000)  # the kernel has answered
    widget(page).get_by_role("button", name="Run").click()
    wait_for_message(page, r"step \d+ of 4000")
    wait_for_message(page, r"a rank sends")
    seen, end = set(), time.monotonic() + 60
    while len(seen) < 3:
        assert time.monotonic() < end, "the plot does not move"
        seen.add(widget(page).locator("img[alt^='Training loss']").get_attribute("src"))
        time.sleep(0.1)
    screenshot(page, "distributed_running")


def test_stop_ends_all_ranks_soon_keeps_rows_and_run_goes_on(page):
    asked = time.monotonic()
    widget(page).get_by_role("button", name="Stop").click()
    wait_for_message(page, "Stopped at step")
    assert time.monotonic() - asked < 5
    assert table_rows(page) == 2
    fill(page, Steps="60")
    widget(page).get_by_role("button", name="Run").press("Enter")
    wait_for_message(page, "Done: 1 row")
    assert table_rows(page) == 3


def test_a_wrong_value_is_said_in_the_widget(page):
    fill(page, **{"Clip norm": "-1"})
    widget(page).get_by_role("button", name="Run").click()
    widget(page).get_by_role("alert").get_by_text("clip_norm must be above 0").wait_for(timeout=10_000)
    assert table_rows(page) == 3


def test_every_control_by_mouse_and_by_keyboard(page):
    change_all_by_mouse(page, widget(page), "lab")
    change_all_by_keyboard(page, widget(page), "lab")


def test_what_it_shows_is_accessible(page):
    assert not axe_complaints(page)


def test_restart_and_run_all(page):
    """The ranks of the kernel that was ended are no hindrance to new ones."""
    run_all(page, restart=True)
    wait_for_message(page, "Press Run to train")
    fill(page, Ratios="0.01", Steps="60")
    widget(page).get_by_role("button", name="Run").click()
    wait_for_message(page, "Done: 1 row")
    assert table_rows(page) == 1


def test_console_is_silent(page):
    assert page.complaints == []
