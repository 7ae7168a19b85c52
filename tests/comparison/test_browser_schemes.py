"""Lesson 8's widget in JupyterLab and Chromium, by mouse and by keyboard.

The notebook has this one cell only: the full lesson trains for minutes, and nbval runs it.
"""

import time

import pytest
from playwright.sync_api import expect

from browser import ROOT, all_outputs, axe_complaints, control, run_all
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

LESSON = "schemes.ipynb"
CELL = """\
from dgc_lab.comparison import SchemeLab
from dgc_lab.compression import AllReduceMean, Scheme

def halved(gradient, state, context):
    mean = yield AllReduceMean(gradient / 2)
    return mean, gradient / 2, state

lab = SchemeLab(mine=Scheme(halved), workers=2)
lab"""
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("screenshot_of_a_failure")]


def test_widget_appears_with_a_custom_scheme(page):
    run_all(page)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    wait_for_message(page, "Press Run to train")
    expect(control(page, "Schemes")).to_have_value("halved")


def test_parameter_control_updates_the_scheme_list(page):
    control(page, "Scheme").select_option("PowerSGD")
    expect(control(page, "Schemes")).to_have_value("powersgd:rank=2", timeout=30_000)
    fill(page, {"Rank": "1"})
    expect(control(page, "Schemes")).to_have_value("powersgd:rank=1", timeout=30_000)
    control(page, "Sweep").select_option("one bit")
    expect(control(page, "Schemes")).to_have_value("dense sign signum ef_sign one_bit", timeout=30_000)


def test_runs_add_rows_and_offer_downloads(page):
    fill(page, {"Schemes": "halved sign top_k:ratio=0.01", "Steps": "60", "Seeds": "0, 1"})
    press(page, "Run")
    wait_for_message(page, "Done: 6 rows", 400)
    assert rows(page).count() == 6
    picture = widget(page).locator("img[alt^='Training loss']")
    assert "Right: test accuracy by kB per step and worker" in picture.get_attribute("alt")
    widget(page).screenshot(path=ROOT / "artefacts" / "scheme_lab.png")
    press(page, "Save")
    for name in ("table.csv", "picture.png", "picture.svg"):
        with page.expect_download() as saved:
            widget(page).locator(f"a[download='{name}']").click()
        data = saved.value.path().read_bytes()
        assert {"table.csv": b"sign", "picture.png": b"PNG", "picture.svg": b"<svg"}[name] in data
    widget(page).get_by_text("Table to copy").click()
    expect(widget(page).locator("details pre")).to_contain_text("top_k:ratio=0.01")


def test_stop_keeps_finished_rows(page):
    fill(page, {"Schemes": "dense", "Steps": "40000", "Seeds": "0"})
    press(page, "Run")
    wait_for_message(page, r"step \d+ of 40000")
    wait_for_pictures(page, 3)
    pressed = time.monotonic()
    press(page, "Stop")
    wait_for_message(page, "Stopped at step")
    assert time.monotonic() - pressed < 5
    assert rows(page).count() == 6


def test_widget_reports_invalid_values(page):
    fill(page, {"Schemes": "nonsense"})
    press(page, "Run")
    widget(page).get_by_role("alert").get_by_text("schemes must be one of").wait_for(timeout=60_000)


def test_every_control_works_by_mouse_and_keyboard(page):
    control(page, "Scheme").select_option("top-k")  # it and its neighbours in the list have a parameter
    expect(control(page, "Ratio")).to_be_enabled(timeout=30_000)
    change_all_by_mouse(page, widget(page), "lab")
    control(page, "Scheme").select_option("top-k")
    expect(control(page, "Ratio")).to_be_enabled(timeout=30_000)
    change_all_by_keyboard(page, widget(page), "lab")


def test_widget_is_accessible(page):
    assert not axe_complaints(page)


def test_console_shows_no_complaints(page):
    assert page.complaints == []
