"""Invalid values for every option of both command lines: status 1 or 2, an error message, no traceback."""

import argparse

import pytest

from dgc_lab import __main__ as lab
from dgc_lab_grading import __main__ as course

WORDS, NUMBERS = ("ten", "", "ключ ☃", "1.5.2"), ("nan", "-1", "1e999", "9" * 30)
# Invalid values by option name, otherwise by type.
BAD = {
    int: (*WORDS, *NUMBERS, "1.5"),
    float: (*WORDS, "nan", "-1"),
    course.at_least_one: (*WORDS, *NUMBERS, "0", "1.5"),
    course.above_zero: (*WORDS, *NUMBERS, "0"),
    course.after.points: (*WORDS, *NUMBERS),
    "data": ("/dev/null", "/nowhere"),
    "out": ("/", "/dev/full", "/dev/null/x"),
    "checkpoint": ("/dev/null", "/dev/null/x"),
    "ratios": (*WORDS, *NUMBERS, "0.1 0.1"),
    **dict.fromkeys(("dataset", "rule", "scope", "scheme", "warm_up", "values", "indices"), WORDS),
    **dict.fromkeys(("source", "roster", "secret", "folder", "submissions"), ("/dev/null/x", "/dev/null", "ключ ☃")),
    **dict.fromkeys(("moodle", "canvas", "brightspace", "blackboard", "to"), ("/dev/null/x",)),
    **dict.fromkeys(("assignment", "task", "student"), ("ключ ☃", "", "../..")),
}
# Required arguments; keeps training small if it starts anyway.
WHOLE = {
    **{"sweep": ["--steps", "1"], "train": ["--steps", "1"]},
    **{"new": ["04_masking"], "grade": ["04_masking", "/nowhere"], "publish": ["/dev/null/x"]},
    "override": ["jane", "04_masking", "marks-a", "1"],
}
RIGHT = {("new", "source", "ключ ☃")}  # valid: this folder is created


def cases(parser):
    """Yield a case for every command, option, and invalid value of a program."""
    [commands] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for command, found in commands.choices.items():
        for action in found._actions:
            for value in BAD.get(action.dest, BAD.get(action.type, ())) if action.nargs != 0 else ():
                if (command, action.dest, value) not in RIGHT:
                    yield pytest.param(found, command, action, value, id=f"{command} {action.dest}={value[:9]!r}")


def line_of(parser, command, action, value):
    """Return the command-line arguments, with the invalid value in its place."""
    words = [*WHOLE.get(command, [])]
    if action.option_strings:
        if action.dest == "roster":
            words = [*words, "--secret", "secret"]
        return [command, *words, f"{action.option_strings[-1]}={value}"]
    places = [each.dest for each in parser._actions if not each.option_strings]
    words += [""] * (len(places) - len(words)) if action.nargs is None else []
    place = places.index(action.dest)
    return [command, *words[:place], "--", value, *words[place + 1 :]]


def check(main, words, capsys, monkeypatch, folder):
    """Check for status 1 or 2 and an error message without a traceback."""
    monkeypatch.chdir(folder)
    (folder / "secret").write_text("a secret of the course")
    monkeypatch.setattr("os.umask", lambda mask: 0)
    try:
        status = main(words)
    except SystemExit as error:  # from argparse
        status = error.code
    printed, errors = capsys.readouterr()
    assert status in (1, 2), printed + errors
    assert errors.strip(), "no error message"
    assert "Traceback" not in errors


@pytest.mark.parametrize(("parser", "command", "action", "value"), list(cases(lab.parser())))
def test_lab_command_rejects_invalid_options(parser, command, action, value, capsys, monkeypatch, tmp_path):
    check(lab.main, line_of(parser, command, action, value), capsys, monkeypatch, tmp_path)


@pytest.mark.parametrize(("parser", "command", "action", "value"), list(cases(course.parser())))
def test_course_command_rejects_invalid_options(parser, command, action, value, capsys, monkeypatch, tmp_path):
    check(course.main, line_of(parser, command, action, value), capsys, monkeypatch, tmp_path)
