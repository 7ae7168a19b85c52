"""Lesson 1's widget in JupyterLab and Chromium, operated like a student would."""

import re
import time

import pytest

from browser import (
    BADGES,
    ROOT,
    all_outputs,
    axe_complaints,
    control,
    errors_of_all_cells,
    kernel_says,
    run_all,
    screenshot,
)
from controls import change_all_by_keyboard, change_all_by_mouse, widget_with

LESSON = "01_gradient_aggregation.ipynb"
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("screenshot_of_a_failure")]
PICTURE = "img[alt^='Relative error']"


def widget(page):
    return widget_with(page, PICTURE)


def picture(page):
    return widget(page).locator(PICTURE)


def wait_for(page, words, seconds=60):
    widget(page).locator("[role=status], [role=alert]").get_by_text(re.compile(words)).wait_for(timeout=1000 * seconds)


def test_run_all_shows_all_outputs(page):
    assert page.get_by_role("heading", name="Gradient aggregation").count() == 1
    run_all(page)
    wait_for(page, "sequential: relative error")
    outputs = all_outputs(page)
    errors = errors_of_all_cells(page)
    assert len(errors) == 2, "only the two calls the lesson expects to fail"
    assert "no attribute 'TREE'" in errors[0]
    assert "no attribute '_compute_gradients_sum'" in errors[1]
    pictures = [output["metadata"] for _, output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 7
    assert all(metadata["image/png"]["alt"] for metadata in pictures)
    screenshot(page, "lesson1_run_all")


def test_each_control_changes_the_figure(page):
    for label, choice in {"Dtype": "bfloat16", "Signs": "mixed", "Order": "descending", "Method": "kahan"}.items():
        before = picture(page).get_attribute("src")
        control(page, label).select_option(choice)
        page.wait_for_function(
            "([selector, before]) => document.querySelector(selector).src !== before", arg=[PICTURE, before]
        )
    wait_for(page, "kahan: relative error")
    widget(page).screenshot(path=ROOT / "artefacts" / "aggregation_explorer.png")


def test_sliders_respond_to_the_keyboard(page):
    handles = widget(page).locator(".noUi-handle")
    assert handles.count() == 2
    for number in range(2):
        before = picture(page).get_attribute("src")
        handles.nth(number).focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function(
            "([selector, before]) => document.querySelector(selector).src !== before", arg=[PICTURE, before]
        )
    readouts = widget(page).locator(".widget-readout").all_inner_texts()
    assert readouts == ["2048", "0.5"]


def test_rapid_slider_moves_show_the_final_value(page):
    handle = widget(page).locator(".noUi-handle").first
    handle.focus()
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert widget(page).locator(".widget-readout").first.inner_text() == "16"
    wait_for(page, "kahan: relative error")
    end = time.monotonic() + 120
    while kernel_says(page, "(explorer._measured[0][0], explorer._thread)") != "(16, None)":
        assert time.monotonic() < end, "the last slider position was not measured"
        time.sleep(0.2)
    seen, unchanged = picture(page).get_attribute("alt"), 0
    while unchanged < 10:
        assert time.monotonic() < end, "the figure keeps changing"
        time.sleep(0.2)
        now = picture(page).get_attribute("alt")
        seen, unchanged = now, unchanged + 1 if now == seen else 0
    assert kernel_says(page, "explorer._measured[0][0]") == "16", "the figure must show the last slider position"
    rows = dict(re.findall(r"(\w+): error ([\d.e+-]+),", seen))
    table = dict(row.split()[:2] for row in widget(page).locator("tbody tr").all_inner_texts())
    assert {name: float(error) for name, error in rows.items()} == pytest.approx(
        {name: float(error) for name, error in table.items()}, rel=0.1
    ), "table and figure must agree"


def test_every_control_works_by_mouse_and_keyboard(page):
    change_all_by_mouse(page, widget(page), "explorer")
    change_all_by_keyboard(page, widget(page), "explorer")


def test_the_lesson_is_accessible(page):
    assert not axe_complaints(page)


@pytest.mark.nightly
def test_restart_and_run_all_works(page):
    run_all(page, restart=True)
    wait_for(page, "sequential: relative error")
    control(page, "Method").select_option("add_n")
    wait_for(page, "add_n: relative error")


def test_console_shows_no_complaints(page):
    assert not [complaint for complaint in page.complaints if complaint[1] not in BADGES]
