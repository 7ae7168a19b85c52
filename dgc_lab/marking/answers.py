"""In a student's kernel: a copy of the process at each test's place, which answers for it when all cells have run.

`keep` forks the kernel where a marks cell stands. The copy holds the student's functions as they are there, shows
nothing to anybody, and is asked only after the last cell: what a test asks can be in no cell's output, and no later
cell can hear of it. Every attempt is made by a copy of that copy, so that none knows of another.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import signal
import socket
import sys

from dgc_lab.exercises.checking import own_line
from dgc_lab.marking.channel import ChannelError, receive, send

AT_THE_END = 77  # the exit code of a copy that was told to end, which an answer's own exit hardly has


def keep(shell, path: str, place: int, setup: str) -> None:
    """Leave a copy of this process behind that answers for a place, after the setup cell has run in it once more."""
    if os.fork():
        return
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
        with contextlib.suppress(Exception):
            exec(shell.transform_cell(setup), shell.user_ns)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            send(connection, {"place": place})
            while True:
                attempt = receive(connection)
                if "references" not in attempt:  # the end of one that has ended by itself
                    continue
                child = os.fork()
                if child == 0:
                    _answer(shell, connection, attempt)
                    os._exit(AT_THE_END)
                _, status = os.waitpid(child, 0)
                if (code := os.waitstatus_to_exitcode(status)) != AT_THE_END:
                    send(connection, {"ended": code, "number": attempt["number"]})
    finally:
        os._exit(0)


def _answer(shell, connection, attempt) -> None:
    """Answer questions until the end of an attempt."""
    os.setsid()  # what an answer does to its process group is done to itself alone
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # whatever a function does, it ends when its time is over
    names = shell.user_ns
    replaced = list(attempt["references"])
    names.update({name: _reference(connection, name) for name in replaced})
    if attempt["uncover"]:
        given = shell.user_ns_hidden
        both = (name for name in set(names) & set(vars(builtins)) if not name.startswith("_"))
        hiding = {name for name in both if given.get(name) is not names[name]}
        for name in hiding:
            del names[name]
        replaced += hiding
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
            lent = {name: _reference(connection, name) for name in question["lent"]}
            arguments = [lent.get(one, one) if isinstance(one, str) else one for one in question["arguments"]]
            reply = {"result": names[question["call"]](*arguments, **question["named"])}
        except ChannelError:
            return
        except BaseException as error:
            reply = {"error": told(error)}
        signal.setitimer(signal.ITIMER_REAL, 0)  # who has answered must not die of it: the next would be blamed
        try:
            send(connection, reply)
        except Exception as error:  # of a size or a kind that cannot be sent
            send(connection, {"error": told(error)})


def _reference(connection, name: str):
    """A function that asks the other side what the reference answer gives."""

    def reference(*arguments, **named):
        send(connection, {"ask": name, "arguments": arguments, "named": named})
        reply = receive(connection)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["result"]

    return reference


def told(error: BaseException) -> dict[str, str]:
    """An error as it goes over the channel: its type, what it says, the student's own line that it came from."""
    try:
        message = str(error)[:1000]
    except Exception:
        message = ""
    return {"type": type(error).__name__, "message": message, "line": own_line(error)}
