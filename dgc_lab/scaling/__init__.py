"""When compression pays: a model of the time of a step, fitted to measured steps. Lesson 6.

`cost_model` predicts the time of a step on a `network`. `timing` measures a worker's own share of it on this machine,
and `calibration` fits a link's parameters to the steps in `tables`. `residual_staleness` measures how long
elements wait before workers send them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
