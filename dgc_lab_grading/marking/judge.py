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
SECONDS_FIRST, SECONDS_TO_TELL = 5, 5  # for a task's first attempt; for the student's process to report a timeout
NO_COPY = "was not tested: no fork of the process connected"
MOST_PRINTED = 20_000  # characters of a check's output
FAILED = "A test did not pass."
VALUES = (bool, int, float, complex, str, list, tuple, dict, set, np.ndarray, np.generic)  # may replace a student's


@dataclass
class Task:
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

    def tell(self) -> None:
        """Print the result; a later line replaces an earlier one."""
        names = ("name", "passed", "printed", "error", "remark")
        print(json.dumps({name: getattr(self, name) for name in names}), file=sys.__stdout__, flush=True)


def read_tasks(cells: list[dict]) -> list[Task]:
    """Run an exercise's source, and collect its test cells."""
    space, tasks, answer, defined = {"__name__": "__main__"}, [], "", {}
    for cell in cells:
        source = cell["source"]
        if cell["kind"] == "marks":
            used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
            begin = HIDDEN.search(source)
            cut = begin.start() if begin else len(source)
            hidden = "\n" * source[:cut].count("\n") + source[cut:]  # keeps the line numbers of errors
            sent = {name: value for name, value in defined.items() if callable(value) or isinstance(value, VALUES)}
            own = used & set(defined)
            tasks.append(Task(cell["name"], cell["place"], source[:cut], hidden, dict(space), answer, own, sent))
            continue
        before = dict(space)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, f"<{cell['name']}>", "exec"), space)
        if cell["kind"] == "answer":
            answer = cell["name"]
            defined = {name: value for name, value in space.items() if before.get(name, before) is not value}
    return tasks


class Judge:
    """Runner for the tests of one exercise against one student's process."""

    def __init__(self, tasks: list[Task], connections: dict, seconds: float, cell_seconds: float, lines: set[str]):
        self.tasks, self.connections, self.lines = tasks, connections, lines
        self.deadline, self.cell_seconds = time.monotonic() + seconds, cell_seconds

    def run(self) -> None:
        """Run all tests, in the order given at the top of this module."""
        begun = [(task, self._shown(task)) for task in self.tasks]
        for task, session_and_names in begun:
            self._hidden(task, *session_and_names)
            task.tell()
        slow = [task for task in self.tasks if task.slow]
        last = SECONDS_FIRST * sum(not task.passed for task in self.tasks)  # reserved for attempts with references
        until = self.deadline - min(last, (self.deadline - time.monotonic()) / 2)
        for number, task in enumerate(slow):
            left = (until - time.monotonic()) / (len(slow) - number)
            if left > SECONDS_FIRST and self._again(task, left):
                task.tell()
        for task in self.tasks:  # in this order no fork is queried after its own reference was lent to another
            if not task.passed and time.monotonic() < self.deadline:
                self._with_references(task)

    def _again(self, task: Task, seconds: float, references: dict | None = None) -> bool:
        """Try a task once more, updating only the result on its page; return whether it passed."""
        kept, task.slow = task.printed, False
        self._hidden(task, *self._shown(task, seconds, references, late=True), seconds)
        task.printed = kept
        return task.passed

    def _with_references(self, task: Task) -> None:
        """Try a task once more if failures of earlier answers may be why it did not pass."""
        failed = [each for each in self.tasks[: self.tasks.index(task)] if not each.passed]
        names = {name for each in failed if each.answer != task.answer for name in each.defined} - set(task.defined)
        before = task.error, task.remark
        if self._again(task, SECONDS_FIRST, {name: task.space[name] for name in sorted(names)}):
            stand_in = f"with the reference answer in place of {', '.join(sorted(names))}"
            task.remark = f"right {stand_in if names else 'without names that shadow built-in ones'}"
            task.printed += f"{task.remark}\n"
            task.tell()
        else:
            task.error, task.remark = before

    def _shown(self, task: Task, seconds: float = SECONDS_FIRST, references=None, late=False):
        """Begin an attempt, and run the visible part; return None and None if the attempt is over."""
        if task.place not in self.connections:
            if not task.error:
                task.error = "Earlier cells did not run, so there is no answer."
                task.remark = NO_COPY if task.place is not None else ""
            return None, None
        task.error = task.remark = ""
        with self._limit(task, seconds, late):
            again = not all(map(callable, (task.defined.get(name) for name in task.own)))
            session = Session(self.connections[task.place], self.until, references, again)
            if references is not None and not session.changed:
                session.end()
                return None, None
            space = {name: value for name, value in task.space.items() if name not in task.own}
            try:
                space.update(session.names(task.own))
                self._exec(task, task.shown, space)
                return session, space
            except BaseException:
                session.end()
                raise
        return None, None

    def _hidden(self, task: Task, session: Session | None, space: dict | None, seconds: float = SECONDS_FIRST) -> None:
        """Run the hidden tests, and end the attempt."""
        if session is None:
            return
        with self._limit(task, seconds, late=True):
            session.until = self.until
            try:
                printed = task.printed
                self._exec(task, task.hidden, space)
                task.passed = True
            finally:
                task.printed = printed
                session.end()

    def _exec(self, task, source, space) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                exec(compile(source, f"<{task.name}>", "exec"), space)
            finally:
                task.printed = printed.getvalue()[:MOST_PRINTED]

    @contextlib.contextmanager
    def _limit(self, task: Task, seconds: float, late: bool):
        """Limit the time, and record any error as the task's, without details if ``late``."""
        seconds = max(0.1, min(seconds, self.cell_seconds, self.deadline - time.monotonic()))
        self.until = time.monotonic() + seconds
        signal.setitimer(signal.ITIMER_REAL, seconds + SECONDS_TO_TELL)
        try:
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)  # before the error is handled
        except OutOfTime as reason:
            task.slow, task.remark = True, f"took longer than {seconds:.0f} s"
            task.error = f"It {task.remark}."
            if reason.args:  # the student's process is still computing
                self.connections.pop(task.place).close()
        except Gone as reason:
            task.error, task.remark = "The answer did not reply: did it end its process?", f"got no reply: {reason}"
            if reason.args != (ENDED,):  # later replies cannot be trusted
                self.connections.pop(task.place).close()
        except Exception as error:
            task.error = self._words(error, late)
            print(f"{task.name}:\n{''.join(traceback.format_exception(error))}", file=sys.stderr)

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
    tasks = read_tasks(given["cells"])
    print(json.dumps({"ready": len(tasks)}), flush=True)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        connections = connected(listener, {task.place for task in tasks} - {None})
    Judge(tasks, connections, given["seconds"], given["cell_seconds"], set(given["lines"])).run()


if __name__ == "__main__":
    main()
