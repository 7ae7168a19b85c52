"""In the tests' process: query a student's process, and run the references that stand in for its functions."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import signal
import socket
import time

from dgc_lab_grading.marking.channel import ChannelError, identifier, receive, send

ENDED = "it ended its process"
SECONDS_TO_CONNECT = 10  # for forks of the student's process that have started
NUMBERS = itertools.count()  # of the forks: the end of one may be reported when the next has already been queried


class OutOfTime(BaseException):
    """A test took too long; has arguments if an answer was still being computed."""


class Gone(BaseException):
    """The student's process has ended, or has sent an invalid reply."""


class Session:
    """One attempt of a student's process to answer for one place; `answers` is the other side.

    ``references`` are functions and values that replace the student's, by name. Unless it is None, names that shadow
    built-in ones are removed, too; ``{}`` does only that. With ``again``, the answer is then run once more, because it
    may be a value that was computed with a replaced name.
    """

    def __init__(
        self, connection: socket.socket, until: float, references: dict[str, object] | None = None, again: bool = False
    ):
        self.connection, self.until = connection, until
        self.references = {name: one for name, one in (references or {}).items() if callable(one)}
        values = {name: one for name, one in (references or {}).items() if not callable(one)}
        self.opening = {"references": list(self.references), "values": values}
        self.opening |= {"uncover": references is not None, "again": again}
        reply = self._begun()
        self.changed = bool(reply.get("changed"))  # whether anything differs from the student's notebook

    def _begun(self) -> dict:
        self.number = next(NUMBERS)
        seconds = max(0.1, self.until - time.monotonic())
        return self._settled(self.opening | {"number": self.number, "seconds": seconds}, self.references)

    def begin_again(self) -> None:
        """Switch to another fork of the process, which has not been queried yet."""
        self.end()
        self._begun()

    def end(self) -> None:
        """End the attempt."""
        with contextlib.suppress(ChannelError):
            send(self.connection, {"end": True})

    def names(self, wanted: set[str]) -> dict:
        """Return the student's values of some names, and functions that call the student's."""
        reply = self._asked({"get": sorted(wanted)})
        found = {name: self._function(name) for name in reply.get("functions", ()) if name in wanted}
        return {name: value for name, value in reply.get("values", {}).items() if name in wanted} | found

    def _function(self, name: str):
        def ask(*arguments, **named):
            if (left := self.until - time.monotonic()) <= 0:
                raise OutOfTime
            callbacks = {f"{name}'s argument {place}": one for place, one in enumerate(arguments) if callable(one)}
            plain = [f"{name}'s argument {place}" if callable(one) else one for place, one in enumerate(arguments)]
            question = {"call": name, "arguments": plain, "lent": list(callbacks), "named": named, "seconds": left}
            reply = self._settled(question, self.references | callbacks)
            if "error" in reply:
                raise remade(reply["error"])
            return reply.get("result")

        def afresh():
            self.begin_again()
            return ask

        ask.afresh = afresh  # see `dgc_lab.exercises.checking.afresh`
        return ask

    def _settled(self, message: dict, functions: dict) -> dict:
        """Send a message, and answer the student's calls of our functions until its reply arrives."""
        reply = self._asked(message)
        while "ask" in reply:
            reply = self._asked(self._referred(reply, functions))
        return reply

    def _referred(self, question: dict, functions: dict) -> dict:
        """Return the result of a reference, or of a function passed as an argument, for the student's call."""
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
            raise OutOfTime("an answer is being computed") from None
        if not isinstance(reply, dict):
            raise Gone("the reply is invalid")
        if reply.get("ended") == -signal.SIGALRM:
            raise OutOfTime
        if "ended" in reply:
            raise Gone(ENDED)
        return reply


def remade(sent) -> Exception:
    """Rebuild a student's error: of the same built-in type if possible, with its message and its line.

    Example:
        >>> error = remade({"type": "IndexError", "message": "out of bounds", "line": "return x[9]"})
        >>> isinstance(error, IndexError), str(error), error.own_line
        (True, 'out of bounds', 'return x[9]')
        >>> [kind.__name__ for kind in type(remade({"type": "<b>Mine", "message": "", "line": ""})).__mro__[:2]]
        ['bMine', 'Exception']
    """
    sent = sent if isinstance(sent, dict) else {}
    name, message = identifier(sent.get("type")), str(sent.get("message"))[:1000]
    base = getattr(builtins, name, None)
    is_plain = isinstance(base, type) and issubclass(base, Exception)
    is_plain = is_plain and not issubclass(base, UnicodeError | BaseExceptionGroup)  # these need more arguments
    error = type(name, (base if is_plain else Exception,), {"__str__": lambda self: message})(message)
    error.own_line = str(sent.get("line")).strip()[:200]
    return error


def connected(listener: socket.socket, places: set[int]) -> dict[int, socket.socket]:
    """Return the connections of the student's processes that wait for queries, by place."""
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
