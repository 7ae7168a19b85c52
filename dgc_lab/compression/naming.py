"""Names of schemes: the function that makes one and its parameters, and for a user's own a digest of its code."""

from __future__ import annotations

import functools
import hashlib
import inspect
import numbers
import sys
import types

import numpy as np
import tensorflow as tf

from dgc_lab.common import check_number
from dgc_lab.compression.scheme import Scheme

# What the numbers may be that schemes are made with; a ratio that is a tensor is looked at where it is used.
LIMITS = {"ratio": "in [0, 1]", "momentum": "at least 0 and below 1", "limit": "at least 0 and finite"}

LIBRARIES = {"dgc_lab", "tensorflow", "keras", "numpy", *sys.stdlib_module_names}  # whose code is no user's


def named(make):
    """Name what a function makes by its parameters, as in ``qsgd:levels=4``; what may change later, by its name.

    A ValueError for a number outside of its `LIMITS`.
    """

    @functools.wraps(make)
    def with_name(*args, **kwargs):
        bound = inspect.signature(make).bind(*args, **kwargs)
        bound.apply_defaults()
        for key, value in bound.arguments.items():
            if key in LIMITS and not (tf.is_tensor(value) or isinstance(value, tf.Variable)):
                check_number(key, value, LIMITS[key])
        told = [f"{key}={value}" if isinstance(value, numbers.Real) else key for key, value in bound.arguments.items()]
        return make(*args, **kwargs)._replace(name=f"{make.__name__}:{','.join(told)}".rstrip(":"))

    return with_name


def identity(scheme: Scheme) -> str:
    """What rows in files call a scheme: its name, and of one that has a user's code in it a digest of that code.

    Example:
        >>> from dgc_lab.compression import qsgd, with_error_feedback
        >>> identity(with_error_feedback(qsgd(1)))
        'qsgd:levels=1, with error feedback'
    """
    name = scheme.name or getattr(scheme.step, "__name__", "scheme")
    own = list(own_texts([scheme.step, scheme.init], own=False, seen=set()))
    return f"{name} {hashlib.sha256(''.join(own).encode()).hexdigest()[:8]}" if own else name


def own_texts(value, own: bool, seen: set):
    """The code of a user's functions and classes in a value, as texts, and of these what they have, hold and name.

    ``own`` says that a user's function has the value; what the lab's functions hold is in their schemes' names. Nothing
    is told twice: ``seen`` are ids.
    """
    if isinstance(value, Scheme):
        value = [value.step, value.init]
    elif isinstance(value, functools.partial):
        value, own = [value.func, value.args, value.keywords], own or is_own(value.func)
    elif isinstance(value, types.MethodType):
        value, own = [value.__func__, value.__self__], own or is_own(value)
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, staticmethod | classmethod | tf.types.experimental.PolymorphicFunction):
        value = value.__wrapped__
    if isinstance(value, dict):
        value = sorted(value.items(), key=repr)
    elif isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if isinstance(value, list | tuple):
        for one in value:
            yield from own_texts(one, own, seen)
    elif isinstance(value, types.FunctionType) and id(value) not in seen:
        seen.add(id(value))
        if own := is_own(value):
            yield code_of(value.__code__)
        held = inspect.getclosurevars(value).nonlocals | {"defaults": [value.__defaults__, value.__kwdefaults__]}
        yield from own_texts({**named_in(value), **held}, own, seen)
    elif own and isinstance(value, numbers.Number | str | bytes):
        yield repr(value)
    elif own and isinstance(value, np.ndarray | tf.Tensor) and hasattr(value, "__array__"):
        value = np.asarray(value)
        yield f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    elif own and isinstance(value, type) and is_own(value) and id(value) not in seen:
        seen.add(id(value))
        for kind in filter(is_own, value.__mro__):
            has = vars(kind).items()
            yield from own_texts({name: one for name, one in has if name[:2] != "__" or callable(one)}, own, seen)
    elif own and is_own(type(value)) and hasattr(value, "__dict__") and id(value) not in seen:
        seen.add(id(value))
        yield from own_texts([type(value), vars(value)], own, seen)


def is_own(thing) -> bool:
    """Whether a function, a class or a module is a user's."""
    module = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", "")
    return str(module).partition(".")[0] not in LIBRARIES


def named_in(function) -> dict:
    """What a function's code names in its module, and in the user's modules that it names there, by name."""
    names = {name for code in codes_in(function.__code__) for name in code.co_names}
    spaces, named = [function.__globals__], {}
    for number, space in enumerate(spaces):
        for name in sorted(names & space.keys()):
            named[name if number == 0 else f"{number}.{name}"] = value = space[name]
            if isinstance(value, types.ModuleType) and is_own(value) and all(vars(value) is not one for one in spaces):
                spaces.append(vars(value))
    return named


def codes_in(code: types.CodeType):
    """A function's code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def code_of(code: types.CodeType) -> str:
    """A function's code as text, the same in every process."""

    def text(constant):
        if isinstance(constant, frozenset):  # of texts: in another order in every process
            return "{" + ", ".join(sorted(map(text, constant))) + "}"
        if isinstance(constant, tuple):
            return "(" + "".join(f"{text(one)}, " for one in constant) + ")"
        return code_of(constant) if isinstance(constant, types.CodeType) else repr(constant)

    return f"{code.co_code.hex()} {code.co_names} {[text(one) for one in code.co_consts]}"
