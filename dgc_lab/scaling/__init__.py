"""When compression pays: a model of a step's time, fitted to measured steps, and many simulated workers. Lesson 6.

`cost_model` says how long a step takes on a `network`; `timing` measures what a worker needs for it here, `calibration`
finds a link's figures from the steps in `tables`. `worker_sweep` trains 1 to 32 workers on the same examples, and
`residual_staleness` looks how old what they send has become.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
