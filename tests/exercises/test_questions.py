"""The questions on the lessons: their form, the figures they quote, and the widget that asks them."""

import re
import tomllib
from collections import Counter

import nbformat
import pytest

from browser import ROOT
from dgc_lab.exercises import Questions
from dgc_lab.exercises.questions import FILE, read_questions

TEXTS = ROOT / "notebooks" / "text"
LESSONS = sorted(file.stem for file in TEXTS.glob("[0-9]*.md"))
TABLES = tomllib.loads(FILE.read_text(encoding="utf-8"))
QUESTIONS = [question for of_lesson in read_questions().values() for question in of_lesson]
NUMBER = re.compile(r"\d+(?:[ ,]\d{3})*(?:\.\d+)?")
SECTION = "## Three questions\n"


def lesson_text(lesson):
    """Return a lesson's text and code, and its stored outputs as text."""
    parts = [(TEXTS / f"{lesson}.md").read_text(encoding="utf-8")]
    for cell in nbformat.read(ROOT / "notebooks" / f"{lesson}.ipynb", as_version=4).cells:
        for output in cell.get("outputs", []):
            parts += [output.get("text", ""), output.get("data", {}).get("text/plain", "")]
    return "\n".join(parts)


def numbers_in(text):
    return {f"{float(re.sub('[ ,]', '', found)):g}" for found in NUMBER.findall(text)}


def test_every_lesson_has_three_questions():
    assert {lesson: len(rows) for lesson, rows in TABLES.items()} == dict.fromkeys(LESSONS, 3)


@pytest.mark.parametrize("lesson", TABLES)
def test_questions_have_one_right_and_three_wrong_answers(lesson):
    for table in TABLES[lesson]:
        assert set(table) == {"question", "answer", "why", "wrong"}
        assert [set(wrong) for wrong in table["wrong"]] == [{"answer", "why"}] * 3
        answers = [table["answer"], *(wrong["answer"] for wrong in table["wrong"])]
        reasons = [table["why"], *(wrong["why"] for wrong in table["wrong"])]
        assert len({*answers, *reasons}) == 8
        for text in (table["question"], *answers, *reasons):
            assert text == " ".join(text.split())
            assert re.fullmatch(r"[^`<>*\\]+", text), f"{text}: texts are plain, for all platforms"
        assert table["question"].endswith("?")
        assert all(reason.endswith(".") for reason in reasons)


@pytest.mark.parametrize("lesson", TABLES)
def test_figures_in_questions_are_in_the_lesson(lesson):
    shown = numbers_in(lesson_text(lesson))
    for table in TABLES[lesson]:
        for text in (table["question"], table["answer"], table["why"], *(wrong["why"] for wrong in table["wrong"])):
            assert numbers_in(text) - shown == set(), text


def test_form_does_not_reveal_the_right_answer():
    """The right answer is neither always the longest nor always at the same place."""
    longest = sum(max(question.answers, key=lambda answer: len(answer.text)).is_right for question in QUESTIONS)
    assert longest <= len(QUESTIONS) / 3
    places = Counter(next(n for n, a in enumerate(question.answers) if a.is_right) for question in QUESTIONS)
    assert set(places) == {0, 1, 2, 3}
    assert max(places.values()) <= len(QUESTIONS) / 2


def test_order_of_answers_is_stable():
    assert read_questions() == read_questions()
    answers = read_questions()["04_dgc_masking"][0].answers
    assert [answer.text.split()[1] for answer in answers] == ["three", "at", "three", "first"]


@pytest.mark.parametrize("lesson", TABLES)
def test_each_choice_shows_its_explanation(lesson):
    quiz = Questions(lesson)
    for question, choice, message in zip(read_questions()[lesson], quiz.choices, quiz.messages, strict=True):
        assert choice.value is None
        assert message.value == ""
        for letter, answer in zip("ABCD", question.answers, strict=True):
            choice.value = letter
            verdict = "Right." if answer.is_right else "Not quite."
            assert f">{letter}: {verdict} " in message.value
            assert answer.why.split("'")[0] in message.value
    quiz.close()


def test_questions_reject_an_unknown_lesson():
    with pytest.raises(ValueError, match=r"lesson must be one of 00_start_here, .*, got '04'"):
        Questions("04")


@pytest.mark.parametrize("lesson", LESSONS)
def test_lessons_end_with_their_questions(lesson):
    text = (TEXTS / f"{lesson}.md").read_text(encoding="utf-8")
    assert text.index("## What we saw") < text.index(SECTION) < text.index("## Exercises")
    assert f'Questions("{lesson}")' in text.partition(SECTION)[2].partition("## Exercises")[0]
