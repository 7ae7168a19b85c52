"""The published schemes by name, and a scheme from a text such as ``qsgd:levels=4``."""

from __future__ import annotations

import inspect

from dgc_lab.common import check_choice
from dgc_lab.schemes.low_rank import powersgd
from dgc_lab.schemes.quantised import (
    bfloat16,
    dense,
    ef_sign,
    float16,
    int8,
    natural,
    one_bit,
    qsgd,
    sign,
    signum,
    terngrad,
)
from dgc_lab.schemes.sparse import dgc, masking, random_k, threshold, top_k

SCHEMES = {
    make.__name__: make
    for make in (
        *(dense, float16, bfloat16, int8, masking, threshold, top_k, random_k, dgc),
        *(sign, ef_sign, signum, one_bit, qsgd, terngrad, natural, powersgd),
    )
}


def parse_scheme(text: str, **knobs):
    """A scheme of the gallery from its name and parameters.

    Args:
        text: such as ``"sign"`` or ``"qsgd:levels=4"``, parameters as the function of that name in `dgc_lab.schemes`
            has them, with commas between them.
        knobs: values for parameters that the text leaves out, of those that the scheme has.

    Raises:
        ValueError: there is no scheme of that name, or it has no such parameter, or a value is no number.

    Example:
        >>> parse_scheme("qsgd:levels=1").name
        'qsgd:levels=1'
    """
    name, _, rest = text.partition(":")
    make = SCHEMES[check_choice("scheme", name, SCHEMES)]
    allowed, values = inspect.signature(make).parameters, {}
    for parameter in filter(None, rest.split(",")):
        key, _, value = parameter.partition("=")
        check_choice(f"parameters of {name}", key, allowed or ("none",))
        try:
            values[key] = int(value) if value.isdecimal() else float(value)
        except ValueError:
            raise ValueError(f"{key} of {name} must be a number, got {value!r}") from None
    return make(**{key: value for key, value in knobs.items() if key in allowed} | values)
