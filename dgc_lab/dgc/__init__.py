"""Deep Gradient Compression itself, as pure functions on tensors, and what keeps their state from step to step.

Lessons 4 and 5. Read `algorithm` first: it is the paper's Algorithm 1, line by line, and what every trainer and
optimizer runs. `thresholding` and `selection` find the elements that are sent, `config` holds every switch, `exchange`
carries what was taken in the `wire_format`, `compressor` keeps the state. `fused` is the algorithm in one pass, in C++.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
