"""The judge against a student's process: what a test can query, what an answer cannot do, and what its page shows."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dgc_lab_grading.marking.worker import environment

# A minimal kernel: it runs cells in order, and forks the process at each test.
STUDENT = """
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
from dgc_lab_grading.marking.answers import keep
shell, path, answer, setup = InteractiveShell(), sys.argv[1], "", sys.argv[3]
for kind, place, source in json.load(sys.stdin):
    if kind == "marks":
        keep(shell, path, place, setup, answer)
    else:
        answer = source if kind == "answer" else answer
        shell.run_cell(source)
print("done", flush=True)
os.read(int(sys.argv[2]), 1)
"""
EXERCISE = """
# given setup
import math
import numpy as np
from dgc_lab.exercises.checking import asked_number, NotYet
VARIANT = 3
def check(answer, *arguments, right):
    try:
        found = asked_number(answer, *arguments, about="for this")
        print("right" if found == right else f"wrong: {found:g}")
        return found == right
    except NotYet as words:
        print(words)
# answer double
def double(x):
    return 2 * x
# marks marks-double
passed = check(double, 2, right=4)
### BEGIN HIDDEN TESTS
assert passed
assert double(1234567) == 2469134
assert np.array_equal(double(np.arange(4.0)), [0, 2, 4, 6])
### END HIDDEN TESTS
# answer quadruple
def quadruple(x):
    return double(double(x))
# marks marks-quadruple
passed = check(quadruple, 2, right=8)
### BEGIN HIDDEN TESTS
assert passed and quadruple(10) == 40 and double(1) == 2
### END HIDDEN TESTS
# answer my-sum
my_sum = sum(range(VARIANT + 1))
# marks marks-my-sum
print("your sum is", my_sum)
### BEGIN HIDDEN TESTS
assert my_sum == 6
### END HIDDEN TESTS
"""
RIGHT = {
    "double": "def double(x):\n    return 2 * x",
    "quadruple": "def quadruple(x):\n    return double(double(x))",
    "my-sum": "my_sum = 6",
}


def cells_of(text):
    cells = []
    for part in text.strip().split("\n# "):
        head, _, source = part.removeprefix("# ").partition("\n")
        kind, name = head.split()
        cells.append({"kind": kind, "name": name, "source": source, "place": len(cells)})
    return cells


def judged(answers=(), before="", after="", seconds=30, cells=None, setup="import math"):
    """Return the result of each test cell by name, and the judge's standard error for the instructor."""
    cells, mine = cells or cells_of(EXERCISE), RIGHT | dict(answers)
    student = [("own", -1, before)]
    for cell in cells:
        source = cell["source"] if cell["kind"] == "given" else mine.get(cell["name"], "")
        student.append((cell["kind"], cell["place"], source))
    student.append(("own", -1, after))
    given = {
        "cells": cells,
        "seconds": seconds,
        "cell_seconds": seconds,
        "lines": sorted({line.strip() for _, _, source in student for line in source.split("\n")}),
    }
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.join(folder, "s"))
        listener.listen(10)
        here, there = os.pipe()
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", STUDENT, listener.getsockname(), str(here), setup]
        own = environment(folder, folder)
        kernel = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, pass_fds=[here], cwd=folder, env=own)
        try:
            kernel.stdin.write(json.dumps(student))
            kernel.stdin.close()
            while kernel.stdout.readline() != "done\n":
                assert kernel.poll() is None
            number = listener.fileno()
            command = [sys.executable, "-m", "dgc_lab_grading.marking.judge", str(number)]
            done = subprocess.run(
                command, input=json.dumps(given), capture_output=True, text=True, pass_fds=[number], timeout=120
            )
        finally:
            os.close(there)
            os.close(here)
            kernel.wait(120)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[:1] == [{"ready": sum(cell["kind"] == "marks" for cell in cells)}], done.stderr
    return {line["name"].removeprefix("marks-"): line for line in lines[1:]}, done.stderr


def passed(results):
    return {name for name, result in results.items() if result["passed"]}


def test_right_answers_pass_and_the_page_shows_the_check():
    results, said = judged()
    assert passed(results) == {"double", "quadruple", "my-sum"}
    assert [result["printed"] for result in results.values()] == ["right\n", "right\n", "your sum is 6\n"]
    assert not said


def test_later_cells_cannot_change_an_answer():
    """Later cells cannot rebind an answer, nor a name that a test needs."""
    after = "double = my_sum = None\ncheck = np = VARIANT = lambda *words, **more: True"
    assert passed(judged(after=after)[0]) == {"double", "quadruple", "my-sum"}


def test_a_reference_stands_in_for_a_wrong_earlier_answer():
    results, _ = judged({"double": "def double(x):\n    ..."})
    assert passed(results) == {"quadruple", "my-sum"}
    assert "not attempted" in results["double"]["printed"]
    assert results["quadruple"]["remark"] == "right with the reference answer in place of double"
    assert results["quadruple"]["printed"].endswith(f"{results['quadruple']['remark']}\n")
    missing, _ = judged({"double": "double ="})  # a syntax error
    assert passed(missing) == {"quadruple", "my-sum"}


