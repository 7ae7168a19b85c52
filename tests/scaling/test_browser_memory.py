"""Lesson 9's widget in JupyterLab and Chromium, in a notebook with one cell."""

import pytest
from playwright.sync_api import expect

from browser import all_outputs, axe_complaints, control, run_all
from controls import change_all_by_keyboard, change_all_by_mouse, fill, message_of, widget_with

LESSON = "memory.ipynb"
CELL = """\
from dgc_lab.scaling import MemoryExplorer

explorer = MemoryExplorer()
explorer"""
PICTURE = "img[alt^='Memory of a rank']"
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("screenshot_of_a_failure")]


def widget(page):
    return widget_with(page, PICTURE)


def message(page, words):
    return message_of(widget(page), words)


def test_widget_appears_with_figure_and_table(page):
    run_all(page)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    message(page, "Llama 3 8B with 8.03 billion parameters on 8 ranks of 80 GB")
    expect(widget(page).locator("tbody tr")).to_have_count(4)


def test_controls_change_figure_message_and_table(page):
    before = widget(page).locator(PICTURE).get_attribute("src")
    control(page, "Model").select_option("GPT-2 XL")
    message(page, "GPT-2 XL with 1.558 billion parameters on 8 ranks")
    expect(control(page, "Parameters, 10⁶")).to_have_value("1557.611")
    handle = widget(page).locator(".noUi-handle").first
    handle.focus()
    handle.press("ArrowRight")
    message(page, "on 16 ranks")
    fill(page, {"Device, GB": "10"})
    message(page, "of 10 GB fits with ZeRO 1, ZeRO 2, ZeRO 3, FSDP")
    assert widget(page).locator(PICTURE).get_attribute("src") != before
    alt = widget(page).locator(PICTURE).get_attribute("alt")
    row = widget(page).locator("tbody tr", has_text="ZeRO 1").inner_text().split("\t")
    assert f"ZeRO 1: {float(row[4]):.3g} GB, fits" in alt


def test_invalid_values_are_reported_until_corrected(page):
    fill(page, {"Device, GB": "-3"})
    expect(message(page, "memory must be above 0 GB, got -3")).to_have_attribute("role", "alert")
    fill(page, {"Device, GB": "24"})
    expect(message(page, "of 24 GB fits with")).to_have_attribute("role", "status")


def test_every_control_works_by_mouse_and_keyboard(page):
    change_all_by_mouse(page, widget(page), "explorer")
    change_all_by_keyboard(page, widget(page), "explorer")


def test_widget_is_accessible(page):
    assert not axe_complaints(page)


def test_console_shows_no_complaints(page):
    assert page.complaints == []
