"""Lesson 6's widget in JupyterLab and Chromium, in a notebook with one cell."""

import re

import pytest
from playwright.sync_api import expect

from browser import ROOT, all_outputs, axe_complaints, control, run_all
from controls import change_all_by_keyboard, change_all_by_mouse, fill, message_of, widget_with

LESSON = "scale.ipynb"
CELL = """\
from dgc_lab.scaling.network import Link
from dgc_lab.scaling.widget import ScaleExplorer
from dgc_lab.scaling.timing import StepTimes

times = StepTimes(0.05, 0.01, 1e-8, "measured here", "measured here")
explorer = ScaleExplorer(times, Link(1.0, latency=1e-3, efficiency=0.9, per_byte=1e-9))
explorer"""
PICTURE = "img[alt^='Speed-up, bytes and break-even']"
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("screenshot_of_a_failure")]


def widget(page):
    return widget_with(page, PICTURE)


def message(page, words):
    return message_of(widget(page), words)


def test_widget_appears_with_figure_and_table(page):
    run_all(page)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    message(page, "Modelled: mnist_cnn, 8 workers, 1 Gbit/s, ratio 0.001")
    expect(widget(page).locator("tbody tr")).to_have_count(5)


def test_controls_change_figure_message_and_table(page):
    before = widget(page).locator(PICTURE).get_attribute("src")
    control(page, "Model").select_option("ResNet-50")
    message(page, "ResNet-50, 8 workers.*Compute 100 ms: assumed")
    expect(control(page, "Compute, ms")).to_have_value("100")
    handle = widget(page).locator(".noUi-handle").first
    handle.focus()
    for _ in range(3):
        handle.press("ArrowRight")
    message(page, "ResNet-50, 64 workers")
    assert widget(page).locator(PICTURE).get_attribute("src") != before
    fill(page, {"Compute, ms": "250"})
    message(page, "Compute 250 ms: set by you")
    row = widget(page).locator("tbody tr", has_text="switching").inner_text().split("\t")
    assert row[1:3] == ["modelled", "64"]
    said = re.search(r"switching, modelled: speed-up ([\d.]+)", widget(page).locator(PICTURE).get_attribute("alt"))
    assert float(said[1]) == pytest.approx(float(row[4]), rel=0.005)  # each is rounded in its own way
    widget(page).screenshot(path=ROOT / "artefacts" / "scale_explorer.png")


def test_invalid_values_are_reported_until_corrected(page):
    fill(page, {"Latency, µs per hop": "-3"})
    expect(message(page, "latency must be at least 0 µs, got -3")).to_have_attribute("role", "alert")
    fill(page, {"Latency, µs per hop": "10"})
    expect(message(page, "Modelled: ResNet-50")).to_have_attribute("role", "status")


def test_every_control_works_by_mouse_and_keyboard(page):
    change_all_by_mouse(page, widget(page), "explorer")
    change_all_by_keyboard(page, widget(page), "explorer")


def test_widget_is_accessible(page):
    assert not axe_complaints(page)


@pytest.mark.nightly
def test_restart_and_run_all_works(page):
    run_all(page, restart=True)
    message(page, "Modelled: mnist_cnn, 8 workers, 1 Gbit/s, ratio 0.001")
    before = widget(page).locator(PICTURE).get_attribute("src")
    control(page, "Values").select_option("float16")
    expect(widget(page).locator(PICTURE)).not_to_have_attribute("src", before, timeout=30_000)


def test_console_shows_no_complaints(page):
    assert page.complaints == []
