"""The published schemes by name, and a scheme from a text such as ``qsgd:levels=4``."""

from __future__ import annotations

import dataclasses
import inspect

from dgc_lab.common import check_choice, check_text
from dgc_lab.compression.scheme import Scheme
from dgc_lab.compression.schemes.adam import one_bit_adam
from dgc_lab.compression.schemes.adaptive import adaptive_quantization, adaptive_sparsification, gravac, sketch
from dgc_lab.compression.schemes.by_threshold import sidco, threshold, threshold_reuse
from dgc_lab.compression.schemes.chunked import demo
from dgc_lab.compression.schemes.floats import eight_bit, inceptionn
from dgc_lab.compression.schemes.less_often import diloco, sparseloco
from dgc_lab.compression.schemes.low_rank import powersgd
from dgc_lab.compression.schemes.quantized import bfloat16, dense, float16, int4, int8, natural, qsgd, terngrad
from dgc_lab.compression.schemes.shared_indices import cocktail, leader_k, random_k
from dgc_lab.compression.schemes.signs import ef_sign, one_bit, sign, signum
from dgc_lab.compression.schemes.sparse import blocks, dgc, masking, top_k
from dgc_lab.compression.wrappers import after, local_sgd

#: Functions that return the published schemes, by name.
SCHEMES = {
    make.__name__: make
    for make in (
        *(dense, float16, bfloat16, int8, int4, masking, threshold, threshold_reuse, sidco),
        *(top_k, random_k, leader_k, blocks, dgc, cocktail),
        *(sign, ef_sign, signum, one_bit, qsgd, terngrad, natural, powersgd),
        *(eight_bit, inceptionn, sketch, adaptive_quantization, adaptive_sparsification, gravac, demo),
        *(one_bit_adam, diloco, sparseloco),
    )
}


def parse_scheme(text: str, **defaults):
    """Return a published scheme from its name and parameters.

    Args:
        text: such as ``"sign"`` or ``"qsgd:levels=4"``, with the parameters of the function of that name,
            separated by commas. All schemes take those of `local_sgd` too, as in ``"dense:every=8"``, and the steps
            of `after`, as in ``"powersgd:after=100"``.
        defaults: values for parameters that the text leaves out; parameters that the scheme does not have are ignored.

    Raises:
        ValueError: there is no scheme of that name, it has no such parameter, or a value is not a number or is given
            twice.

    Example:
        >>> parse_scheme("qsgd:levels=1").name
        'qsgd:levels=1'
    """
    name, _, rest = check_text("text", text).partition(":")
    make = SCHEMES[check_choice("scheme", name, SCHEMES)]
    own, values = inspect.signature(make).parameters, {}
    less_often = () if "every" in own else ("every", "since", "outer_rate")
    for parameter in filter(None, rest.split(",")):
        key, value = (part.strip() for part in parameter.partition("=")[::2])
        check_choice(f"parameters of {name}", key, (*own, "after", *less_often))
        if key in values:
            raise ValueError(f"{key} of {name} must be given once, got {rest!r}")
        try:
            values[key] = int(value) if value.isdecimal() else float(value)
        except ValueError:
            raise ValueError(f"{key} of {name} must be a number, got {value!r}") from None
    values = {key: value for key, value in defaults.items() if key in own} | values
    scheme = make(**{key: value for key, value in values.items() if key in own})
    if "after" in values:
        scheme = after(scheme, values["after"])
    when = {key: values[key] for key in less_often if key in values}
    return local_sgd(scheme, **when) if when else scheme


def is_published(scheme: Scheme) -> bool:
    """Return whether a scheme is the one that `parse_scheme` makes from its name.

    Example:
        >>> is_published(powersgd(rank=2)), is_published(dataclasses.replace(powersgd(rank=2), name="sign"))
        (True, False)
    """
    made = published(scheme.name)
    if made is None or dataclasses.replace(made, step=scheme.step, init=scheme.init) != scheme:
        return False
    return made.step.__code__ == getattr(scheme.step, "__code__", None)


def published(name: str) -> Scheme | None:
    """Return the published scheme of this name, or None if there is none."""
    try:
        return parse_scheme(name)
    except ValueError:
        return None
