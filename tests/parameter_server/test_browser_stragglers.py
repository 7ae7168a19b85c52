"""Lesson 3's widget on real parameter servers, in JupyterLab and Chromium.

The notebook holds only the widget's cell; the full lesson trains for minutes and is tested with nbval.
"""

import time

import pytest
from playwright.sync_api import expect

from browser import ROOT, all_outputs, axe_complaints, control, run_all, screenshot
from controls import (
    by_mouse,
    change_all_by_keyboard,
    change_all_by_mouse,
    fill,
    kernel_values,
    press,
    rows,
    wait_for_another,
    wait_for_message,
    wait_for_pictures,
    widget,
)

LESSON = "stragglers.ipynb"
CELL = """\
from dgc_lab.parameter_server.widget import StragglerLab

lab = StragglerLab(gradients=240)
lab"""
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("screenshot_of_a_failure")]


def test_widget_is_displayed(page):
    run_all(page)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    wait_for_message(page, "Press Run to train")
    assert rows(page).count() == 0


def test_run_starts_servers_and_plots_update_live(page):
    control(page, "Mode").select_option("asynchronous")
    slowdown = widget(page).locator(".noUi-handle").nth(1)
    slowdown.focus()
    for _ in range(8):
        slowdown.press("ArrowRight")
    expect(widget(page).locator(".widget-readout").nth(1)).to_have_text("5.0")
    fill(page, {"Gradients": "100000"})
    press(page, "Run")
    wait_for_message(page, r"2 workers, asynchronous, worker 1 slowed 5 times: \d+ of 100000 gradients")
    wait_for_pictures(page, 4)
    time.sleep(3)  # wait until the plot has data
    screenshot(page, "stragglers_running")


def test_stop_ends_training_and_keeps_a_row(page):
    asked = time.monotonic()
    press(page, "Stop")
    wait_for_message(page, "Stopped: 2 workers, asynchronous")
    assert time.monotonic() - asked < 5
    expect(rows(page)).to_have_count(1)
    assert rows(page).inner_text().split("\t")[:2] == ["1, stopped", "asynchronous"]


def test_modes_have_their_own_controls_and_rows(page):
    fill(page, {"Gradients": "60"})
    for mode, own, hidden in (("bounded staleness", "Bound", "Backup"), ("backup workers", "Backup", "Bound")):
        control(page, "Mode").select_option(mode)
        expect(control(page, own)).to_be_visible(timeout=30_000)  # the kernel has replied
        expect(control(page, hidden)).to_be_hidden()
        before = kernel_values(page, "lab")
        by_mouse(page, control(page, own))
        wait_for_another(page, "lab", own, before)
        more = kernel_values(page, "lab")
        control(page, own).press("ArrowDown")
        control(page, own).press("Tab")
        wait_for_another(page, "lab", own, more)
        press(page, "Run")
        wait_for_message(page, f"Done: 2 workers, {mode}, worker 1 slowed 5 times: 60 of 60 gradients")
    expect(rows(page)).to_have_count(3)
    widget(page).screenshot(path=ROOT / "artefacts" / "stragglers_widget.png")


def test_widget_reports_an_invalid_value(page):
    fill(page, {"Learning rate": "0"})
    press(page, "Run")
    widget(page).get_by_role("alert").get_by_text("learning_rate must be above 0").wait_for(timeout=60_000)
    expect(rows(page)).to_have_count(3)


def test_every_control_works_by_mouse_and_keyboard(page):
    change_all_by_mouse(page, widget(page), "lab")
    change_all_by_keyboard(page, widget(page), "lab")


def test_widget_has_no_accessibility_violations(page):
    assert not axe_complaints(page)


def test_run_works_after_a_kernel_restart(page):
    """Servers of the previous kernel do not block new ones."""
    run_all(page, restart=True)
    wait_for_message(page, "Press Run to train")
    fill(page, {"Gradients": "60"})
    press(page, "Run")
    wait_for_message(page, "Done: 2 workers, synchronous: 60 of 60 gradients")
    expect(rows(page)).to_have_count(1)


def test_widget_logs_no_console_errors(page):
    assert page.complaints == []