WITH_A_FUNCTION = """
# given setup
calls = []
def add_three(x):
    calls.append(x)
    if x > 100:
        raise ValueError("the secret of the test")
    return x + 3
# answer applied
def applied(function, x):
    return function(function(x))
# marks marks-applied
passed = applied(add_three, 1) == 7
### BEGIN HIDDEN TESTS
assert passed and calls == [1, 4] and applied(len, "ab") is None
### END HIDDEN TESTS
"""


@pytest.mark.nightly
def test_an_answer_may_call_a_function_of_the_test():
    """The function runs in the judge: an answer gets its results, and cannot inspect it."""
    answer = "def applied(function, x):\n    return None if x == 'ab' else function(function(x))"
    assert passed(judged({"applied": answer}, cells=cells_of(WITH_A_FUNCTION))[0]) == {"applied"}
    prying = "def applied(function, x):\n    raise ValueError(str(vars(function)) + repr(function.__code__.co_consts))"
    results, said = judged({"applied": prying}, cells=cells_of(WITH_A_FUNCTION))
    assert not passed(results)
    assert "secret" not in said
    results, said = judged(
        {"applied": "def applied(function, x):\n    return function(1000)"}, cells=cells_of(WITH_A_FUNCTION)
    )
    assert not passed(results)
    assert "the function that you called raised ValueError" in said
    assert "secret of the test" not in said


def test_a_students_error_is_shown_with_its_line():
    results, said = judged({"double": "def double(x):\n    table = [0, 2, 4]\n    return table[x]"})
    assert results["double"]["printed"] == "right\n"
    assert results["double"]["error"] == (
        "A test did not pass. The answer raised IndexError, in the line: return table[x]"
    )
    assert "list index out of range" in said, "for the instructor"
    results, _ = judged({"double": "def double(x):\n    return [][x]"})
    assert (
        "your function raised IndexError: list index out of range, in your line: return [][x]"
        in results["double"]["printed"]
    )


ENDS = {
    "exit code 3": "import os; os._exit(3)",
    "exit code 0": "import os; os._exit(0)",
    "SystemExit": "raise SystemExit",
    "kill": "import signal, os; os.kill(0, signal.SIGKILL)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
}


@pytest.mark.nightly_except("exit code 0")
@pytest.mark.parametrize("end", ENDS)
def test_ending_the_process_costs_only_its_own_task(end):
    results, _ = judged({"double": f"def double(x):\n    {ENDS[end]}"})
    assert passed(results) == {"quadruple", "my-sum"}
    assert ("raised SystemExit" if end == "SystemExit" else "ended its process") in json.dumps(results["double"])


def test_names_that_shadow_built_in_ones_do_no_harm():
    answer = "def double(x):\n    return sum([x, x])"
    results, _ = judged({"double": answer}, before="sum, list, print = 1, 2, 3")
    assert passed(results) == {"double", "quadruple", "my-sum"}
    assert results["double"]["remark"] == "right without names that shadow built-in ones"


NOTES = """
import json, os, threading
def double(x):
    file = "NOTES"
    old = open(file).read() if os.path.exists(file) else ""
    open(file, "a").write(repr(x))
    if "1234567" in old:
        raise ValueError("I was asked " + old)
    return 2 * x
"""


def test_arguments_of_hidden_tests_appear_on_no_page():
    """A function records its arguments, and returns the record in later calls."""
    notes = Path(f"/tmp/notes-{os.getpid()}")
    takes = NOTES.replace("NOTES", str(notes))
    try:
        tells = takes + "def quadruple(x):\n    return double(double(x))\n"
        results, said = judged({"double": takes, "quadruple": tells.replace("return 2 * x", "return 'asked ' + old")})
        assert "1234567" in notes.read_text(), "the function must have been called, or this test shows nothing"
        assert "1234567" in said
    finally:
        notes.unlink(missing_ok=True)
    assert "1234567" not in json.dumps(results)


def test_only_the_students_own_lines_are_shown():
    lie = "def double(x):\n    error = ValueError('x')\n    error.own_line = f'I was asked {x}'\n    raise error"
    results, _ = judged({"double": lie.replace("error =", "if x == 2:\n        return 4\n    error =")})
    assert "123" not in json.dumps(results["double"])
    assert results["double"]["error"] == "A test did not pass."


UNUSABLE = {
    "an endless answer": "[0] * 10**7",
    "an answer in itself": "(lambda a: a.append(a) or a)([])",
    "a very large array": "__import__('numpy').broadcast_to(1.0, 10**10)",
    "a number without an end": "10 ** 10**6",
    "not a number": "float('nan')",
    "a word of code": '\'__import__("os").system("true")\'',
    "an array of nothing": "__import__('numpy').array([])",
    "a dict that looks like a message": "{'kind': 'array', 'dtype': '|O', 'shape': [1], 'blob': 0}",
}


@pytest.mark.nightly_except("a dict that looks like a message")
@pytest.mark.parametrize("answer", UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_answer_costs_only_its_own_task(answer):
    results, _ = judged({"double": f"def double(x):\n    return 4 if isinstance(x, int) and x == 2 else {answer}"})
    assert passed(results) == {"quadruple", "my-sum"}
