"""Training on several workers: communicators, optimizers for Keras and ``tf.compat.v1``, and callbacks.

Lessons 5, 7 and 9. `communicators` offers the same collectives for one worker, simulated workers and Horovod ranks;
`hierarchical` treats each host as one worker. `keras_optimizer` and `compat_v1_optimizer` train through
`dgc_lab.compression.compressor`. `callbacks` and `batch_norm` complement them, and `timeline` reads Horovod's timeline.
`sharding` divides an optimizer's state among the ranks, and `sockets` limits the bandwidth of their connections.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
