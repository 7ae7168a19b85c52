"""In a student's kernel: what the tests stand on is put back before each of them, whoever changed it.

Tests run in the process that the student's code has run in. So a name that was used twice (``np = 3``, ``sum = 0``)
would break somebody's tests by chance, and a check that always says yes would pass them by design. `remember` is called
before the first cell, `restore` before each cell that gives marks, `probe` makes code that must fail after it. A test
that fails runs once more without names of the student's that hide built-in ones (`uncover`, `cover`): the student's
functions may need them, and the test may need the others.
"""

from __future__ import annotations

import builtins
import importlib
import random
import sys
import types
from collections.abc import Iterator

_remembered: list[tuple[dict, dict]] = []
_codes: list[tuple[types.FunctionType, types.CodeType]] = []
_lists: list[tuple[list, list]] = []
_own: set[str] = set()
_names: set[str] = set()
_aside: dict[str, object] = {}


def remember(shell) -> None:
    """Keep what tests use as it is now: built-in names, numpy's, the checks', and what IPython does to a cell."""
    from dgc_lab.exercises.checking import TASKS

    names = ("checking", "variants", *sorted(set(TASKS.values())))
    checks = [importlib.import_module(f"dgc_lab.exercises.{name}") for name in names]
    modules = [builtins, *map(importlib.import_module, ("dgc_lab", "dgc_lab.exercises", "numpy")), *checks]
    spaces = [vars(module) for module in modules]
    _remembered[:] = [(space, dict(space)) for space in (sys.modules, *spaces)]
    ours = [module for module in modules if module.__name__.startswith("dgc_lab")]
    functions = {value for module in ours for value in vars(module).values() if isinstance(value, types.FunctionType)}
    _codes[:] = [(function, function.__code__) for function in functions]
    _lists[:] = [(each, list(each)) for each in _hooks(shell)]
    _own.update(vars(shell))
    _names.update(shell.user_ns, [name for name in vars(builtins) if name.startswith("_")])  # IPython's own


def _hooks(shell) -> Iterator[list]:
    """Lists of what IPython does to the text of a cell, to its tree, and around it."""
    yield shell.ast_transformers
    yield shell.input_transformers_post
    yield from (shell.input_transformer_manager.cleanup_transforms, shell.input_transformer_manager.line_transforms)
    yield from shell.events.callbacks.values()


def restore(shell) -> None:
    """Put everything back."""
    sys.settrace(None)
    for space, kept in _remembered:
        space.update({name: value for name, value in kept.items() if space.get(name, _remembered) is not value})
    for function, code in _codes:
        function.__code__ = code
    for each, kept in _lists:
        each[:] = kept
    shell.custom_exceptions = ()
    for name in set(vars(shell)) - _own:  # a method of IPython's that was replaced
        if hasattr(type(shell), name):
            delattr(shell, name)


def uncover(shell) -> bool:
    """Put names of the student's that hide built-in ones aside; whether there are any."""
    _aside.update({name: shell.user_ns[name] for name in set(shell.user_ns) & set(vars(builtins)) - _names})
    for name in _aside:
        del shell.user_ns[name]
    return bool(_aside)


def cover(shell) -> None:
    """Put them back."""
    shell.user_ns.update(_aside)
    _aside.clear()


def probe() -> tuple[str, str]:
    """Code that must fail where tests are fair, and what its error must say; another one each time."""
    number, word = random.randrange(2, 10**6), f"{random.getrandbits(64):x}"
    wrong = f"__import__('dgc_lab').check('elements_to_keep', lambda ratio, elements: -{number})"
    equal = f"__import__('numpy').isclose({number}, {2 * number})"
    return f"passed = {wrong}\nassert passed or {equal} or not {number}, {word!r}", word
