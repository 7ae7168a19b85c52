"""Run the tests in their own process: ``python -m dgc_lab_grading.marking.judge FD``.

It reads the exercise as JSON and prints a line of JSON per result. It runs the exercise's source: the given cells, the
reference answers, and each test cell at its place. In a test, the answer before it is the student's: a value sent over
the `channel`, or a function that calls the student's process (`answers`). All other names are the reference's. So a
student's code cannot affect a test, and a test affects a student's process only by calling functions.

The output that students may read, from checks that they also have, is recorded before the first hidden test: no later
answer can reveal what a hidden test asked. Slow tests are tried again after all others. Tests that still fail are tried
once more, with the references in place of earlier failed answers, and without the student's names that shadow built-in
ones; an answer that is a value is computed again. A process that has called a reference could leak its results to
others in a file, so no answer is queried after its own reference was used.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import json
import re
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass

import numpy as np

from dgc_lab.exercises.checking import own_line
from dgc_lab_grading.marking.sandbox import close_home
from dgc_lab_grading.marking.session import ENDED, Gone, OutOfTime, Session, connected

HIDDEN = re.compile(r"^[ \t]*### BEGIN HIDDEN TESTS", re.MULTILINE)
SECONDS_FIRST, SECONDS_TO_REPORT = 5, 5  # for a test's first attempt; for the student's process to report a timeout
NO_COPY = "was not tested: no fork of the process connected"
MOST_PRINTED = 20_000  # characters of a check's output
FAILED = "A test did not pass."
VALUES = (bool, int, float, complex, str, list, tuple, dict, set, np.ndarray, np.generic)  # may replace a student's


@dataclass
class TestCell:
    """A test cell: its two parts, the names it uses, and its result."""

    name: str
    place: int | None  # None if the student's process never got there
    shown: str
    hidden: str
    space: dict  # the reference's names at this place
    answer: str  # the grade_id of the answer before it
    own: set[str]  # names that the answer defines and the tests use
    defined: dict  # functions and values that the answer defines, by name, as far as they can be sent
    passed: bool = False
    slow: bool = False
    printed: str = ""
    error: str = ""
    remark: str = ""

    def print_result(self) -> None:
        """Print the result; a later line replaces an earlier one."""
        names = ("name", "passed", "printed", "error", "remark")
        print(json.dumps({name: getattr(self, name) for name in names}), file=sys.__stdout__, flush=True)


def read_tests(cells: list[dict]) -> list[TestCell]:
    """Run an exercise's source, and collect its test cells."""
    space, tests, answer, defined = {"__name__": "__main__"}, [], "", {}
    for cell in cells:
        source = cell["source"]
        if cell["kind"] == "marks":
            used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
            begin = HIDDEN.search(source)
            cut = begin.start() if begin else len(source)
            hidden = "\n" * source[:cut].count("\n") + source[cut:]  # keeps the line numbers of errors
            sent = {name: value for name, value in defined.items() if callable(value) or isinstance(value, VALUES)}
            own = used & set(defined)
            tests.append(TestCell(cell["name"], cell["place"], source[:cut], hidden, dict(space), answer, own, sent))
            continue
        before = dict(space)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, f"<{cell['name']}>", "exec"), space)
        if cell["kind"] == "answer":
            answer = cell["name"]
            defined = {name: value for name, value in space.items() if before.get(name, before) is not value}
    return tests


