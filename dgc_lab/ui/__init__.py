"""What the widgets and figures of all lessons share.

`charts` has the palette, lines, losses, bars and rows over time; `widget` the base of all widgets, `explorer` that of
those that compute at once, `live_run` that of those that train, with a `live_figure`; `prediction` a widget of its own.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
