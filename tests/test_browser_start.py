"""The first page in a real JupyterLab in a real Chromium: run it, move the one slider, press Run."""

import re

import pytest
from browser import BADGES, all_outputs, run_all, screenshot
from playwright.sync_api import expect

LESSON = "00_start_here.ipynb"
pytestmark = pytest.mark.usefixtures("screenshot_of_a_failure")


def widget(page):
    found = page.locator(".widget-vbox:has(button:has-text('Run'))").first
    found.scroll_into_view_if_needed()
    return found


def test_run_all_then_one_slider_and_one_curve_more(page):
    run_all(page)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    rows = widget(page).locator("table tbody tr")
    expect(rows).to_have_count(3)
    assert widget(page).locator(".widget-slider").count() == 1
    assert widget(page).get_by_role("textbox").count() == 0
    picture = widget(page).locator("img[alt^='Training loss']")
    before = picture.get_attribute("src")
    slider = page.locator(".widget-slider .noUi-handle").first
    slider.focus()
    slider.press("ArrowRight")
    widget(page).get_by_role("button", name="Run").click()
    widget(page).get_by_text(re.compile("Done: 1 row")).wait_for(timeout=60_000)
    expect(rows).to_have_count(4)
    assert picture.get_attribute("src") != before
    screenshot(page, "start_here")


def test_console_is_silent(page):
    assert not [complaint for complaint in page.complaints if complaint[1] not in BADGES]
