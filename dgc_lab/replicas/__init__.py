"""A variable with a copy on each replica, and what ``tf.VariableAggregation`` makes of their values. Lesson 2."""

from dgc_lab.common import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "mirrored_variable": "AGGREGATIONS ASSIGNMENTS all_pairs all_reduce assign_on_replicas copies mirrored per_replica_variable start_devices through_checkpoint try_pair",
        "training_loop": "batch_order combined_weights dense_network largest_difference train",
        "widget": "ReplicaExplorer",
    },
)
