"""Public names, looked over on their way out: a wrong type is refused by its argument's annotation, before work starts.

Rooms hand their names on through `hand_on`. What an annotation cannot say, such as limits, each function checks with
`dgc_lab.common`. The standard library only; numbers and tensors are known by what they have.
"""

from __future__ import annotations

import collections.abc as kinds
import functools
import importlib
import inspect
import numbers
import os
import pathlib
import types
import typing

LONGEST_VALUE = 200  # characters of a message


class ArrayLike:
    """An annotation: a tensor, symbolic too, an array, a number, or lists of these."""


def hand_on(room: str, names: dict[str, str]):
    """``__getattr__``, ``__dir__`` and ``__all__`` of a room that hands on its modules' names when they are asked for.

    Functions and the making of instances look at their arguments first (`guarded`).

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
            if owner.__module__.partition(".")[0] == __package__ and not issubclass(owner, BaseException):
                guard_making(owner)
        return thing

    return __getattr__, lambda: sorted(home), list(home)


@functools.cache
def guarded(function, room: str | None = None):
    """A function that refuses arguments of wrong types with a ValueError, else calls the one given.

    It is found under the name by which it is pickled: that of the room.

    Example:
        >>> def half(steps: int, name: str | None = None): return steps // 2
        >>> guarded(half)("ten")
        Traceback (most recent call last):
        ValueError: steps must be a whole number, got 'ten'
    """
    in_order, by_name, rest = [], {}, None
    for parameter in inspect.signature(function).parameters.values():
        rule = rule_of(parameter, function.__globals__)
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = (parameter.name, rule)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            by_name[parameter.name] = rule
            if parameter.kind is not parameter.KEYWORD_ONLY:
                in_order.append((parameter.name, rule))
    if not any([*by_name.values(), rest and rest[1]]):
        return function

    @functools.wraps(function)
    def looks_first(*args, **kwargs):
        for (name, rule), value in zip(in_order, args, strict=False):
            if rule:
                refuse(name, rule, value)
        for value in args[len(in_order) :] if rest and rest[1] else ():
            refuse(*rest, value)
        for name, value in kwargs.items():
            if rule := by_name.get(name):
                refuse(name, rule, value)
        return function(*args, **kwargs)

    looks_first.__module__ = room or function.__module__
    looks_first.autograph_info__ = {}  # for tf.function: nothing here needs to be converted, and trying takes long
    return looks_first


def guard_making(owner: type) -> None:
    """Have a class look at the arguments of ``__init__`` and ``__new__``, once."""
    for name in ("__init__", "__new__"):
        maker = inspect.unwrap(getattr(owner, name)) if name in vars(owner) else None
        if isinstance(maker, types.FunctionType) and getattr(owner, name) is maker:
            looks_first = guarded(maker)
            setattr(owner, name, staticmethod(looks_first) if name == "__new__" else looks_first)


def refuse(name: str, rule, value) -> None:
    """A ValueError for a value that does not follow the rule."""
    fits, words = rule
    if not fits(value):
        shown = repr(value)
        shown = shown if len(shown) <= LONGEST_VALUE else f"{shown[:LONGEST_VALUE]}..."
        raise ValueError(f"{name} must be {words}, got {shown}")


def rule_of(parameter: inspect.Parameter, names: dict):
    """Which values an annotation allows, and in words; None for any, as where it names what is not imported."""
    fits, words = _rule(parameter.annotation, names) or (None, "")
    if not fits:
        return None
    if parameter.default is None and not fits(None):
        return (lambda value: value is None or fits(value)), f"{words} or None"
    return fits, words


def _rule(annotation, names: dict):
    if isinstance(annotation, str | typing.ForwardRef):
        try:
            return _rule(eval(getattr(annotation, "__forward_arg__", annotation), names), names)
        except (NameError, AttributeError, TypeError):
            return None
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        rules = [_rule(each, names) for each in inner]
        if None in rules:
            return None
        return (lambda value: any(fits(value) for fits, _ in rules)), " or ".join(words for _, words in rules)
    kind = origin or annotation
    if kind in SIMPLE:
        return SIMPLE[kind]
    if kind in (dict, kinds.Mapping):
        return _holding(
            kinds.Mapping, "a dict", lambda value: value.values(), [_rule(each, names) for each in inner[1:]]
        )
    if kind in SEVERAL:
        return _holding(kinds.Iterable, "a list", list, [_rule(inner[0], names)] if inner else [])
    if not isinstance(kind, type) or kind in (object, inspect.Parameter.empty) or getattr(kind, "_is_protocol", False):
        return None
    return (lambda value: isinstance(value, kind)), f"a {kind.__name__}"


def _holding(kind: type, words: str, members, rules: list):
    """Things that hold others, each of which follows the rule, if there is one; an iterator is not looked into."""
    inside = next(filter(None, rules), None)

    def fits(value):
        if not isinstance(value, kind) or isinstance(value, str | bytes | type):
            return False
        return not inside or not isinstance(value, kinds.Sized) or all(map(inside[0], members(value)))

    return fits, f"{words} of {inside[1]}" if inside else words


def _is_scalar(value, *dtypes: str) -> bool:
    """Whether this is a tensor or array of no dimension, or of none that is known yet, and of such a dtype."""
    if isinstance(value, type) or not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return False
    rank = value.shape.rank if hasattr(value.shape, "rank") else len(value.shape)
    return not rank and any(dtype in str(value.dtype) for dtype in dtypes)


def _is_array_like(value) -> bool:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return not isinstance(value, type) and any(word in str(value.dtype) for word in ("int", "float", "bool"))
    return isinstance(value, numbers.Number) or (isinstance(value, list | tuple) and all(map(_is_array_like, value)))


def _is_whole(value) -> bool:
    return (isinstance(value, numbers.Integral) and not isinstance(value, bool)) or _is_scalar(value, "int")


def _is_number(value) -> bool:
    return (isinstance(value, numbers.Real) and not isinstance(value, bool)) or _is_scalar(value, "int", "float")


SIMPLE = {
    int: (_is_whole, "a whole number"),
    float: (_is_number, "a number"),
    str: (lambda value: isinstance(value, str), "text"),
    bool: (lambda value: isinstance(value, bool) or _is_scalar(value, "bool"), "True or False"),
    None: (lambda value: value is None, "None"),
    type(None): (lambda value: value is None, "None"),
    os.PathLike: (lambda value: isinstance(value, os.PathLike), "a path"),
    pathlib.Path: (lambda value: isinstance(value, os.PathLike), "a path"),
    kinds.Callable: (callable, "a function"),
    ArrayLike: (_is_array_like, "a tensor, an array, or lists of numbers"),
}
SEVERAL = (list, tuple, set, kinds.Sequence, kinds.Iterable, kinds.Container, kinds.Iterator)
