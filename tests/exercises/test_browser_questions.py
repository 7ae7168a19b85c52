"""The questions of lesson 4 in JupyterLab and Chromium: mouse, keyboard, and a narrow window."""

import pytest
from playwright.sync_api import expect

from browser import ROOT, axe_complaints, run_all

LESSON = "questions.ipynb"
CELL = """\
from dgc_lab.exercises import Questions

Questions("04_dgc_masking")"""
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("screenshot_of_a_failure")]


def quiz(page):
    return page.locator(".jp-OutputArea-output .widget-vbox", has_text="A mask sends three of ten elements").first


def press_letter(page, question, letter):
    return quiz(page).locator(".widget-toggle-buttons").nth(question).get_by_role("button", name=letter, exact=True)


def picture(page, name):
    (ROOT / "artefacts").mkdir(exist_ok=True)
    quiz(page).screenshot(path=ROOT / "artefacts" / f"{name}.png")


def test_a_click_explains_the_answer(page):
    run_all(page)
    press_letter(page, 0, "A").click()
    expect(quiz(page).get_by_role("status").first).to_contain_text("A: Not quite. The mask compares absolute values")
    press_letter(page, 0, "C").click()
    expect(quiz(page).get_by_role("status").first).to_contain_text("C: Right. The threshold is")
    picture(page, "questions")


def test_the_keyboard_chooses_an_answer(page):
    press_letter(page, 1, "A").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(quiz(page).get_by_role("status").nth(1)).to_contain_text("B: ")


def test_questions_are_accessible(page):
    assert not axe_complaints(page)


def test_questions_fit_a_narrow_window(page):
    page.set_viewport_size({"width": 800, "height": 900})
    width = quiz(page).evaluate("quiz => [quiz.scrollWidth, quiz.clientWidth]")
    assert width[0] <= width[1]
    picture(page, "questions_800")
