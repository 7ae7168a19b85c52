"""Processes beside the notebook that train together: they start, stay warm, run one function at a time, and end.

Lessons 3, 5, 7 and 8. `HorovodRanks` talk by allreduce and allgather, and ``%%px`` runs a cell on them;
`ParameterServers` are TensorFlow's, with workers and a coordinator; `MultiWorkerMirrored` are TensorFlow's workers that
talk by allreduce.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "calls": "FunctionFailed ProcessDied RankDied RankFailed",
        "horovod_ranks": "HorovodRanks",
        "rank": "stop_requested",
        "tensorflow_clusters": "MultiWorkerMirrored ParameterServers",
        "tensorflow_roles": "serve",
        "horovod_launcher": "horovodrun",
    },
)
