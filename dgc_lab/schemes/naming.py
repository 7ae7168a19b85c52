"""Names of schemes: the function that makes one and its parameters, and for a user's own a digest of its code."""

from __future__ import annotations

import functools
import hashlib
import inspect
import numbers
import types

from dgc_lab.common import check_number
from dgc_lab.schemes.scheme import Scheme

# What the numbers may be that schemes are made with; a tensor is looked at where it is used.
LIMITS = {"ratio": "in [0, 1]", "momentum": "at least 0 and below 1", "limit": "at least 0 and finite"}


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
    own = sorted({text for module, text in parts_of(scheme) if not module.startswith("dgc_lab.")})
    return f"{name} {hashlib.sha256(''.join(own).encode()).hexdigest()[:8]}" if own else name


def parts_of(function, seen=()):
    """(module, code as text) of a function or scheme, and of what it calls by a name of its module or holds."""
    if isinstance(function, Scheme):
        yield from (part for one in (function.step, function.init) for part in parts_of(one, seen))
    if not isinstance(function, types.FunctionType) or function in seen:
        return
    yield function.__module__, code_of(function.__code__)
    held = inspect.getclosurevars(function)
    for name, value in {**held.nonlocals, **held.globals}.items():
        if isinstance(value, numbers.Number | str):
            yield function.__module__, f"{name}={value!r}"
        yield from parts_of(value, (*seen, function))


def code_of(code: types.CodeType) -> str:
    """A function's code as text, the same in every process."""

    def text(constant):
        if isinstance(constant, frozenset):  # of texts: in another order in every process
            return "{" + ", ".join(sorted(map(text, constant))) + "}"
        if isinstance(constant, tuple):
            return "(" + "".join(f"{text(one)}, " for one in constant) + ")"
        return code_of(constant) if isinstance(constant, types.CodeType) else repr(constant)

    return f"{code.co_code.hex()} {code.co_names} {[text(one) for one in code.co_consts]}"
