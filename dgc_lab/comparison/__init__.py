"""Compression schemes side by side: a table at the learning rate of each, errors, cost, and a widget that trains them.

Lesson 8. The schemes themselves are in `dgc_lab.compression`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
