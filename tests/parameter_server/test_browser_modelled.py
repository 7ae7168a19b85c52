"""Lesson 3's widget of modelled timelines in JupyterLab and Chromium, in a notebook with one cell."""

import pytest
from playwright.sync_api import expect

from browser import all_outputs, axe_complaints, run_all, screenshot
from controls import change_all_by_keyboard, change_all_by_mouse, message_of, widget_with

LESSON = "modelled.ipynb"
CELL = """\
from dgc_lab.parameter_server import StragglerExplorer

explorer = StragglerExplorer()
explorer"""
PICTURE = "img[alt^='What workers did']"
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("screenshot_of_a_failure")]


def widget(page):
    return widget_with(page, PICTURE)


def test_widget_appears_with_figure_and_table(page):
    run_all(page)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    message_of(widget(page), "Of 4 workers, worker 3 takes 3 times as long")
    expect(widget(page).locator("tbody tr")).to_have_count(3)
    screenshot(page, "straggler_explorer")


def test_dragging_the_straggler_redraws_the_timelines(page):
    before = widget(page).locator(PICTURE).get_attribute("src")
    handle = widget(page).locator(".noUi-handle").first
    box = handle.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"], steps=8)
    page.mouse.up()
    message_of(widget(page), "Of 4 workers, worker 3 takes 10 times as long")
    assert widget(page).locator(PICTURE).get_attribute("src") != before


def test_every_control_works_by_mouse_and_keyboard(page):
    change_all_by_mouse(page, widget(page), "explorer")
    change_all_by_keyboard(page, widget(page), "explorer")


def test_widget_is_accessible(page):
    assert not axe_complaints(page)


def test_console_shows_no_complaints(page):
    assert page.complaints == []
