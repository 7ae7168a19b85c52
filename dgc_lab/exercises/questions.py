"""Three multiple-choice questions on each lesson, with an explanation for every answer.

They are in ``questions.toml``: a table for each question, named like its lesson, with the text, the right answer, the
reason, and three wrong answers with reasons. `dgc_lab.exercises.Questions` shows them at the end of the lesson, and
``python -m dgc_lab_grading questions`` exports them to learning platforms.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import NamedTuple

from dgc_lab.common import check_choice

FILE = Path(__file__).with_name("questions.toml")


class Answer(NamedTuple):
    """An answer to choose, and why it is right or wrong."""

    text: str
    why: str
    is_right: bool


class Question(NamedTuple):
    """A question, and its answers in the order in which they are shown."""

    name: str
    text: str
    answers: tuple[Answer, ...]


def read_questions() -> dict[str, tuple[Question, ...]]:
    """Return the questions by lesson. The order of the answers looks random, but is the same everywhere."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {
        lesson: tuple(_question(f"{lesson} {number}", table) for number, table in enumerate(rows, 1))
        for lesson, rows in tables.items()
    }


def questions_of(lesson: str) -> tuple[Question, ...]:
    """Return the questions on a lesson; raise ValueError if there is no such lesson."""
    every = read_questions()
    return every[check_choice("lesson", lesson, every)]


def _question(name: str, table: dict) -> Question:
    answers = [Answer(table["answer"], table["why"], True)]
    answers += [Answer(wrong["answer"], wrong["why"], False) for wrong in table["wrong"]]
    return Question(name, table["question"], tuple(sorted(answers, key=_shuffled)))


def _shuffled(answer: Answer) -> bytes:
    """Sort key that is unrelated to the meaning of an answer."""
    return hashlib.sha256(answer.text.encode()).digest()
