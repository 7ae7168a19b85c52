"""Lesson 5's widget on real Horovod ranks, in JupyterLab and Chromium.

The notebook holds only the widget's cell; the full lesson trains for minutes and is tested with nbval.
"""

import time

import pytest
from playwright.sync_api import expect

from browser import ROOT, all_outputs, axe_complaints, control, run_all, screenshot
from controls import (
    change_all_by_keyboard,
    change_all_by_mouse,
    fill,
    press,
    rows,
    wait_for_message,
    wait_for_pictures,
    widget,
)

LESSON = "ranks.ipynb"
CELL = """\
from dgc_lab.training.distributed_widget import DistributedSweep

lab = DistributedSweep(ratios="1, 0.01, 0.001")
lab"""
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.usefixtures("screenshot_of_a_failure"),
    pytest.mark.usefixtures("horovod"),
]


def test_widget_is_displayed(page):
    run_all(page)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    wait_for_message(page, "Press Run to train")
    assert rows(page).count() == 0


def test_run_starts_ranks_with_the_selected_switches(page):
    fill(page, {"Ratios": "1, 0.01", "Steps": "60"})
    expect(control(page, "Momentum factor masking")).to_be_checked()
    control(page, "Momentum factor masking").uncheck()
    control(page, "Warm-up").select_option("geometric")
    control(page, "Values").select_option("float16")
    fill(page, {"Clip norm": "1", "Steps/stage": "5"})
    expect(control(page, "Method")).to_have_value("no momentum factor masking", timeout=30_000)
    press(page, "Run")
    wait_for_message(page, "Done: 2 rows")
    assert rows(page).count() == 2
    widget(page).screenshot(path=ROOT / "artefacts" / "distributed_widget.png")


def test_another_method_updates_plots_live(page):
    fill(page, {"Ratios": "0.01", "Steps": "4000"})
    control(page, "Method").select_option("masking alone")
    expect(control(page, "Accumulate unsent elements")).not_to_be_checked(timeout=30_000)  # the kernel has replied
    press(page, "Run")
    wait_for_message(page, r"step \d+ of 4000")
    wait_for_message(page, r"a rank sends")
    wait_for_pictures(page, 3)
    screenshot(page, "distributed_running")


def test_stop_halts_ranks_keeps_rows_and_run_resumes(page):
    asked = time.monotonic()
    press(page, "Stop")
    wait_for_message(page, "Stopped at step")
    assert time.monotonic() - asked < 5
    assert rows(page).count() == 2
    fill(page, {"Steps": "60"})
    widget(page).get_by_role("button", name="Run").press("Enter")
    wait_for_message(page, "Done: 1 row")
    assert rows(page).count() == 3


def test_widget_reports_an_invalid_value(page):
    fill(page, {"Clip norm": "-1"})
    press(page, "Run")
    widget(page).get_by_role("alert").get_by_text("clip_norm must be above 0").wait_for(timeout=60_000)
    assert rows(page).count() == 3


def test_every_control_works_by_mouse_and_keyboard(page):
    change_all_by_mouse(page, widget(page), "lab")
    change_all_by_keyboard(page, widget(page), "lab")


def test_widget_has_no_accessibility_violations(page):
    assert not axe_complaints(page)


def test_run_works_after_a_kernel_restart(page):
    """Ranks of the previous kernel do not block new ones."""
    run_all(page, restart=True)
    wait_for_message(page, "Press Run to train")
    fill(page, {"Ratios": "0.01", "Steps": "60"})
    press(page, "Run")
    wait_for_message(page, "Done: 1 row")
    assert rows(page).count() == 1


def test_widget_logs_no_console_errors(page):
    assert page.complaints == []
