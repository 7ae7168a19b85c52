"""Compression schemes, each in a few lines, and what it takes to write one.

Lesson 8. Read `scheme` first: what a scheme is. `quantised`, `sparse` and `low_rank` have the published ones, and
`gallery` all of them by name; `memory` goes around any, `elements` is what they are made of, and `compressor` runs one
where Deep Gradient Compression runs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
