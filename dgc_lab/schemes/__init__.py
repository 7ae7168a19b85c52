"""Compression schemes, each in a few lines, and what it takes to write one.

Lesson 8. Read `scheme` first: what a scheme is. `quantised`, `sparse` and `low_rank` have the published ones, and
`gallery` all of them by name; `memory` goes around any, `elements` is what they are made of, and `compressor` runs one
where Deep Gradient Compression runs.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "compressor": "SchemeCompressor compressor_of",
        "elements": "chance in_places largest mean_of mean_of_entries pack_bits round_by_chance sent_alone unpack_bits",
        "gallery": "SCHEMES parse_scheme",
        "low_rank": "powersgd",
        "memory": "local with_memory with_momentum",
        "quantised": "bfloat16 dense ef_sign float16 int8 natural one_bit qsgd sign signum terngrad",
        "scheme": "All Mean Scheme Turn",
        "sparse": "dgc masking random_k threshold top_k",
    },
)
