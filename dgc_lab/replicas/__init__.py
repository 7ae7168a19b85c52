"""A variable with a copy on each replica, and what ``tf.VariableAggregation`` makes of their values. Lesson 2.

`start_devices` and `mirrored` make replicas, on one processor too. `try_pair` and `all_pairs` say what becomes of the
values that replicas assign, `through_checkpoint` what a file keeps of them. `train` is a training loop written out,
with right and wrong ways to exchange gradients, and local SGD, which averages weights now and then; `combined_weights`
makes one model of replicas that trained alone.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
