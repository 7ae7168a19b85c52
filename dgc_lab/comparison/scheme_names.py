"""Names and families of compression schemes, for figures: "QSGD, 7 levels" instead of ``qsgd:levels=7``."""

from __future__ import annotations

#: How people write the name of each published scheme, and the family to which it belongs.
NAMES = {
    "dense": ("uncompressed", "uncompressed"),
    "float16": ("float16", "fewer bits"),
    "bfloat16": ("bfloat16", "fewer bits"),
    "int8": ("int8", "fewer bits"),
    "int4": ("int4", "fewer bits"),
    "natural": ("natural compression", "fewer bits"),
    "qsgd": ("QSGD", "fewer bits"),
    "terngrad": ("TernGrad", "fewer bits"),
    "sign": ("signSGD", "one bit"),
    "signum": ("Signum", "one bit"),
    "ef_sign": ("EF-signSGD", "one bit"),
    "one_bit": ("1-bit SGD", "one bit"),
    "masking": ("masking", "fewer elements"),
    "threshold": ("threshold", "fewer elements"),
    "threshold_reuse": ("threshold reuse", "fewer elements"),
    "sidco": ("SIDCo", "fewer elements"),
    "top_k": ("top-k", "fewer elements"),
    "random_k": ("random-k", "fewer elements"),
    "leader_k": ("ScaleCom", "fewer elements"),
    "blocks": ("largest blocks", "fewer elements"),
    "cocktail": ("CocktailSGD", "fewer elements"),
    "dgc": ("DGC", "fewer elements"),
    "powersgd": ("PowerSGD", "low rank"),
    "eight_bit": ("8-bit levels", "fewer bits"),
    "inceptionn": ("INCEPTIONN", "fewer bits"),
    "sketch": ("SketchML", "fewer bits"),
    "adaptive_quantization": ("adaptive quantization", "fewer elements"),
    "adaptive_sparsification": ("adaptive sparsification", "fewer elements"),
    "gravac": ("GraVAC", "fewer elements"),
    "demo": ("DeMo", "fewer elements"),
    "one_bit_adam": ("1-bit Adam", "one bit"),
    "diloco": ("DiLoCo", "less often"),
    "sparseloco": ("SparseLoCo", "less often"),
}
PARAMETERS = {
    "levels": lambda value: f"{value} level{'s' * (value != '1')}",
    "ratio": lambda value: f"{100 * float(value):g} %",
    "rank": lambda value: f"rank {value}",
    "limit": lambda value: f"above {value}",
    "block": lambda value: f"blocks of {value}",
    "size": lambda value: f"blocks of {value}",
    "stages": lambda value: f"{value} stage{'s' * (value != '1')}",
    "period": lambda value: f"for {value} steps",
    "after": lambda value: f"after {value} dense steps",
    "exponent": lambda value: f"error below 2^-{value}",
    "keep": lambda value: f"keeping {100 * float(value):g} %",
    "k": lambda value: f"{value} of each chunk",
    "chunk": lambda value: f"chunks of {value}",
    "decay": lambda value: f"decay {value}",
    "warm_up": lambda value: f"after {value} dense steps",
    "outer_rate": lambda value: f"outer rate {value}",
    "every": lambda value: f"every {value} steps",
    "since": lambda value: f"from step {value}",
}


def readable(scheme: str) -> str:
    """Return a scheme's name as people write it; unknown names stay as they are.

    Example:
        >>> readable("qsgd:levels=7"), readable("top_k:ratio=0.001"), readable("mine")
        ('QSGD, 7 levels', 'top-k, 0.1 %', 'mine')
    """
    base, _, parameters = scheme.partition(":")
    if base not in NAMES:
        return scheme
    words = [NAMES[base][0]]
    for parameter in filter(None, parameters.split(",")):
        key, _, value = parameter.partition("=")
        words.append(PARAMETERS[key](value) if key in PARAMETERS else parameter)
    return ", ".join(words)


def family(scheme: str) -> str:
    """Return the family of a scheme: the way in which it saves bytes.

    Example:
        >>> family("powersgd:rank=2"), family("dense:every=8"), family("mine")
        ('low rank', 'less often', 'other')
    """
    base, _, parameters = scheme.partition(":")
    return "less often" if "every=" in parameters else NAMES.get(base, ("", "other"))[1]
