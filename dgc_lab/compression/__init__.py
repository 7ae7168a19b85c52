"""Gradient compression: schemes, the driver that runs them on all workers, and the compressor that keeps their state.

Lessons 4 to 9. Read `scheme` first: what a scheme is. `dgc_scheme` has Deep Gradient Compression, and the folder
`schemes` the other published ones, which its `gallery` lists by name. `thresholding` and `selection` find the elements
to send, `driver` exchanges them in the `wire_format`, and `compressor` trains with a scheme.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
