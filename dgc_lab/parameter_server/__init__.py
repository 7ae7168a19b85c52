"""Training on parameter servers, synchronous and asynchronous: when workers wait, and what staleness does. Lesson 3.

`train_on` trains a `Classifier` on started `dgc_lab.cluster.ParameterServers` as an `AsyncConfig` says, in which a
`Schedule` says who waits for whom. Each batch ends as a `GradientEvent`; `summary` and `by_worker` make tables of them,
`simulate` makes them for more workers than this machine holds, and `replay` makes a training of such records again
without servers. `stability` asks how high a rate stale gradients allow.

A gradient's way: the coordinator's loop (`training_loop`) hands a batch to a worker (`coordinator`), whose step
(`worker`) reads weights from the servers and submits a gradient to them (`server`). Without servers: `allreduce`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
