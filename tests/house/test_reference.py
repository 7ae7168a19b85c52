"""Every public name says what it is for, what goes in and out, what it refuses, how it is used, and where it is from.

Run as a program, this file lists what is missing.
"""

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parents[2] / "dgc_lab"
ROOMS = sorted(file.parent.name for file in LIBRARY.glob("*/__init__.py"))
SOURCE = re.compile(
    r"Source:|[Ll]essons? \d|all lessons|paper|arXiv|PEP \d|et al|eq\. \d|TensorFlow|Horovod|Keras|published"
)


def public(room):
    """The public names of a room, and what they stand for."""
    package = importlib.import_module(f"dgc_lab.{room}")
    return [(name, getattr(package, name)) for name in sorted(getattr(package, "__all__", []))]


def arguments(thing):
    """Names of what a function or a class takes; those of ``*`` and ``**`` are named by what they hold."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def refuses(thing):
    """Whether a function, or the making of an instance, raises by itself or by one of the checks of arguments."""
    makers = [vars(thing).get(name) for name in ("__init__", "__post_init__")] if inspect.isclass(thing) else [thing]
    for maker in makers:
        if inspect.isfunction(maker):
            try:
                tree = ast.parse(textwrap.dedent(inspect.getsource(maker)))
            except OSError:  # made by dataclasses
                continue
            for node in ast.walk(tree):
                called = getattr(node, "func", None)
                if isinstance(node, ast.Raise) or getattr(called, "id", "").startswith("check_"):
                    return True
    return False


def constant_words(room, name):
    """The ``#:`` comment over a constant, wherever in the room it stands."""
    for file in (LIBRARY / room).glob("*.py"):
        if found := re.search(rf"((?:^#: .+\n)+){name}\b", file.read_text(encoding="utf-8"), re.MULTILINE):
            return found[1]
    return ""


def missing(room, name, thing):
    """Which of the five parts are not there, of those that this kind of thing has."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing) or callable(thing)):
        return [] if constant_words(room, name) else ["purpose"]
    words = (thing.__doc__ or "") if inspect.isclass(thing) else inspect.getdoc(thing) or ""
    file = inspect.getmodule(thing).__doc__ or ""
    is_error = inspect.isclass(thing) and issubclass(thing, BaseException)
    there = {
        "purpose": bool(words.strip()) and not words.startswith(f"{name}("),  # what dataclasses write
        "arguments": is_error or all(re.search(rf"\b{argument}\b", words) for argument in arguments(thing)),
        "errors": not refuses(thing) or re.search(r"\b\w*(Error|Raises|Diverged|TooLate)\b", words),
        "example": is_error or ">>> " in words,
        "source": SOURCE.search(words) or SOURCE.search(file),
    }
    return [part for part, found in there.items() if not found]


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_say_all_that_is_needed(room):
    found = {name: missing(room, name, thing) for name, thing in public(room)}
    assert {name: parts for name, parts in found.items() if parts} == {}


if __name__ == "__main__":
    every = [(room, name, missing(room, name, thing)) for room in ROOMS for name, thing in public(room)]
    print(*(f"{room}.{name}: {', '.join(parts)}" for room, name, parts in every if parts), sep="\n")
