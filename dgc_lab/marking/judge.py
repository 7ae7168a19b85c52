"""The tests' process: ``python -m dgc_lab.marking.judge FD``, with the exercise as JSON, and a line of JSON a result.

It runs the exercise's source: what is given, the reference answers, and at its place each marks cell. There the answer
before it is the student's: a value that came over the `channel`, or a function that asks the student's process
(`answers`). Whatever else a test names is the reference's. So nothing that a student's code does can reach a test, and
no test reaches a student's process but for what it asks a function.

What students may read of it, the words of a check that they have themselves, is taken down before the first hidden
test: no later answer can bring out what a hidden test has asked. What takes long is tried again when all have been
tried. Whatever did not pass then is tried once more, with the reference in place of earlier functions that did not pass
either, and without the student's names that hide built-in ones. Who has had a reference could let others know, by a
file, what it answers to what they were asked: after that they are asked nothing.
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

from dgc_lab.exercises.checking import own_line
from dgc_lab.marking.session import ENDED, Gone, OutOfTime, Session, connected

HIDDEN = re.compile(r"^[ \t]*### BEGIN HIDDEN TESTS", re.MULTILINE)
SECONDS_FIRST, SECONDS_TO_TELL = 5, 5  # of a task the first time; for the student's process to say that time is over
NO_COPY = "no copy of the process came to be asked"
MOST_PRINTED = 20_000  # characters of a check's words
FAILED = "A test did not pass."


@dataclass
class Task:
    """A marks cell: its two parts, what a test finds there, and what came of it."""

    name: str
    place: int | None  # None where the student's process never got there
    shown: str
    hidden: str
    space: dict  # the reference's names at this place
    answer: str  # the grade_id of the answer before it
    own: set[str]  # names that the answer defines and the tests use
    functions: set[str]  # functions that the answer defines
    passed: bool = False
    slow: bool = False
    printed: str = ""
    error: str = ""
    remark: str = ""

    def tell(self) -> None:
        """Print what came of it; a later line replaces an earlier one."""
        names = ("name", "passed", "printed", "error", "remark")
        print(json.dumps({name: getattr(self, name) for name in names}), file=sys.__stdout__, flush=True)


def read_tasks(cells: list[dict]) -> list[Task]:
    """Run an exercise's source, and gather its marks cells where they stand."""
    space, tasks, answer, defined = {"__name__": "__main__"}, [], "", {}
    for cell in cells:
        source = cell["source"]
        if cell["kind"] == "marks":
            used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
            begin = HIDDEN.search(source)
            cut = begin.start() if begin else len(source)
            hidden = "\n" * source[:cut].count("\n") + source[cut:]  # an error's line is the cell's
            functions = {name for name, value in defined.items() if callable(value)}
            own = used & set(defined)
            tasks.append(Task(cell["name"], cell["place"], source[:cut], hidden, dict(space), answer, own, functions))
            continue
        before = dict(space)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, f"<{cell['name']}>", "exec"), space)
        if cell["kind"] == "answer":
            answer = cell["name"]
            defined = {name: value for name, value in space.items() if before.get(name, before) is not value}
    return tasks


