"""A variable with a copy on each replica, and the effect of ``tf.VariableAggregation`` on its values. Lesson 2.

`start_devices` and `mirrored` create replicas, even on a single processor. `try_pair` and `all_pairs` show how the
values assigned by replicas are aggregated, and `through_checkpoint` which of them a checkpoint contains. `train` is an
explicit training loop with correct and incorrect gradient exchanges, and with local SGD, which averages weights from
time to time. `combined_weights` combines independently trained replicas into one model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
