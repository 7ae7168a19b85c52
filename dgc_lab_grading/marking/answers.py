"""In a student's kernel: a fork of the process at each test, which answers the test after the last cell.

`keep` forks the kernel at a test cell. The fork has the student's functions as they are at that cell, shows no output,
and is queried only after the last cell: no cell's output can contain a test's questions, and no later cell can learn
them. Each attempt runs in a fork of that fork, so that no attempt knows of another.

`define_rest` runs the definitions that a failed cell did not reach.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import re
import signal
import socket
import sys
import traceback

from dgc_lab.exercises.checking import CELL, own_line
from dgc_lab_grading.marking.channel import ChannelError, receive, send
from dgc_lab_grading.marking.forks import fork

AT_THE_END = 77  # exit code of a fork that was asked to end; an answer is unlikely to exit with it
ENDED = "This cell ended at line {}, before {}; the definitions below that line were run all the same."
NAMED = r"(?:(?:def|class|import|from) )?[\w.]{1,40}"
# Strict, because the student's process can print anything.
ENDED_AT = re.compile(rf"This cell (ended at line \d{{1,5}}, before {NAMED});")
DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)


def define_rest(shell, source: str) -> None:
    """After a cell has failed, print where, and run each definition below that line by itself."""
    frames = traceback.extract_tb(getattr(sys, "last_traceback", None))
    failed = next((frame for frame in frames if frame.name == "<module>" and CELL.search(frame.filename)), None)
    if failed is None:  # for example, the cell is not valid Python
        return
    nodes = [node for node in ast.parse(shell.transform_cell(source)).body if node.lineno > failed.lineno]
    rest = [node for node in nodes if isinstance(node, DEFINITIONS)]
    if rest:
        print(ENDED.format(failed.lineno, _title(rest[0])))
    for node in rest:
        with contextlib.suppress(Exception):
            exec(compile(ast.Module([node], []), failed.filename, "exec"), shell.user_ns)


def _title(node: ast.stmt) -> str:
    """Return a definition's first words, such as ``def split``."""
    return re.search(NAMED, ast.unparse(node))[0]


def keep(shell, path: str, place: int, setup: str, answer: str) -> None:
    """Leave a fork of this process that answers queries at a place, after running the setup cell in it once more.

    ``answer`` is the student's answer at this place, for attempts that run it again with references.
    """
    if fork():
        return
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        devnull = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(devnull, number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
        with contextlib.suppress(Exception):
            exec(shell.transform_cell(setup), shell.user_ns)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            send(connection, {"place": place})
            while True:
                attempt = receive(connection)
                if "references" not in attempt:  # the end of an attempt that has exited by itself
                    continue
                child = fork()
                if child == 0:
                    _answer(shell, connection, attempt, answer)
                    os._exit(AT_THE_END)
                _, status = os.waitpid(child, 0)
                if (code := os.waitstatus_to_exitcode(status)) != AT_THE_END:
                    send(connection, {"ended": code, "number": attempt["number"]})
    finally:
        os._exit(0)


def _answer(shell, connection, attempt, answer: str) -> None:
    """Answer queries until the attempt ends."""
    os.setsid()  # signals that an answer sends to its process group reach only itself
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the alarm ends any function whose time is up
    names = shell.user_ns
    replaced = {*attempt["references"], *attempt["values"]}
    names.update({name: _reference(connection, name) for name in attempt["references"]} | attempt["values"])
    if attempt["uncover"]:
        given = shell.user_ns_hidden
        shared = (name for name in set(names) & set(vars(builtins)) if not name.startswith("_"))
        shadowing = {name for name in shared if given.get(name) is not names[name]}
        for name in shadowing:
            del names[name]
        replaced |= shadowing
    if replaced and attempt["again"]:  # the answer may be a value, computed with names that are now references
        signal.setitimer(signal.ITIMER_REAL, attempt["seconds"])
        with contextlib.suppress(Exception):
            exec(shell.transform_cell(answer), names)
        signal.setitimer(signal.ITIMER_REAL, 0)
    send(connection, {"changed": bool(replaced)})
    while "end" not in (question := receive(connection)):
        if "get" in question:
            found = {name: names[name] for name in question["get"] if name in names}
            functions = [name for name, value in found.items() if callable(value)]
            values = {name: value for name, value in found.items() if name not in functions}
            send(connection, {"functions": functions, "values": values})
            continue
        signal.setitimer(signal.ITIMER_REAL, question["seconds"])
        try:
            callbacks = {name: _reference(connection, name) for name in question["lent"]}
            arguments = [callbacks.get(one, one) if isinstance(one, str) else one for one in question["arguments"]]
            reply = {"result": names[question["call"]](*arguments, **question["named"])}
        except ChannelError:
            return
        except BaseException as error:
            reply = {"error": described(error)}
        signal.setitimer(signal.ITIMER_REAL, 0)  # a late alarm would be blamed on the next question
        try:
            send(connection, reply)
        except Exception as error:  # too large, or of a type that cannot be sent
            send(connection, {"error": described(error)})


def _reference(connection, name: str):
    """Return a function that asks the other side for the reference answer's result."""

    def reference(*arguments, **named):
        send(connection, {"ask": name, "arguments": arguments, "named": named})
        reply = receive(connection)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["result"]

    return reference


def described(error: BaseException) -> dict[str, str]:
    """Describe an error for the channel: its type, its message, and the student's line that raised it."""
    try:
        message = str(error)[:1000]
    except Exception:
        message = ""
    return {"type": type(error).__name__, "message": message, "line": own_line(error)}
