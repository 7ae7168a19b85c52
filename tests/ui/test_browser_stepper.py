"""The stepper with lesson 1's ring, in JupyterLab and Chromium: slider, play button, and reduced motion."""

import pytest
from playwright.sync_api import expect

from browser import ROOT, axe_complaints, kernel_says, run_all
from controls import change_all_by_keyboard, change_all_by_mouse, widget_with

LESSON = "stepper.ipynb"
CELL = """\
import numpy as np
from dgc_lab.aggregation import ring_step, ring_table
from dgc_lab.ui import Stepper

gradients = [np.float32([1, 2, 3, 4]) * 10**worker for worker in range(4)]
stepper = Stepper(lambda step: ring_step(gradients, step), 6, ring_table(gradients), step=3)
stepper"""
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("screenshot_of_a_failure")]
PICTURE = "img[alt*='ach worker']"


def widget(page):
    return widget_with(page, PICTURE)


def wait_for_step(page, step):
    expect(widget(page).locator("[role=status]")).to_have_text(f"Step {step} of 6.", timeout=60_000)


def test_stepper_shows_its_first_step(page):
    run_all(page)
    wait_for_step(page, 3)
    assert widget(page).locator(PICTURE).get_attribute("alt").startswith("Step 3 of 6")
    (ROOT / "artefacts").mkdir(exist_ok=True)
    widget(page).screenshot(path=ROOT / "artefacts" / "stepper.png")


def test_play_shows_the_remaining_steps_and_ends(page):
    widget(page).get_by_role("button", name="Play").click()
    widget(page).get_by_role("button", name="Pause").wait_for()
    wait_for_step(page, 6)
    widget(page).get_by_role("button", name="Play").wait_for()
    assert kernel_says(page, "stepper.values()") == "{'step': 6}"
    assert widget(page).locator(PICTURE).get_attribute("alt").startswith("Step 6 of 6")


def test_unfolded_table_stays_unfolded(page):
    widget(page).locator("summary").click()
    assert widget(page).locator("tbody tr").count() == 24
    handle = widget(page).locator(".noUi-handle")
    handle.focus()
    page.keyboard.press("ArrowLeft")
    wait_for_step(page, 5)
    assert widget(page).locator("tbody tr").first.is_visible()


def test_stepper_works_by_mouse_and_keyboard(page):
    change_all_by_mouse(page, widget(page), "stepper")
    change_all_by_keyboard(page, widget(page), "stepper")


def test_stepper_is_accessible(page):
    assert not axe_complaints(page)


def test_reduced_motion_hides_the_play_button(page):
    play = widget(page).locator(".dgc-lab-play")
    expect(play).to_be_visible()
    page.emulate_media(reduced_motion="reduce")
    expect(play).to_be_hidden()
    expect(widget(page).locator(".noUi-handle")).to_be_visible()
    page.emulate_media(reduced_motion="no-preference")
    expect(play).to_be_visible()


def test_console_shows_no_complaints(page):
    assert not page.complaints
