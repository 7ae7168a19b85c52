"""Public names, looked over on their way out: an argument of a wrong type is refused by its annotation, before work.

Rooms hand their names on by `hand_on`. An annotation may say a limit too, in `dgc_lab.common.check_number`'s words:
``Annotated[float, "in [0, 1]"]``. What no annotation says a function checks by itself, with `dgc_lab.common`. The
standard library only: tensors are known by their dtype and shape.
"""

from __future__ import annotations

import builtins
import collections.abc as kinds
import functools
import importlib
import inspect
import numbers
import os
import pathlib
import sys
import types
import typing

from dgc_lab.common import is_within

LONGEST_VALUE = 200  # characters of it in a message
SEVERAL = (list, tuple, set, kinds.Collection, kinds.Container, kinds.Iterable, kinds.Iterator, kinds.Sequence)


class ArrayLike:
    """An annotation: a tensor, symbolic too, an array, a number, or lists of numbers, all of one length."""


class Seed:
    """An annotation: two whole numbers, or an integer tensor of shape (2,), symbolic too."""


Tensors = list[ArrayLike]


class NotImported(type):
    """Makes what stands for a class that only a type checker imports: whatever has a class of its name is one of it."""

    def __getattr__(cls, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        return NotImported(name, (), {})

    def __getitem__(cls, _):
        return cls

    def __instancecheck__(cls, x) -> bool:
        return any(one.__name__ == cls.__name__ for one in type(x).__mro__)


class Names(dict):
    """What an annotation's names stand for."""

    def __missing__(self, name: str):
        return getattr(builtins, name, None) or NotImported(name, (), {})


def hand_on(room: str, names: dict[str, str]):
    """``__getattr__``, ``__dir__`` and ``__all__`` of a room that hands on its modules' names when they are asked for.

    Functions, and classes when they make an instance, look at their arguments first (`guarded`).

    Args:
        room: the package, ``__name__`` in its ``__init__``.
        names: by module of the room, the public names in it, parted by spaces.

    Source: PEP 562.
    """
    home = {name: module for module, given in names.items() for name in given.split()}

    def __getattr__(name: str):
        if name not in home:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        thing = getattr(importlib.import_module(f"{room}.{home[name]}"), name)
        if isinstance(thing, types.FunctionType):
            return guarded(thing, room)
        for owner in thing.__mro__ if isinstance(thing, type) else ():
            if owner.__module__.startswith(f"{__package__}.") and not issubclass(owner, BaseException):
                guard_making(owner)
        return thing

    return __getattr__, lambda: sorted(home), list(home)


@functools.cache
def guarded(function, room: str | None = None, module: str | None = None):
    """The function, with a ValueError for an argument of a wrong type; pickled by the name that the room has for it.

    Example:
        >>> def half(steps: int, name: str | None = None):
        ...     return steps // 2
        >>> guarded(half)("ten")
        Traceback (most recent call last):
        ValueError: steps must be a whole number, got 'ten'
    """
    parameters = inspect.signature(function).parameters.values()
    names = vars(sys.modules[module or function.__module__])
    rules = {parameter.name: _with_default(parameter, names) for parameter in parameters}
    if not any(rules.values()):
        return function
    in_order = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")

    @functools.wraps(function)
    def looks_first(*args, **kwargs):
        for place, value in enumerate(args):
            name = in_order[place] if place < len(in_order) else rest
            if (rule := rules.get(name)) and not rule[0](value):
                _refuse(name, rule[1], value)
        for name, value in kwargs.items():
            if (rule := rules.get(name)) and not rule[0](value):
                _refuse(name, rule[1], value)
        return function(*args, **kwargs)

    looks_first.__module__ = room or function.__module__
    looks_first.autograph_info__ = {}  # for tf.function: there is nothing to convert here, and trying takes long
    return looks_first


def guard_making(owner: type) -> None:
    """Have a class look at what its instances are made of, once.

    Not named tuples: TensorFlow takes them apart, and puts them together again with things of its own in them.
    """
    maker = vars(owner).get("__init__")
    if isinstance(maker, types.FunctionType) and not hasattr(maker, "autograph_info__"):
        owner.__init__ = guarded(maker, None, owner.__module__)


def _refuse(name: str, allowed: str, value):
    if _is_huge(value) and allowed.startswith(SIMPLE[int][1]):
        allowed = f"{allowed} below 2**63"
    shown = repr(value)
    shown = shown if len(shown) <= LONGEST_VALUE else f"{shown[:LONGEST_VALUE]}..."
    raise ValueError(f"{name} must be {allowed}, got {shown}")


def _with_default(parameter: inspect.Parameter, names: dict):
    rule = _rule(parameter.annotation, names)
    if rule and parameter.default is None and not rule[0](None):
        return (lambda value: value is None or rule[0](value)), f"{rule[1]}, or None"
    return rule


def _rule(annotation, names: dict):
    """Which values an annotation allows, and in words; None for any."""
    while isinstance(annotation, str | typing.ForwardRef):
        annotation = eval(getattr(annotation, "__forward_arg__", annotation), {}, Names(names))
    kind, inner = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if kind in (typing.Union, types.UnionType):
        rules = [_rule(each, names) for each in inner]
        whole = None not in rules
        return whole and ((lambda x: any(fits(x) for fits, _ in rules)), ", or ".join(words for _, words in rules))
    if kind is typing.Annotated:
        (fits, words), limit = _rule(inner[0], names), inner[1]
        words = f"{words} of {limit}" if inner[0] is int else limit
        return (lambda x: fits(x) and (not isinstance(x, numbers.Real) or is_within(x, limit))), words
    if kind is typing.Literal:
        return (lambda x: isinstance(x, str) and x in inner), f"one of {', '.join(inner)}"
    if kind in SIMPLE:
        return SIMPLE[kind]
    if kind in (dict, kinds.Mapping):
        return _holding("a dict", kinds.Mapping, lambda x: x.values(), _rule(inner[1], names) if inner else None)
    if kind in SEVERAL:
        one_kind = inner and (kind is not tuple or inner[-1] is ...)
        return _holding("a list", kinds.Iterable, list, _rule(inner[0], names) if one_kind else None)
    if not isinstance(kind, type) or kind in (object, inspect.Parameter.empty):
        return None
    if kind.__name__ in ("ndarray", "Tensor"):
        return (lambda x: _is_array_like(x) and hasattr(x, "dtype")), "a tensor or an array"
    return (lambda x: isinstance(x, kind)), f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}"


