"""The cost of a step: models of its time, traffic and memory, and measured steps. Lessons 6 and 9.

`cost_model` predicts the time of a step on a `network`. `timing` measures a worker's own share of it on this machine,
and `calibration` fits a link's parameters to the steps in `tables`. `residual_staleness` measures how long
elements wait before workers send them.

For lesson 9, `overlap` measures exchanges that overlap the backward pass, and `bucket_figure` draws a model of them.
`collectives` compares algorithms of an allreduce, `memory` computes what sharding saves, and `known_models` has
published models, links and clusters.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
