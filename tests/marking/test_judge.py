"""The tests' process against a student's: what an answer is asked, what it cannot do, and what its page shows."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dgc_lab.marking.worker import environment

# The part of a kernel that matters here: cells that run one after another, and a copy of the process at each test.
STUDENT = """
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
from dgc_lab.marking.answers import keep
shell, path = InteractiveShell(), sys.argv[1]
for kind, place, source in json.load(sys.stdin):
    if kind == "marks":
        keep(shell, path, place, "import math")
    else:
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


def judged(answers=(), before="", after="", seconds=30, cells=None):
    """What came of each marks cell, by name, and what the tests' process has said to the instructor."""
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
        command = [sys.executable, "-c", STUDENT, listener.getsockname(), str(here)]
        own = environment(folder, folder)
        kernel = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, pass_fds=[here], cwd=folder, env=own)
        try:
            kernel.stdin.write(json.dumps(student))
            kernel.stdin.close()
            while kernel.stdout.readline() != "done\n":
                assert kernel.poll() is None
            number = listener.fileno()
            command = [sys.executable, "-m", "dgc_lab.marking.judge", str(number)]
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


def test_an_answer_is_the_one_that_stood_before_its_test():
    """Not what a later cell makes of its name; and a name that a test needs is the exercise's own."""
    after = "double = my_sum = None\ncheck = np = VARIANT = lambda *words, **more: True"
    assert passed(judged(after=after)[0]) == {"double", "quadruple", "my-sum"}


def test_a_reference_stands_in_for_an_earlier_answer_and_this_is_said():
    results, _ = judged({"double": "def double(x):\n    ..."})
    assert passed(results) == {"quadruple", "my-sum"}
    assert "not attempted" in results["double"]["printed"]
    assert results["quadruple"]["remark"] == "right with the reference answer in place of double"
    assert results["quadruple"]["printed"].endswith(f"{results['quadruple']['remark']}\n")
    missing, _ = judged({"double": "double ="})  # the cell is no Python at all
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


def test_an_answer_may_be_given_a_function_to_call():
    """It runs in the tests' process: an answer gets what it gives back, and nothing of the function itself."""
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


def test_a_reference_stands_in_for_nothing_that_is_asked():
    """Neither for the answer itself, nor for a value that was calculated with a wrong one."""
    asks = "def double(x):\n    return double(x)"
    value = "my_sum = double(3)"
    results, _ = judged({"double": asks, "my-sum": value, "quadruple": "quadruple = double"})
    assert passed(results) == set()


def test_a_students_error_is_shown_with_the_students_line():
    results, said = judged({"double": "def double(x):\n    table = [0, 2, 4]\n    return table[x]"})
    assert results["double"]["printed"] == "right\n"
    assert results["double"]["error"] == (
        "A test did not pass. The answer raised IndexError, in the line: return table[x]"
    )
    assert "list index out of range" in said, "for the instructor"
    results, _ = judged({"double": "def double(x):\n    return [][x]"})
    assert "it raised IndexError: list index out of range, in your line: return [][x]" in results["double"]["printed"]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("import os; os._exit(3)", "ended its process"),
        ("import os; os._exit(0)", "ended its process"),
        ("raise SystemExit", "raised SystemExit"),
        ("import signal, os; os.kill(0, signal.SIGKILL)", "ended its process"),
        ("import ctypes; ctypes.string_at(0)", "ended its process"),
    ],
)
def test_an_answer_that_ends_its_process_costs_its_own_task(end, words):
    results, _ = judged({"double": f"def double(x):\n    {end}"})
    assert passed(results) == {"quadruple", "my-sum"}
    assert words in json.dumps(results["double"])


def test_what_takes_long_waits_until_all_else_is_done():
    slow = "def double(x):\n    while True:\n        pass"
    results, _ = judged({"double": slow}, seconds=20)
    assert passed(results) == {"my-sum", "quadruple"}
    assert "took longer than" in results["double"]["remark"]
    late = "import time\ndef double(x):\n    time.sleep(2.5)\n    return 2 * x"
    results, _ = judged({"double": late}, seconds=40)
    assert "double" in passed(results), "an answer may take its time"


