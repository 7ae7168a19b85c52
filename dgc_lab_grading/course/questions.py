"""Export the questions on the lessons to learning platforms, as Moodle GIFT or QTI 2.1.

Formats: https://docs.moodle.org/en/GIFT_format, https://www.imsglobal.org/question/qtiv2p1/imsqti_implv2p1.html
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from dgc_lab.common import LabError
from dgc_lab.exercises.questions import Question, read_questions

QTI = "http://www.imsglobal.org/xsd/imsqti_v2p1"
PACKAGE = "http://www.imsglobal.org/xsd/imscp_v1p1"
XSI = "http://www.w3.org/2001/XMLSchema-instance"
UNDATED = (1980, 1, 1, 0, 0, 0)  # so that the same questions give the same zip


def chosen_questions(lessons: Sequence[str]) -> dict[str, tuple[Question, ...]]:
    """Return the questions on these lessons, or on all of them if none is named; raise LabError for an unknown one."""
    every = read_questions()
    if unknown := [lesson for lesson in lessons if lesson not in every]:
        raise LabError(f"LESSON must be among {', '.join(every)}, got {unknown[0]!r}")
    return {lesson: every[lesson] for lesson in every if not lessons or lesson in lessons}


def as_gift(questions: Mapping[str, Sequence[Question]]) -> str:
    """Return questions as GIFT text, with a category for each lesson."""
    parts = []
    for lesson, of_lesson in questions.items():
        parts.append(f"$CATEGORY: DGC_Lab/{lesson}")
        for question in of_lesson:
            answers = [
                f"{'=' if answer.is_right else '~'}{_escaped(answer.text)}#{_escaped(answer.why)}"
                for answer in question.answers
            ]
            head = f"::{question.name}::[plain]{_escaped(question.text)} {{"
            parts.append("\n".join([head, *answers, "}"]))
    return "\n\n".join(parts) + "\n"


def write_gift(questions: Mapping[str, Sequence[Question]], target: Path) -> None:
    """Write questions as GIFT text."""
    target.write_text(as_gift(questions), encoding="utf-8")


def _escaped(text: str) -> str:
    return re.sub(r"([\\~=#{}:])", r"\\\1", text)


def write_qti(questions: Mapping[str, Sequence[Question]], target: Path) -> None:
    """Write questions as a QTI 2.1 content package: a zip with a file for each question, and a manifest."""
    files = {f"{question.name.replace(' ', '_')}.xml": question for each in questions.values() for question in each}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package:
        for name, root in {"imsmanifest.xml": _manifest(files), **{n: _item(q) for n, q in files.items()}}.items():
            ElementTree.indent(root)
            text = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
            package.writestr(zipfile.ZipInfo(name, UNDATED), text, zipfile.ZIP_DEFLATED)


# How and where each format is written.
FILES = {"gift": (write_gift, Path("questions_gift.txt")), "qti": (write_qti, Path("questions_qti.zip"))}


def _add(parent, tag: str, text: str | None = None, **attributes):
    child = ElementTree.SubElement(parent, tag, attributes)
    child.text = text
    return child


def _root(tag: str, namespace: str, schema: str, **attributes):
    attributes |= {"xmlns": namespace, "xmlns:xsi": XSI, "xsi:schemaLocation": f"{namespace} {schema}"}
    return ElementTree.Element(tag, attributes)


def _manifest(files: Mapping[str, Question]):
    root = _root(
        "manifest", PACKAGE, "http://www.imsglobal.org/xsd/qti/qtiv2p1/qtiv2p1_imscpv1p2_v1p0.xsd", identifier="DGC_Lab"
    )
    metadata = _add(root, "metadata")
    _add(metadata, "schema", "QTIv2.1 Package")
    _add(metadata, "schemaversion", "1.0.0")
    _add(root, "organizations")
    resources = _add(root, "resources")
    for name in files:
        entry = {"identifier": f"r_{Path(name).stem}", "type": "imsqti_item_xmlv2p1", "href": name}
        _add(_add(resources, "resource", **entry), "file", href=name)
    return root


def _item(question: Question):
    """Return a question as an assessmentItem that scores 1 or 0 and explains the chosen answer."""
    names = [f"answer_{letter}" for letter in "ABCD"]
    right = next(name for name, answer in zip(names, question.answers, strict=True) if answer.is_right)
    root = _root(
        "assessmentItem",
        QTI,
        "http://www.imsglobal.org/xsd/qti/qtiv2p1/imsqti_v2p1.xsd",
        identifier=f"q_{question.name.replace(' ', '_')}",
        title=question.name,
        adaptive="false",
        timeDependent="false",
    )
    declared = _add(root, "responseDeclaration", identifier="RESPONSE", cardinality="single", baseType="identifier")
    _add(_add(declared, "correctResponse"), "value", right)
    _add(root, "outcomeDeclaration", identifier="SCORE", cardinality="single", baseType="float")
    _add(root, "outcomeDeclaration", identifier="FEEDBACK", cardinality="single", baseType="identifier")
    choices = _add(
        _add(root, "itemBody"), "choiceInteraction", responseIdentifier="RESPONSE", shuffle="true", maxChoices="1"
    )
    _add(choices, "prompt", question.text)
    for name, answer in zip(names, question.answers, strict=True):
        _add(choices, "simpleChoice", answer.text, identifier=name)
    processing = _add(root, "responseProcessing")
    condition = _add(processing, "responseCondition")
    is_right = _add(condition, "responseIf")
    match = _add(is_right, "match")
    _add(match, "variable", identifier="RESPONSE")
    _add(match, "correct", identifier="RESPONSE")
    _set_score(is_right, "1")
    _set_score(_add(condition, "responseElse"), "0")
    _add(_add(processing, "setOutcomeValue", identifier="FEEDBACK"), "variable", identifier="RESPONSE")
    for name, answer in zip(names, question.answers, strict=True):
        _add(root, "modalFeedback", answer.why, outcomeIdentifier="FEEDBACK", identifier=name, showHide="show")
    return root


def _set_score(branch, score: str) -> None:
    _add(_add(branch, "setOutcomeValue", identifier="SCORE"), "baseValue", score, baseType="float")