def _holding(words: str, kind: type, members, inside):
    """The rule for what holds things that follow another rule; nobody looks into an iterator, or into an array."""
    others = str | bytes | type if kind is kinds.Mapping else str | bytes | type | kinds.Mapping

    def fits(x) -> bool:
        if not isinstance(x, kind) or isinstance(x, others) or getattr(x, "ndim", None) == 0:
            return False
        return not inside or not isinstance(x, kinds.Sized) or hasattr(x, "dtype") or all(map(inside[0], members(x)))

    return fits, f"{words}, each {inside[1]}" if inside else words


def _shape(x):
    """The shape of what is like an array; a TypeError of what is not."""
    if hasattr(x, "dtype") and hasattr(x, "shape") and not isinstance(x, type):
        if any(word in str(x.dtype) for word in ("int", "float", "bool")):
            return x.shape
    elif isinstance(x, list | tuple):
        shapes = [_shape(each) for each in x]
        if all(shape == shapes[0] for shape in shapes):
            return (len(x), *(tuple(shapes[0]) if shapes else ()))
    elif isinstance(x, numbers.Real) and not _is_huge(x):
        return ()
    raise TypeError


def _is_array_like(x) -> bool:
    try:
        _shape(x)
        return True
    except TypeError:
        return False


def _is_scalar(x, *dtypes: str) -> bool:
    """Whether this is a tensor or an array of no dimension, or of none that is known yet, and of such a dtype."""
    if isinstance(x, type) or not hasattr(x, "dtype") or not hasattr(x, "shape"):
        return False
    rank = x.shape.rank if hasattr(x.shape, "rank") else len(x.shape)
    return not rank and any(dtype in str(x.dtype) for dtype in dtypes)


def _is_huge(x) -> bool:
    return isinstance(x, int) and abs(x) >= 2**63


def _is_real(x, kind: type, *dtypes: str) -> bool:
    beyond = isinstance(x, int) and abs(x) >= 2**1023  # all floats
    return (isinstance(x, kind) and not isinstance(x, bool) and not beyond) or _is_scalar(x, *dtypes)


SIMPLE = {
    int: (lambda x: _is_real(x, numbers.Integral, "int") and not _is_huge(x), "a whole number"),
    float: (lambda x: _is_real(x, numbers.Real, "int", "float"), "a number"),
    str: (lambda x: isinstance(x, str), "text"),
    bool: (lambda x: isinstance(x, bool) or _is_scalar(x, "bool"), "True or False"),
    type(None): (lambda x: x is None, "None"),
    os.PathLike: (lambda x: isinstance(x, os.PathLike), "a path"),
    pathlib.Path: (lambda x: isinstance(x, os.PathLike), "a path"),
    kinds.Callable: (callable, "a function"),
    Seed: (lambda x: _is_array_like(x) and _shape(x) == (2,), "two whole numbers"),
    ArrayLike: (_is_array_like, "a tensor, an array, or lists of numbers"),
}
