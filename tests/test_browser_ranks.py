"""Lesson 5's widget on real Horovod ranks, in a real JupyterLab in a real Chromium."""

import re
import time

import pytest
from browser import BADGES, ROOT, all_outputs, control, run_all, screenshot
from playwright.sync_api import expect

LESSON = "05_dgc_on_horovod.ipynb"
pytestmark = pytest.mark.usefixtures("screenshot_of_a_failure")


def widget(page):
    found = page.locator(".widget-vbox:has(button:has-text('Run'))").first
    found.scroll_into_view_if_needed()
    return found


def table_rows(page):
    return widget(page).locator("table tbody tr").count()


def wait_for_message(page, words, seconds=120):
    widget(page).get_by_text(re.compile(words)).first.wait_for(timeout=1000 * seconds)


def fill(page, **values):
    for label, value in values.items():
        control(page, label).fill(value)
        control(page, label).press("Tab")


def test_run_all_fills_the_lesson(page):
    run_all(page, seconds=500)
    outputs = all_outputs(page)
    errors = [output["evalue"] for kind, output in outputs if kind == "error"]
    assert len(errors) == 1, errors
    assert "got Adam: Deep Gradient Compression is defined for SGD alone" in errors[0]
    pictures = [output["metadata"] for _, output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 5
    assert all(metadata["image/png"]["alt"] for metadata in pictures)
    screenshot(page, "lesson5_run_all")


def test_run_brings_the_stopped_ranks_back_and_draws_live(page):
    """The lesson's last cell has ended the ranks."""
    fill(page, Ratios="0.01", Steps="4000")
    control(page, "Method").select_option("masking alone")
    expect(control(page, "Accumulate what is not sent")).not_to_be_checked(timeout=30_000)
    widget(page).get_by_role("button", name="Run").click()
    wait_for_message(page, r"step \d+ of 4000")
    wait_for_message(page, r"a rank sends")
    seen, end = set(), time.monotonic() + 60
    while len(seen) < 3:
        assert time.monotonic() < end, "the plot does not move"
        seen.add(widget(page).locator("img[alt^='Training loss']").get_attribute("src"))
        time.sleep(0.1)
    screenshot(page, "distributed_running")


def test_stop_ends_all_ranks_soon(page):
    asked = time.monotonic()
    widget(page).get_by_role("button", name="Stop").click()
    wait_for_message(page, "Stopped at step")
    assert time.monotonic() - asked < 5
    assert table_rows(page) == 0


def test_switches_by_label_and_finished_rows(page):
    fill(page, Ratios="1, 0.01", Steps="60")
    control(page, "Method").select_option("complete DGC")
    expect(control(page, "Momentum factor masking")).to_be_checked(timeout=30_000)  # the kernel has answered
    control(page, "Momentum factor masking").uncheck()
    control(page, "Warm-up").select_option("geometric")
    control(page, "Values").select_option("float16")
    fill(page, **{"Clip norm": "1", "Steps a stage": "5"})
    expect(control(page, "Method")).to_have_value("no momentum factor masking", timeout=30_000)
    widget(page).get_by_role("button", name="Run").click()
    wait_for_message(page, "Done: 2 rows")
    assert table_rows(page) == 2
    widget(page).screenshot(path=ROOT / "artefacts" / "distributed_widget.png")


def test_a_wrong_value_is_said_in_the_widget(page):
    fill(page, **{"Clip norm": "-1"})
    widget(page).get_by_role("button", name="Run").click()
    widget(page).get_by_role("alert").get_by_text("clip_norm must be above 0").wait_for(timeout=10_000)
    assert table_rows(page) == 2


def test_console_is_silent_about_the_lesson(page):
    """But for the badges' pictures, which come from outside and stay away where there is no network."""
    assert not [complaint for complaint in page.complaints if complaint[1] not in BADGES]
