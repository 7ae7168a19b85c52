"""Names of published schemes: the name of the scheme's function, and its parameters."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers

import tensorflow as tf

from dgc_lab.common import check_number

# Ranges of the parameters; a ratio given as a tensor is checked where it is used.
LIMITS = {
    "ratio": "in [0, 1]",
    "keep": "in [0, 1]",
    "momentum": "at least 0 and below 1",
    "decay": "at least 0 and below 1",
    "limit": "at least 0 and finite",
}


def named(make):
    """Name the scheme that a function makes after the function and its parameters, as in ``qsgd:levels=4``.

    A tensor appears without its value, and None not at all. Raises ValueError if a number is outside its `LIMITS`.
    """

    @functools.wraps(make)
    def with_name(*args, **kwargs):
        bound = inspect.signature(make).bind(*args, **kwargs)
        bound.apply_defaults()
        for key, value in bound.arguments.items():
            if key in LIMITS and not (tf.is_tensor(value) or isinstance(value, tf.Variable)):
                check_number(key, value, LIMITS[key])
        given = {key: value for key, value in bound.arguments.items() if value is not None}
        parameters = [f"{key}={value}" if isinstance(value, numbers.Real) else key for key, value in given.items()]
        return dataclasses.replace(make(*args, **kwargs), name=f"{make.__name__}:{','.join(parameters)}".rstrip(":"))

    return with_name
