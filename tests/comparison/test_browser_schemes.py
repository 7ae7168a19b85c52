"""Lesson 8's widget in a real JupyterLab in a real Chromium, by mouse and by keyboard.

In a notebook with that one cell: the lesson around it trains for minutes, and nbval runs it.
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


def test_the_widget_appears_with_ones_own_scheme(page):
    run_all(page)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    wait_for_message(page, "Press Run to train")
    expect(control(page, "Schemes")).to_have_value("halved")


def test_the_knob_writes_the_list(page):
    control(page, "Scheme").select_option("powersgd")
    expect(control(page, "Schemes")).to_have_value("powersgd:rank=2", timeout=30_000)
    fill(page, {"Rank": "1"})
    expect(control(page, "Schemes")).to_have_value("powersgd:rank=1", timeout=30_000)
    control(page, "Sweep").select_option("one bit")
    expect(control(page, "Schemes")).to_have_value("dense sign signum ef_sign one_bit", timeout=30_000)


def test_runs_grow_rows_and_what_saves_them(page):
    fill(page, {"Schemes": "halved sign top_k:ratio=0.01", "Steps": "60", "Seeds": "0, 1"})
    press(page, "Run")
    wait_for_message(page, "Done: 6 rows", 400)
    assert rows(page).count() == 6
    picture = widget(page).locator("img[alt^='Training loss']")
    assert "Right: test accuracy by kB a step and worker" in picture.get_attribute("alt")
    widget(page).screenshot(path=ROOT / "artefacts" / "scheme_lab.png")
    press(page, "Save")
    for name in ("table.csv", "picture.png", "picture.svg"):
        with page.expect_download() as saved:
            widget(page).locator(f"a[download='{name}']").click()
        data = saved.value.path().read_bytes()
        assert {"table.csv": b"sign", "picture.png": b"PNG", "picture.svg": b"<svg"}[name] in data
    widget(page).get_by_text("Table to copy").click()
    expect(widget(page).locator("details pre")).to_contain_text("top_k:ratio=0.01")


def test_stop_is_heard_and_keeps_the_rows(page):
    fill(page, {"Schemes": "dense", "Steps": "40000", "Seeds": "0"})
    press(page, "Run")
    wait_for_message(page, r"step \d+ of 40000")
    wait_for_pictures(page, 3)
    asked = time.monotonic()
    press(page, "Stop")
    wait_for_message(page, "Stopped at step")
    assert time.monotonic() - asked < 5
    assert rows(page).count() == 6


def test_a_wrong_value_is_said_in_the_widget(page):
    fill(page, {"Schemes": "nonsense"})
    press(page, "Run")
    widget(page).get_by_role("alert").get_by_text("schemes must be one of").wait_for(timeout=60_000)


def test_every_control_by_mouse_and_by_keyboard(page):
    control(page, "Scheme").select_option("top_k")  # it has a knob, and so have its neighbours in the list
    expect(control(page, "Ratio")).to_be_enabled(timeout=30_000)
    change_all_by_mouse(page, widget(page), "lab")
    control(page, "Scheme").select_option("top_k")
    expect(control(page, "Ratio")).to_be_enabled(timeout=30_000)
    change_all_by_keyboard(page, widget(page), "lab")


def test_what_it_shows_is_accessible(page):
    assert not axe_complaints(page)


def test_console_is_silent(page):
    assert page.complaints == []
