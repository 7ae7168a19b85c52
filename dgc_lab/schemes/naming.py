"""Names of schemes: the function that makes one, and its parameters."""

from __future__ import annotations

import functools
import inspect


def named(make):
    """Name what a function makes by its parameters, as in ``qsgd:levels=4``."""

    @functools.wraps(make)
    def with_name(*args, **kwargs):
        bound = inspect.signature(make).bind(*args, **kwargs)
        bound.apply_defaults()
        parameters = ",".join(f"{name}={value}" for name, value in bound.arguments.items())
        return make(*args, **kwargs)._replace(name=f"{make.__name__}:{parameters}".rstrip(":"))

    return with_name
