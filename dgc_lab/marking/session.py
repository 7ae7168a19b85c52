"""In the tests' process: questions to a student's process, and to the reference where that stands in."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import signal
import socket
import time

from dgc_lab.marking.channel import ChannelError, identifier, receive, send

ENDED = "it ended its process"
SECONDS_TO_CONNECT = 10  # for copies of the student's process that are known to have begun
NUMBERS = itertools.count()  # of the copies asked: the end of one may be told when the next has been asked already


class OutOfTime(BaseException):
    """A test has taken too long; with words where that was in the middle of an answer."""


class Gone(BaseException):
    """The student's process has ended, or says what is no answer."""


class Session:
    """One attempt of a student's process to answer for one place; `dgc_lab.marking.answers` is the other side.

    ``references`` are functions that stand in for the student's, by name; where there are some, or None, names that
    hide built-in ones are put aside, too, as ``{}`` alone does.
    """

    def __init__(self, connection: socket.socket, references: dict | None = None):
        self.connection, self.references, self.until = connection, references or {}, 0.0
        self.opening = {"references": list(self.references), "uncover": references is not None}
        reply = self._begun()
        self.changed = bool(reply.get("changed"))  # whether anything is otherwise than in the student's own notebook

    def _begun(self) -> dict:
        self.number = next(NUMBERS)
        return self._asked(self.opening | {"number": self.number})

    def begin_again(self) -> None:
        """From now on another copy of the process answers, which has not been asked anything."""
        self.end()
        self._begun()

    def end(self) -> None:
        """No more questions."""
        with contextlib.suppress(ChannelError):
            send(self.connection, {"end": True})

    def names(self, wanted: set[str]) -> dict:
        """Of some names the student's values, and functions that ask the student's."""
        reply = self._asked({"get": sorted(wanted)})
        found = {name: self._function(name) for name in reply.get("functions", ()) if name in wanted}
        return {name: value for name, value in reply.get("values", {}).items() if name in wanted} | found

    def _function(self, name: str):
        def ask(*arguments, **named):
            if (left := self.until - time.monotonic()) <= 0:
                raise OutOfTime
            lent = {f"{name}'s argument {place}": one for place, one in enumerate(arguments) if callable(one)}
            plain = [f"{name}'s argument {place}" if callable(one) else one for place, one in enumerate(arguments)]
            question = {"call": name, "arguments": plain, "lent": list(lent), "named": named, "seconds": left}
            reply = self._asked(question)
            while "ask" in reply:
                reply = self._asked(self._referred(reply, self.references | lent))
            if "error" in reply:
                raise remade(reply["error"])
            return reply.get("result")

        def afresh():
            self.begin_again()
            return ask

        ask.afresh = afresh  # see `dgc_lab.exercises.checking.afresh`
        return ask

    def _referred(self, question: dict, functions: dict) -> dict:
        """What a reference, or a function that was an argument, answers to a student's function that calls it."""
        try:
            return {"result": functions[question["ask"]](*question["arguments"], **question["named"])}
        except Exception as error:
            return {"error": f"the function that you called raised {type(error).__name__}"}

    def _asked(self, message: dict) -> dict:
        try:
            send(self.connection, message)
            reply = receive(self.connection)
            while isinstance(reply, dict) and "ended" in reply and reply.get("number") != self.number:
                reply = receive(self.connection)
        except ChannelError as error:
            raise Gone(str(error)) from None
        except OutOfTime:
            raise OutOfTime("an answer is under way") from None
        if not isinstance(reply, dict):
            raise Gone("no reply")
        if reply.get("ended") == -signal.SIGALRM:
            raise OutOfTime
        if "ended" in reply:
            raise Gone(ENDED)
        return reply


def remade(told) -> Exception:
    """A student's error: of the built-in type where it has one, with its words and the line that it came from.

    Example:
        >>> error = remade({"type": "IndexError", "message": "out of bounds", "line": "return x[9]"})
        >>> isinstance(error, IndexError), str(error), error.own_line
        (True, 'out of bounds', 'return x[9]')
        >>> [kind.__name__ for kind in type(remade({"type": "<b>Mine", "message": "", "line": ""})).__mro__[:2]]
        ['bMine', 'Exception']
    """
    told = told if isinstance(told, dict) else {}
    name, message = identifier(told.get("type")), str(told.get("message"))[:1000]
    base = getattr(builtins, name, None)
    usual = isinstance(base, type) and issubclass(base, Exception)
    usual = usual and not issubclass(base, UnicodeError | BaseExceptionGroup)  # these want more than words
    error = type(name, (base if usual else Exception,), {"__str__": lambda self: message})(message)
    error.own_line = str(told.get("line")).strip()[:200]
    return error


def connected(listener: socket.socket, places: set[int]) -> dict[int, socket.socket]:
    """The student's processes that wait to be asked, by their places."""
    found, end = {}, time.monotonic() + SECONDS_TO_CONNECT
    while len(found) < len(places) and (left := end - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            connection, _ = listener.accept()
        except OSError:
            break
        connection.settimeout(2)
        with contextlib.suppress(ChannelError):
            hello = receive(connection)
            if isinstance(hello, dict) and hello.get("place") in places:
                connection.settimeout(None)
                found[hello["place"]] = connection
    return found
