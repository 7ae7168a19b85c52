"""The questions on the lessons as GIFT and QTI 2.1, read back by parsers of other projects.

pygiftparser reads GIFT. Pyslet, by an author of the QTI specification, not only reads items but runs them: it answers
each question with each answer, and applies the item's own rules for score and feedback.
"""

import io
import warnings
import zipfile

import pytest

from dgc_lab.exercises.questions import Answer, Question, read_questions
from dgc_lab_grading.__main__ import main
from dgc_lab_grading.course.questions import as_gift, write_qti

with warnings.catch_warnings():  # both use escapes in strings that Python will reject some day
    warnings.simplefilter("ignore")
    from pygiftparser import parser
    from pyslet.qtiv2.interactions import Prompt, SimpleChoice
    from pyslet.qtiv2.items import QTIModalFeedback
    from pyslet.qtiv2.variables import ItemSessionState
    from pyslet.qtiv2.xml import QTIDocument

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pyslet")
EVERY = read_questions()
QUESTIONS = [question for of_lesson in EVERY.values() for question in of_lesson]
# Characters with a meaning in GIFT or in XML, and letters beyond ASCII.
AWKWARD = Question(
    "09_awkward 1",
    "Is a = b ~ c # d: 50 % & <e> √n?",
    tuple(Answer(f"{letter}: 1 = 1 & <b> ~ #", f"\\ {letter} = 2 µ #~", letter == "C") for letter in "ABCD"),
)


def read_gift(text):
    """Parse GIFT with pygiftparser; return the questions as ours, without the escapes that it leaves in place."""
    found = parser.parseFile(io.StringIO(text))
    assert all(question.valid and not question.tail for question in found)

    def plain(words):
        return parser.transformSpecials(words).replace("\\\\", "\\")

    return [
        (
            question.cat,
            Question(
                question.title,
                plain(question.text),
                tuple(Answer(plain(a.answer), plain(a.feedback), a.fraction == 100) for a in question.answers.answers),
            ),
        )
        for question in found
    ]


def play_item(xml):
    """Answer an item with each of its choices in Pyslet; return it as a question of ours."""
    document = QTIDocument()
    document.read(io.BytesIO(xml))
    item, answers = document.root, []
    [prompt] = item.find_children_depth_first(Prompt)
    reasons = {
        feedback.get_attribute("identifier"): feedback for feedback in item.find_children_depth_first(QTIModalFeedback)
    }
    for choice in item.find_children_depth_first(SimpleChoice):
        session = ItemSessionState(item)
        session.begin_session()
        session.begin_attempt()
        session.submit_session({"RESPONSE": choice.identifier})
        why = reasons[session["FEEDBACK"].value]
        answers.append(Answer(text_of(choice), text_of(why), {1.0: True, 0.0: False}[session["SCORE"].value]))
    return Question(item.title, text_of(prompt), tuple(answers))


def text_of(element):
    return "".join(child if isinstance(child, str) else text_of(child) for child in element.get_children())


def played(file):
    with zipfile.ZipFile(file) as package:
        return [play_item(package.read(name)) for name in package.namelist() if name != "imsmanifest.xml"]


def test_gift_export_round_trips():
    assert [question for _, question in read_gift(as_gift(EVERY))] == QUESTIONS


def test_gift_export_has_a_category_for_each_lesson():
    assert {category for category, _ in read_gift(as_gift(EVERY))} == {f"DGC_Lab/{lesson}" for lesson in EVERY}


def test_qti_items_score_and_explain_every_answer(tmp_path):
    write_qti(EVERY, tmp_path / "all.zip")
    assert played(tmp_path / "all.zip") == QUESTIONS


def test_special_characters_survive_both_exports(tmp_path):
    awkward = {"09_awkward": (AWKWARD,)}
    assert [question for _, question in read_gift(as_gift(awkward))] == [AWKWARD]
    write_qti(awkward, tmp_path / "one.zip")
    assert played(tmp_path / "one.zip") == [AWKWARD]


def test_gift_export_escapes_braces():
    """pygiftparser would end the answers at an escaped brace."""
    braces = Question("09_braces 1", "{1}?", tuple(Answer(letter, "}", letter == "A") for letter in "ABCD"))
    assert as_gift({"09_braces": (braces,)}).splitlines()[2:4] == [r"::09_braces 1::[plain]\{1\}? {", r"=A#\}"]


def test_qti_manifest_lists_every_item(tmp_path):
    write_qti(EVERY, tmp_path / "all.zip")
    with zipfile.ZipFile(tmp_path / "all.zip") as package:
        manifest = package.read("imsmanifest.xml").decode()
        items = set(package.namelist()) - {"imsmanifest.xml"}
    assert {name for name in items if f'<file href="{name}" />' in manifest} == items
    assert manifest.count("<resource ") == len(items) == len(QUESTIONS)


def test_the_same_questions_give_the_same_zip(tmp_path):
    for name in ("first.zip", "second.zip"):
        write_qti(EVERY, tmp_path / name)
    assert (tmp_path / "first.zip").read_bytes() == (tmp_path / "second.zip").read_bytes()


def test_the_command_exports_chosen_lessons(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["questions", "04_dgc_masking"]) == 0
    assert capsys.readouterr().out == "3 questions in questions_gift.txt\n"
    assert len(read_gift((tmp_path / "questions_gift.txt").read_text(encoding="utf-8"))) == 3
    assert main(["questions", "--format", "qti", "--to", "bank.zip"]) == 0
    assert capsys.readouterr().out == f"{len(QUESTIONS)} questions in bank.zip\n"
    assert len(played(tmp_path / "bank.zip")) == len(QUESTIONS)


@pytest.mark.parametrize("lesson", ["04_masking", "", "../04_dgc_masking"])
def test_the_command_rejects_an_unknown_lesson(lesson, capsys):
    assert main(["questions", lesson]) == 2
    assert capsys.readouterr().err.startswith("LESSON must be among 00_start_here, ")
