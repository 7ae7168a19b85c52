"""The training loops of lessons 4, 5 and 7, sweeps over ratios, and the widgets that show them live.

A loop is a generator of events and depends on neither widgets nor files.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
