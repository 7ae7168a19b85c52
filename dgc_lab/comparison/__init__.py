"""Comparison of compression schemes: accuracy at each one's learning rate, errors, cost, and a widget to train them.

Lesson 8. The schemes themselves are in `dgc_lab.compression`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
