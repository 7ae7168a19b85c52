"""Ways to add up the contributions to one gradient: by TensorFlow, by hand, and over a network. Lesson 1.

`METHODS` sum tensors on one device, and `errors` says how far each is from the exact sum. `gradient_graph` shows which
additions ``tf.gradients`` makes of its `AGGREGATION_METHODS`, `session_trace` and `profiler_trace` what they cost,
`train_each_way` whether it matters. `exchange` adds up over links, by one of the `TOPOLOGIES`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