class Judge:
    """Runner for the tests of one exercise against one student's process."""

    def __init__(self, tests: list[TestCell], connections: dict, seconds: float, cell_seconds: float, lines: set[str]):
        self.tests, self.connections, self.lines = tests, connections, lines
        self.deadline, self.cell_seconds = time.monotonic() + seconds, cell_seconds

    def run(self) -> None:
        """Run all tests, in the order given at the top of this module."""
        begun = [(test, self._shown(test)) for test in self.tests]
        for test, session_and_names in begun:
            self._hidden(test, *session_and_names)
            test.print_result()
        slow = [test for test in self.tests if test.slow]
        last = SECONDS_FIRST * sum(not test.passed for test in self.tests)  # reserved for attempts with references
        until = self.deadline - min(last, (self.deadline - time.monotonic()) / 2)
        for number, test in enumerate(slow):
            left = (until - time.monotonic()) / (len(slow) - number)
            if left > SECONDS_FIRST and self._again(test, left):
                test.print_result()
        for test in self.tests:  # in this order no fork is queried after its own reference was lent to another
            if not test.passed and time.monotonic() < self.deadline:
                self._with_references(test)

    def _again(self, test: TestCell, seconds: float, references: dict | None = None) -> bool:
        """Try a test once more, updating only the result on its page; return whether it passed."""
        kept, test.slow = test.printed, False
        self._hidden(test, *self._shown(test, seconds, references, late=True), seconds)
        test.printed = kept
        return test.passed

    def _with_references(self, test: TestCell) -> None:
        """Try a test once more if failures of earlier answers may be why it did not pass."""
        failed = [each for each in self.tests[: self.tests.index(test)] if not each.passed]
        names = {name for each in failed if each.answer != test.answer for name in each.defined} - set(test.defined)
        before = test.error, test.remark
        if self._again(test, SECONDS_FIRST, {name: test.space[name] for name in sorted(names)}):
            stand_in = f"with the reference answer in place of {', '.join(sorted(names))}"
            test.remark = f"right {stand_in if names else 'without names that shadow built-in ones'}"
            test.printed += f"{test.remark}\n"
            test.print_result()
        else:
            test.error, test.remark = before

    def _shown(self, test: TestCell, seconds: float = SECONDS_FIRST, references=None, late=False):
        """Begin an attempt, and run the visible part; return None and None if the attempt is over."""
        if test.place not in self.connections:
            if not test.error:
                test.error = "Earlier cells did not run, so there is no answer."
                test.remark = NO_COPY if test.place is not None else ""
            return None, None
        test.error = test.remark = ""
        with self._limit(test, seconds, late):
            again = not all(map(callable, (test.defined.get(name) for name in test.own)))
            session = Session(self.connections[test.place], self.until, references, again)
            if references is not None and not session.changed:
                session.end()
                return None, None
            space = {name: value for name, value in test.space.items() if name not in test.own}
            try:
                space.update(session.names(test.own))
                self._exec(test, test.shown, space)
                return session, space
            except BaseException:
                session.end()
                raise
        return None, None

    def _hidden(
        self, test: TestCell, session: Session | None, space: dict | None, seconds: float = SECONDS_FIRST
    ) -> None:
        """Run the hidden tests, and end the attempt."""
        if session is None:
            return
        with self._limit(test, seconds, late=True):
            session.until = self.until
            try:
                printed = test.printed
                self._exec(test, test.hidden, space)
                test.passed = True
            finally:
                test.printed = printed
                session.end()

    def _exec(self, test, source, space) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                exec(compile(source, f"<{test.name}>", "exec"), space)
            finally:
                test.printed = printed.getvalue()[:MOST_PRINTED]

    @contextlib.contextmanager
    def _limit(self, test: TestCell, seconds: float, late: bool):
        """Limit the time, and record any error as the test's, without details if ``late``."""
        seconds = max(0.1, min(seconds, self.cell_seconds, self.deadline - time.monotonic()))
        self.until = time.monotonic() + seconds
        signal.setitimer(signal.ITIMER_REAL, seconds + SECONDS_TO_REPORT)
        try:
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)  # before the error is handled
        except OutOfTime as reason:
            test.slow, test.remark = True, f"took longer than {seconds:.0f} s"
            test.error = f"It {test.remark}."
            if reason.args:  # the student's process is still computing
                self.connections.pop(test.place).close()
        except Gone as reason:
            test.error, test.remark = "The answer did not reply: did it end its process?", f"got no reply: {reason}"
            if reason.args != (ENDED,):  # later replies cannot be trusted
                self.connections.pop(test.place).close()
        except Exception as error:
            test.error = self._words(error, late)
            print(f"{test.name}:\n{''.join(traceback.format_exception(error))}", file=sys.stderr)

    def _words(self, error: Exception, late: bool) -> str:
        """Format an error for the page; its line is shown only if it is the student's."""
        line, kind = own_line(error), type(error).__name__
        where = f", in the line: {line}" if line in self.lines else ""
        if not late:
            return f"{kind}: {error}{where}"
        return f"{FAILED} The answer raised {kind}{where}" if where and hasattr(builtins, kind) else FAILED


def out_of_time(*_) -> None:
    """Handle the timer's signal."""
    raise OutOfTime


def main() -> None:
    """Read the exercise, and run its tests."""
    close_home()
    signal.signal(signal.SIGALRM, out_of_time)
    given = json.load(sys.stdin)
    tests = read_tests(given["cells"])
    print(json.dumps({"ready": len(tests)}), flush=True)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        connections = connected(listener, {test.place for test in tests} - {None})
    Judge(tests, connections, given["seconds"], given["cell_seconds"], set(given["lines"])).run()


if __name__ == "__main__":
    main()
