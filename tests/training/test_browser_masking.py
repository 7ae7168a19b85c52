"""Lesson 4 in JupyterLab and Chromium: run all cells, use the widget like a student, check the plot."""

import time

import pytest
from playwright.sync_api import expect

from browser import (
    BADGES,
    ROOT,
    all_outputs,
    axe_complaints,
    control,
    errors_of_all_cells,
    kernel_says,
    run_all,
    run_cell,
    screenshot,
)
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

LESSON = "04_dgc_masking.ipynb"
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("screenshot_of_a_failure")]


def default_sweep(page):
    """Press Run and wait until the default five ratios are trained."""
    assert rows(page).count() == 0
    press(page, "Run")
    wait_for_message(page, "Done: 5 rows")
    assert rows(page).count() == 5


def test_lesson_opens_without_dialogs(page):
    assert page.locator(".jp-Dialog").count() == 0
    assert page.get_by_text("Would you like to").count() == 0, "Jupyter still asks about its news feed"
    assert page.get_by_role("heading", name="Deep Gradient Compression 1: masking").count() == 1


def test_run_all_produces_every_output(page):
    run_all(page)
    assert errors_of_all_cells(page) == []
    default_sweep(page)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    # A widget's first picture describes all of its panels; the others say so with an empty text.
    pictures = page.locator(".jp-OutputArea-output img:first-of-type")
    assert all(pictures.nth(place).get_attribute("alt") for place in range(pictures.count()))
    assert page.locator(".jp-OutputArea-output img:not([alt])").count() == 0
    screenshot(page, "lesson4_run_all")
    widget(page).screenshot(path=ROOT / "artefacts" / "widget.png")


def test_lesson_has_no_accessibility_violations(page):
    assert not axe_complaints(page)


def test_saved_prediction_is_compared_with_the_results(page):
    quiz = page.locator(".widget-vbox:has(button:has-text('This is my prediction'))").first
    change_all_by_mouse(page, quiz, "guess")
    change_all_by_keyboard(page, quiz, "guess")
    quiz.get_by_role("button").press("Enter")
    expect(quiz.get_by_role("status").last).to_have_text("Prediction saved. Now run the experiment.")
    expect(quiz.get_by_role("button")).to_be_disabled()
    expect(quiz.locator(".noUi-target[disabled]")).to_have_count(4)
    cell = run_cell(page, "guess.confront(")
    predicted = kernel_says(page, "' '.join(f'{share:.2f}' for share in guess.saved.values())").strip("'").split()
    expect(cell.locator("tbody tr td:nth-of-type(1)")).to_have_text(predicted)
    expect(quiz.get_by_role("status").last).to_contain_text("furthest off for")


def test_slider_sets_the_ratio_and_plots_update_live(page):
    press(page, "Clear")
    wait_for_message(page, "Press Run")
    assert rows(page).count() == 0
    widget(page).locator(".noUi-handle").first.focus()
    before = control(page, "Ratios").input_value()
    page.keyboard.press("ArrowRight")
    expect(control(page, "Ratios")).not_to_have_value(before)
    assert 0 < float(control(page, "Ratios").input_value()) <= 1
    fill(page, {"Steps": "2500", "Ratios": "0.1, 0.01"})
    press(page, "Run")
    wait_for_message(page, r"step \d+ of 5000")
    wait_for_pictures(page, 4)
    wait_for_message(page, "Ratio 0.01: step")
    assert rows(page).count() == 1, "the first row must appear while the second ratio trains"
    screenshot(page, "widget_running")


def test_stop_keeps_finished_rows_and_run_resumes(page):
    asked = time.monotonic()
    press(page, "Stop")
    wait_for_message(page, "Stopped at step")
    assert time.monotonic() - asked < 3
    assert rows(page).count() == 1
    widget(page).get_by_role("button", name="Run").press("Enter")
    wait_for_message(page, "Done: 1 row", 120)
    assert rows(page).count() == 2


def test_widget_reports_an_invalid_value(page):
    fill(page, {"Ratios": "2"})
    press(page, "Run")
    widget(page).get_by_role("alert").get_by_text("ratios must be in [0, 1], got 2.0").wait_for(timeout=60_000)
    assert rows(page).count() == 2


def test_other_controls_work_by_label(page):
    control(page, "Ratios").fill("0.05")
    control(page, "Threshold").select_option("hierarchical")
    control(page, "Scope").select_option("one for all tensors")
    fill(page, {"Learning rate": "0.02", "Momentum": "0.8", "Batch": "32", "Steps": "50", "Seed": "3"})
    press(page, "Run")
    wait_for_message(page, "Done: 1 row")
    assert rows(page).count() == 3
    row = widget(page).locator("table tbody tr", has_text="hierarchical")
    assert "global" in row.inner_text()


def test_every_control_works_by_mouse_and_keyboard(page):
    change_all_by_mouse(page, widget(page), "lab")
    change_all_by_keyboard(page, widget(page), "lab")


@pytest.mark.nightly
def test_restart_and_run_all_repeats_the_sweep(page):
    run_all(page, restart=True)
    default_sweep(page)


def test_lesson_logs_no_console_errors(page):
    """Badge images are exempt: they are external and fail to load without a network."""
    ours = [complaint for complaint in page.complaints if complaint[1] not in BADGES]
    assert not ours
