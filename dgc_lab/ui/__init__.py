"""What the widgets and figures of all lessons share.

`charts` has the palette, lines, losses, bars and rows over time. `widget` has the base of all panels, `explorer` that
of those that compute at once, `live_panel` that of those that train; they draw a `live_figure`, such as
`curves`. `prediction` is a widget of its own.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