ASKS_OFTEN = """
# given setup
import time
# answer double
def double(x):
    return 2 * x
# marks marks-double
assert double(1) == 2
### BEGIN HIDDEN TESTS
for number in range(3000):
    assert double(number) == 2 * number
### END HIDDEN TESTS
"""


def test_many_quick_answers_that_take_too_long_together_are_asked_again():
    quick = "import time\ndef double(x):\n    time.sleep(0.002)\n    return 2 * x"
    results, _ = judged({"double": quick}, cells=cells_of(ASKS_OFTEN), seconds=250)
    assert passed(results) == {"double"}, results


LATE_CLOCK = """
import signal, time
set_timer = signal.setitimer
signal.setitimer = lambda which, seconds: time.sleep(0.01 if seconds else 0.5) or set_timer(which, seconds)
def double(x):
    return 2 * x
"""


def test_a_copy_that_dies_of_its_clock_after_its_answer_spoils_no_later_attempt():
    """Its time was over when it had answered already: its end, told late, is not the end of the next copy."""
    results, _ = judged({"double": LATE_CLOCK}, cells=cells_of(ASKS_OFTEN.replace("3000", "12")), seconds=60)
    assert passed(results) == {"double"}, results


LENDS = """
# given setup
import os, time
VARIANT = "{0}"
def lent(x):
    if not os.path.exists(VARIANT):
        open(VARIANT, "w").close()
        time.sleep(12)
    return x + 3
# answer applied
def applied(function, x):
    return function(x)
# marks marks-applied
passed = applied(lent, 1) == 4
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS
"""


def test_time_that_a_function_of_the_tests_takes_leaves_nothing_to_the_next_attempt(tmp_path):
    """The copy that waited for it has died meanwhile, and what tells of that waits to be read."""
    answer = "def applied(function, x):\n    return function(x)"
    results, _ = judged({"applied": answer}, cells=cells_of(LENDS.format(tmp_path / "once")), seconds=60)
    assert passed(results) == {"applied"}, results


BUSY = """
# given setup
import os, time
VARIANT = "{0}"
# answer double
def double(x):
    return 2 * x
# marks marks-double
assert double(1) == 2
### BEGIN HIDDEN TESTS
if not os.path.exists(VARIANT):
    open(VARIANT, "w").close()
    end = time.monotonic() + 12
    while time.monotonic() < end:
        pass
assert double(2) == 4
### END HIDDEN TESTS
"""


def test_time_that_the_tests_have_lost_themselves_is_not_the_answers(tmp_path):
    results, _ = judged(cells=cells_of(BUSY.format(tmp_path / "once")), seconds=40)
    assert passed(results) == {"double"}, results


LATE_AND_WRONG = """
# given setup
import time
# answer double
def double(x):
    return 2 * x
# marks marks-double
pass
### BEGIN HIDDEN TESTS
class Slow(AssertionError):
    own_line = property(lambda self: time.sleep(1.5))
time.sleep(9)
raise Slow
### END HIDDEN TESTS
# answer my-sum
my_sum = 6
# marks marks-my-sum
assert my_sum == 6
"""


def test_words_that_take_long_end_nobody_elses_tests():
    """The clock struck while an error was put into words, and the judge died of it."""
    results, _ = judged(cells=cells_of(LATE_AND_WRONG), seconds=30)
    assert passed(results) == {"my-sum"}


def test_a_copy_of_the_process_that_begins_late_is_waited_for():
    """On a busy machine the last copy may have to connect still when the judge is ready."""
    late = """import os, time
pauses = iter([4])
os.register_at_fork(after_in_child=lambda: time.sleep(next(pauses, 0)))
my_sum = 6"""
    results, _ = judged({"my-sum": late})
    assert passed(results) == {"double", "quadruple", "my-sum"}


def test_a_copy_that_never_comes_is_told_of():
    results, _ = judged({"my-sum": "import os\nos.fork = lambda: 1\nmy_sum = 6"})
    assert passed(results) == {"double", "quadruple"}
    assert results["my-sum"]["remark"] == "no copy of the process came to be asked"


