"""A widget that asks the questions at the end of all lessons and explains each answer."""

from __future__ import annotations

import html

import ipywidgets

from dgc_lab.exercises.questions import Question, questions_of
from dgc_lab.ui.widget import close_all, message_line

LETTERS = "ABCD"


class Questions(ipywidgets.VBox):
    """Widget that asks the questions on a lesson and explains each chosen answer; every lesson ends with one.

    ``choices`` are the buttons of each question, and ``messages`` the explanations.

    Args:
        lesson: name of the lesson, for example ``"04_dgc_masking"``.

    Raises:
        ValueError: there is no such lesson.

    Example:
        >>> quiz = Questions("04_dgc_masking")
        >>> quiz.choices[0].value = "A"
        >>> "Right." in quiz.messages[0].value or "Not quite." in quiz.messages[0].value
        True
    """

    def __init__(self, lesson: str):
        self.choices, self.messages, rows = [], [], []
        for number, question in enumerate(questions_of(lesson), 1):
            text = ipywidgets.HTML(_as_html(number, question))
            choice = ipywidgets.ToggleButtons(
                options=list(LETTERS),
                value=None,
                description=f"Answer {number}",
                style={"button_width": "3em", "description_width": "initial"},
            )
            choice.tooltip = choice.description  # as in `dgc_lab.ui.widget.wide`
            message = ipywidgets.HTML()
            choice.observe(lambda change, of=question, message=message: _explain(of, change["new"], message), "value")
            self.choices.append(choice)
            self.messages.append(message)
            rows += [text, choice, message]
        super().__init__(rows)

    def close(self) -> None:
        """Close the widget and all its parts."""
        close_all(self)


def _as_html(number: int, question: Question) -> str:
    text = f"<p><b>{number}.</b> {html.escape(question.text)}</p>"
    answers = "".join(f"<li>{html.escape(answer.text)}</li>" for answer in question.answers)
    answers = f'<ol type="A" style="margin: 0.4em 0 0.4em 2em">{answers}</ol>'
    return f'<div class="dgc-lab-question" style="line-height: 1.5; max-width: 50em">{text}{answers}</div>'


def _explain(question: Question, letter: str, message: ipywidgets.HTML) -> None:
    answer = question.answers[LETTERS.index(letter)]
    message.value = message_line(f"{letter}: {'Right.' if answer.is_right else 'Not quite.'} {answer.why}")
