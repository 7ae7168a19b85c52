"""Methods to sum the contributions to a gradient: in TensorFlow, by hand, and over a network. Lesson 1.

`METHODS` sum tensors on one device, and `errors` compares them with the exact sum. `gradient_graph` shows the additions
that ``tf.gradients`` builds for each of the `AGGREGATION_METHODS`, `session_trace` and `profiler_trace` measure their
cost, and `train_each_way` shows their effect on training. `exchange` sums over links, by one of the `TOPOLOGIES`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
