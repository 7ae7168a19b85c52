"""Names of schemes: the function that makes one and its parameters, and for a user's own a digest of its code."""

from __future__ import annotations

import functools
import hashlib
import inspect
import numbers
import types

import numpy as np
import tensorflow as tf

from dgc_lab.common import check_number
from dgc_lab.schemes.scheme import Scheme

# What the numbers may be that schemes are made with; a tensor is looked at where it is used.
LIMITS = {"ratio": "in [0, 1]", "momentum": "at least 0 and below 1", "limit": "at least 0 and finite"}

LIBRARIES = ("dgc_lab", "tensorflow", "keras", "numpy")  # whose code is no user's


def named(make):
    """Name what a function makes by its parameters, as in ``qsgd:levels=4``; what may change later, by its name.

    A ValueError for a number outside of its `LIMITS`.
    """

    @functools.wraps(make)
    def with_name(*args, **kwargs):
        bound = inspect.signature(make).bind(*args, **kwargs)
        bound.apply_defaults()
        for key, value in bound.arguments.items():
            if key in LIMITS and isinstance(value, numbers.Real):
                check_number(key, value, LIMITS[key])
        told = [f"{key}={value}" if isinstance(value, numbers.Real) else key for key, value in bound.arguments.items()]
        return make(*args, **kwargs)._replace(name=f"{make.__name__}:{','.join(told)}".rstrip(":"))

    return with_name


def identity(scheme: Scheme) -> str:
    """What rows in files call a scheme: its name, and of one that has a user's code in it a digest of that code.

    Example:
        >>> from dgc_lab.schemes import qsgd, with_memory
        >>> identity(with_memory(qsgd(1)))
        'qsgd:levels=1, with memory'
    """
    name = scheme.name or getattr(scheme.step, "__name__", "scheme")
    own = list(own_texts([scheme.step, scheme.init]))
    return f"{name} {hashlib.sha256(''.join(own).encode()).hexdigest()[:8]}" if own else name


def own_texts(value, own=False, seen=()):
    """The code of a user's functions in a value, as texts, and of these what they have as defaults, hold and name.

    ``own`` says that a user's function has the value; what the lab's functions hold is in their schemes' names.
    """
    if isinstance(value, Scheme):
        value = [value.step, value.init]
    elif isinstance(value, functools.partial):
        value, own = [value.func, value.args, value.keywords], own or is_own(value.func)
    if isinstance(value, dict):
        value = sorted(value.items(), key=repr)
    if isinstance(value, list | tuple):
        for one in value:
            yield from own_texts(one, own, seen)
    elif isinstance(value, types.FunctionType) and value not in seen:
        if own := is_own(value):
            yield code_of(value.__code__)
        names = {name for code in codes_in(value.__code__) for name in code.co_names}
        named = {name: value.__globals__[name] for name in names & value.__globals__.keys()}
        held = inspect.getclosurevars(value).nonlocals | {"defaults": [value.__defaults__, value.__kwdefaults__]}
        yield from own_texts({**named, **held}, own, (*seen, value))
    elif own and isinstance(value, numbers.Number | str | bytes):
        yield repr(value)
    elif own and isinstance(value, np.ndarray | tf.Tensor) and hasattr(value, "__array__"):
        value = np.asarray(value)
        yield f"{value.dtype} {value.shape} {value.tobytes().hex()}"


def is_own(function) -> bool:
    """Whether a function is a user's."""
    return str(getattr(function, "__module__", "")).partition(".")[0] not in LIBRARIES


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
