"""Deep Gradient Compression itself, as pure functions on tensors, and what keeps their state from step to step.

Lessons 4 and 5. Read `algorithm` first: it is the paper's Algorithm 1, line by line, and what every trainer and
optimizer runs. `thresholding` and `selection` find the elements that are sent, `config` holds every switch, `exchange`
carries what was taken in the `wire_format`, `compressor` keeps the state. `fused` is the algorithm in one pass, in C++.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "algorithm": "clip_locally correct_momentum local_step zero_at",
        "break_even": "break_even_ratio dense_is_shorter",
        "compressor": "Compressor",
        "config": "PAPER_WARM_UP DGCConfig geometric_warm_up payload_bytes",
        "selection": "select",
        "thresholding": "RULES SCOPES exact_threshold hierarchical_threshold keep_mask keep_masks sampled_threshold "
        "split thresholds",
        "wire_format": "INDEX_TYPES VALUE_TYPES places run_lengths",
    },
)
