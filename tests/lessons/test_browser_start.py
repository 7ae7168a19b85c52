"""The first lesson in JupyterLab and Chromium: run all cells, move the slider, press Run."""

import contextlib
import re

import pytest
from playwright.sync_api import TimeoutError, expect

from browser import BADGES, all_outputs, axe_complaints, errors_of_all_cells, run_all, screenshot
from controls import change_all_by_keyboard, change_all_by_mouse, rows, widget

LESSON = "00_start_here.ipynb"
pytestmark = pytest.mark.usefixtures("screenshot_of_a_failure")


def watch_the_picture(page):
    """Record every figure drawn during training, which takes less than a second."""
    widget(page).locator("img").first.evaluate(
        """picture => {
            const top = picture.closest(".widget-vbox");
            window.pictures = new Set();
            new MutationObserver(() => {
                const shown = top.querySelector("img");
                if (shown && !top.innerText.includes("Done")) window.pictures.add(shown.src);
            }).observe(top, {subtree: true, childList: true, characterData: true});
        }"""
    )


def test_run_all_then_a_new_ratio_adds_a_curve(page):
    run_all(page)
    assert errors_of_all_cells(page) == []
    expect(rows(page)).to_have_count(3)
    assert widget(page).locator(".widget-slider").count() == 1
    assert widget(page).get_by_role("textbox").count() == 0
    change_all_by_mouse(page, widget(page), "taste")
    change_all_by_keyboard(page, widget(page), "taste")
    watch_the_picture(page)
    widget(page).get_by_role("button", name="Run").click()
    widget(page).get_by_text(re.compile("Done: 1 row")).wait_for(timeout=60_000)
    expect(rows(page)).to_have_count(4)
    assert page.evaluate("() => window.pictures.size") >= 2, "the figure must update during training"
    screenshot(page, "start_here")


def test_stop_keeps_finished_rows_and_run_continues(page):
    slider = widget(page).locator(".noUi-handle")
    run, stop = (widget(page).get_by_role("button", name=name) for name in ("Run", "Stop"))
    for _ in range(5):  # training takes less than a second and may finish before Stop
        before = slider.get_attribute("aria-valuenow")
        slider.press("ArrowLeft")  # finished rows are not trained again
        expect(slider).not_to_have_attribute("aria-valuenow", before)
        finished = rows(page).count()
        run.click()
        with contextlib.suppress(TimeoutError):
            stop.click(timeout=3000)
        expect(run).to_be_enabled(timeout=60_000)
        if widget(page).get_by_text(re.compile("Stopped at step")).count():
            break
    else:
        pytest.fail("Stop never took effect")
    expect(rows(page)).to_have_count(finished)
    run.press("Enter")
    widget(page).get_by_text(re.compile("Done: 1 row")).wait_for(timeout=60_000)
    expect(rows(page)).to_have_count(finished + 1)


def test_the_lesson_is_accessible(page):
    assert not axe_complaints(page)


@pytest.mark.nightly
def test_restart_and_run_all_works(page):
    run_all(page, restart=True)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    expect(rows(page)).to_have_count(3)


def test_console_shows_no_complaints(page):
    assert not [complaint for complaint in page.complaints if complaint[1] not in BADGES]
