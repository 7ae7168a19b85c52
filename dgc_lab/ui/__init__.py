"""Shared widgets and figures of all lessons.

`charts` has the palette, line plots, losses, bars and rows over time. `widget` has the base class of all panels,
`explorer` that of panels that compute at once, and `live_panel` that of panels that train. These draw a `live_figure`,
such as `curves`. `stepper` shows a series of pictures, and `prediction` is a widget of its own.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