class Judge:
    """Runs the tasks of one exercise against one student's process."""

    def __init__(self, tasks: list[Task], connections: dict, seconds: float, cell_seconds: float, lines: set[str]):
        self.tasks, self.connections, self.lines = tasks, connections, lines
        self.deadline, self.cell_seconds = time.monotonic() + seconds, cell_seconds

    def run(self) -> None:
        """Everything, in the order that the top of this module gives."""
        begun = [(task, self._shown(task)) for task in self.tasks]
        for task, session_and_names in begun:
            self._hidden(task, *session_and_names)
            task.tell()
        slow = [task for task in self.tasks if task.slow]
        last = SECONDS_FIRST * sum(not task.passed for task in self.tasks)  # what the references may need then
        until = self.deadline - min(last, (self.deadline - time.monotonic()) / 2)
        for number, task in enumerate(slow):
            left = (until - time.monotonic()) / (len(slow) - number)
            if left > SECONDS_FIRST and self._again(task, left):
                task.tell()
        for task in self.tasks:  # in this order none is asked again once its own reference has been lent to another
            if not task.passed and time.monotonic() < self.deadline:
                self._with_references(task)

    def _again(self, task: Task, seconds: float, references: dict | None = None) -> bool:
        """Try a task once more, with nothing new for its page but the outcome; whether it passed."""
        kept, task.slow = task.printed, False
        self._hidden(task, *self._shown(task, seconds, references, late=True), seconds)
        task.printed = kept
        return task.passed

    def _with_references(self, task: Task) -> None:
        """Once more, where others' failures may be why it did not pass."""
        wrong = [each for each in self.tasks[: self.tasks.index(task)] if not each.passed]
        names = {name for each in wrong if each.answer != task.answer for name in each.functions}
        before = task.error, task.remark
        if self._again(task, SECONDS_FIRST, {name: task.space[name] for name in sorted(names)}):
            stand_in = f"with the reference answer in place of {', '.join(sorted(names))}"
            task.remark = f"right {stand_in if names else 'without names that hide built-in ones'}"
            task.printed += f"{task.remark}\n"
            task.tell()
        else:
            task.error, task.remark = before

    def _shown(self, task: Task, seconds: float = SECONDS_FIRST, references=None, late=False):
        """Begin an attempt, and run what students have, too; None and None where that is the end of it already."""
        if task.place not in self.connections:
            if not task.error:
                task.error = "The cells before did not run, so there is no answer."
                task.remark = NO_COPY if task.place is not None else ""
            return None, None
        task.error = task.remark = ""
        with self._limit(task, seconds, late):
            session = Session(self.connections[task.place], references)
            if references is not None and not session.changed:
                session.end()
                return None, None
            session.until = self.until
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
        """Within so many seconds; what goes wrong is the task's error, ``late`` in words that bring nothing out."""
        seconds = max(0.1, min(seconds, self.cell_seconds, self.deadline - time.monotonic()))
        self.until = time.monotonic() + seconds
        signal.setitimer(signal.ITIMER_REAL, seconds + SECONDS_TO_TELL)
        try:
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)  # before anything is said of it
        except OutOfTime as reason:
            task.slow, task.remark = True, f"took longer than {seconds:.0f} s"
            task.error = f"It {task.remark}."
            if reason.args:  # the other side still works on an answer
                self.connections.pop(task.place).close()
        except Gone as reason:
            task.error, task.remark = "The answer gave no answer: did it end its process?", f"gave no answer: {reason}"
            if reason.args != (ENDED,):  # who knows what comes next
                self.connections.pop(task.place).close()
        except Exception as error:
            task.error = self._words(error, late)
            print(f"{task.name}:\n{''.join(traceback.format_exception(error))}", file=sys.stderr)

    def _words(self, error: Exception, late: bool) -> str:
        """An error for the page; its line is shown only where it is one of the student's."""
        line, kind = own_line(error), type(error).__name__
        where = f", in the line: {line}" if line in self.lines else ""
        if not late:
            return f"{kind}: {error}{where}"
        return f"{FAILED} The answer raised {kind}{where}" if where and hasattr(builtins, kind) else FAILED


def out_of_time(*_) -> None:
    """The handler of the timer."""
    raise OutOfTime


def main() -> None:
    """Read the exercise, and judge."""
    signal.signal(signal.SIGALRM, out_of_time)
    given = json.load(sys.stdin)
    tasks = read_tasks(given["cells"])
    print(json.dumps({"ready": len(tasks)}), flush=True)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        connections = connected(listener, {task.place for task in tasks} - {None})
    Judge(tasks, connections, given["seconds"], given["cell_seconds"], set(given["lines"])).run()


if __name__ == "__main__":
    main()
