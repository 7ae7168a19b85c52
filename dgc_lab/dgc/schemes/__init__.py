"""Compression schemes, each in a few lines, and what it takes to write one.

Lesson 8. Read `scheme` first: what a scheme is. `gallery` has the published ones, `memory` what goes around them,
`elements` what they are made of; `compressor` runs any of them where Deep Gradient Compression runs.
"""

from dgc_lab.common import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "compressor": "SchemeCompressor",
        "elements": "chance in_places largest mean_of mean_of_entries pack_bits round_by_chance unpack_bits",
        "gallery": "SCHEMES bfloat16 dense dgc ef_sign float16 int8 masking natural one_bit powersgd qsgd random_k "
        "sign signum terngrad threshold top_k",
        "memory": "with_memory with_momentum",
        "scheme": "All Mean Scheme Turn",
    },
)
