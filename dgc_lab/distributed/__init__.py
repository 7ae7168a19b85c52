"""Several workers and the optimizers that train on them: who takes part, Keras, ``tf.compat.v1``, callbacks.

Lessons 5 and 7. `communicators` has one worker, simulated workers and Horovod ranks with the same collectives,
`hierarchical` makes hosts the workers. `keras_optimizer` and `compat_v1_optimizer` train through
`dgc_lab.compression.compressor`, `callbacks` and `batch_norm` accompany them, `timeline` reads Horovod's timeline.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
