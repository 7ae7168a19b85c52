"""A variable with a copy on each replica, and what ``tf.VariableAggregation`` makes of their values. Lesson 2.

`start_devices` and `mirrored` make replicas, on one processor too. `try_pair` and `all_pairs` say what becomes of the
values that replicas assign, `through_checkpoint` what a file keeps of them. `train` is a training loop written out,
with right and wrong ways to exchange gradients, and local SGD, which averages weights now and then; `combined_weights`
makes one model of replicas that trained alone.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "mirrored_variable": "AGGREGATIONS ASSIGNMENTS SYNCHRONIZATIONS AssignmentResult TooLate all_pairs all_reduce "
        "assign_on_replicas copies mirrored per_replica_variable start_devices through_checkpoint try_pair",
        "training_loop": "batch_order combined_weights dense_network largest_difference train",
        "figures": "copies_before_and_after",
        "widget": "ReplicaExplorer",
    },
)
