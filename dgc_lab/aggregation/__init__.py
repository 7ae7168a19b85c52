"""Ways to add up the contributions to one gradient: by TensorFlow, by hand, and over a network. Lesson 1.

`METHODS` sum tensors on one device, and `errors` says how far each is from the exact sum. `gradient_graph` shows which
additions ``tf.gradients`` makes of its `AGGREGATION_METHODS`, `session_trace` and `profiler_trace` what they cost,
`train_each_way` whether it matters. `exchange` adds up over links, by one of the `TOPOLOGIES`.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "summation": "METHODS ORDERS SIGNS make_addends pairwise_sum sequential_sum kahan_sum",
        "rounding_error": "apart_by_order error_bound errors exact_sum measure relative_error",
        "addn_graph": "AGGREGATION_METHODS depth gradient_graph sum_nodes tape_graph",
        "profiling": "TraceError profiler_trace recurrent_gradient session_trace without_grappler",
        "addn_timing": "crossing time_sums",
        "allreduce_topologies": "TOPOLOGIES exchange summary",
        "tied_rnn": "train_each_way",
        "figures": "error_and_time_bars lines links sum_graphs timeline training_step",
        "widget": "AggregationExplorer",
    },
)
