"""Several workers and the optimizers that train on them: who takes part, Keras, ``tf.compat.v1``, callbacks.

Lessons 5 and 7. `communicators` has one worker, simulated workers and Horovod ranks with the same collectives,
`hierarchical` makes hosts the workers. `keras_optimizer` and `compat_v1_optimizer` train through
`dgc_lab.compression.compressor`, `callbacks` and `batch_norm` accompany them, `timeline` reads Horovod's timeline.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "communicators": "HorovodWorkers OneWorker RanksDisagree SimulatedWorkers default_communicator",
        "hierarchical": "HierarchicalCommunicator",
        "keras_optimizer": "DistributedOptimizer",
        "rank_files": "SaveRanks",
        "callbacks": "AverageMetrics WriteCompression on_first_rank shard",
        "compat_v1_optimizer": "GradientCompressionOptimizer",
        "batch_norm": "AverageStatistics average_statistics statistics_of",
        "timeline": "by_phase",
        "traffic": "count_collective_bytes",
    },
)
