"""Synchronous and asynchronous training on parameter servers: schedules, stragglers and staleness. Lesson 3.

`train_on` trains a `Classifier` on started `dgc_lab.cluster.ParameterServers`. An `AsyncConfig` has the settings; its
`Schedule` determines when workers wait. Each batch gives a `GradientEvent`; `summary` and `by_worker` tabulate these.
`simulate` generates them for more workers than this machine can run, and `replay` repeats a training run from them
without servers. `StragglerExplorer` draws simulated timelines as you drag a straggler. `stability` computes how high a
learning rate stale gradients allow.

A gradient's path: the coordinator's loop (`training_loop`) sends a batch to a worker (`coordinator`). The worker's step
(`worker`) reads weights from the servers and submits a gradient to them (`server`). `allreduce` needs no servers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