def test_a_reference_that_is_lent_to_one_task_answers_for_no_other():
    """One function takes its time and leaves what it is asked in a file; another one asks the reference for it."""
    notes = Path(f"/tmp/lent-{os.getpid()}.json")
    spy = f"""
import json, os, time
def double(x):
    if not isinstance(x, int):
        return x + x
    if os.path.exists({str(notes)!r}):
        told = json.load(open({str(notes)!r}))
        if told["asked"] == x and "answer" in told:
            return told["answer"]
    if x == 1234567:
        json.dump({{"asked": x}}, open({str(notes)!r}, "w"))
        time.sleep(60)
    return 4"""
    teller = f"""
def quadruple(x):
    if os.path.exists({str(notes)!r}):
        told = json.load(open({str(notes)!r}))
        json.dump(told | {{"answer": double(told["asked"])}}, open({str(notes)!r}, "w"))
    return 0"""
    try:
        results, _ = judged({"double": spy, "quadruple": teller}, seconds=30)
        assert json.loads(notes.read_text())["answer"] == 2469134, "it was lent, or this test shows nothing"
    finally:
        notes.unlink(missing_ok=True)
    assert passed(results) == {"my-sum"}


def test_an_answer_may_use_tensorflow_as_the_kernel_has_before_it():
    """Its threads are not in a copy of the process: what it would share out among them would not end."""
    ones = "import tensorflow as tf\nones = tf.ones([1000, 1000])\nones @ ones"
    answer = "def double(x):\n    return x * float((ones @ ones)[0, 0]) / 500"
    results, _ = judged({"double": answer}, before=ones)
    assert passed(results) == {"double", "quadruple", "my-sum"}, results


def test_names_that_hide_built_in_ones_harm_nobody():
    answer = "def double(x):\n    return sum([x, x])"
    results, _ = judged({"double": answer}, before="sum, list, print = 1, 2, 3")
    assert passed(results) == {"double", "quadruple", "my-sum"}
    assert results["double"]["remark"] == "right without names that hide built-in ones"


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


def test_what_hidden_tests_ask_is_on_no_page():
    """A function writes down what it is asked, and tells what it has read in whatever it is asked later."""
    notes = Path(f"/tmp/notes-{os.getpid()}")
    takes = NOTES.replace("NOTES", str(notes))
    try:
        tells = takes + "def quadruple(x):\n    return double(double(x))\n"
        results, said = judged({"double": takes, "quadruple": tells.replace("return 2 * x", "return 'asked ' + old")})
        assert "1234567" in notes.read_text(), "it was asked, or this test shows nothing"
        assert "1234567" in said
    finally:
        notes.unlink(missing_ok=True)
    assert "1234567" not in json.dumps(results)


def test_a_line_is_shown_only_where_it_is_one_of_the_students():
    lie = "def double(x):\n    error = ValueError('x')\n    error.own_line = f'I was asked {x}'\n    raise error"
    results, _ = judged({"double": lie.replace("error =", "if x == 2:\n        return 4\n    error =")})
    assert "123" not in json.dumps(results["double"])
    assert results["double"]["error"] == "A test did not pass."


FLOODS = {
    "an endless answer": "[0] * 10**7",
    "an answer in itself": "(lambda a: a.append(a) or a)([])",
    "a very large array": "__import__('numpy').broadcast_to(1.0, 10**10)",
    "a number without an end": "10 ** 10**6",
    "not a number": "float('nan')",
    "a word of code": '\'__import__("os").system("true")\'',
    "an array of nothing": "__import__('numpy').array([])",
    "a dict that looks like a message": "{'kind': 'array', 'dtype': '|O', 'shape': [1], 'blob': 0}",
}


@pytest.mark.parametrize("answer", FLOODS.values(), ids=FLOODS)
def test_an_answer_that_is_none_costs_its_own_task(answer):
    results, _ = judged({"double": f"def double(x):\n    return 4 if isinstance(x, int) and x == 2 else {answer}"})
    assert passed(results) == {"quadruple", "my-sum"}
