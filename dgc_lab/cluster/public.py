"""Processes that train together beside the notebook: where to find them.

- `HorovodRanks`: Horovod ranks, which talk by allreduce and allgather;
- `ParameterServers`: TensorFlow's parameter servers with workers and a coordinator;
- `MultiWorkerMirrored`: TensorFlow's workers that talk by allreduce.
"""

from dgc_lab.cluster.calls import FunctionFailed, ProcessDied
from dgc_lab.cluster.engine_calls import RankFailed
from dgc_lab.cluster.engines import RankDied
from dgc_lab.cluster.horovod_ranks import HorovodRanks
from dgc_lab.cluster.rank import stop_requested
from dgc_lab.cluster.tensorflow_clusters import MultiWorkerMirrored, ParameterServers

__all__ = [
    "FunctionFailed",
    "HorovodRanks",
    "MultiWorkerMirrored",
    "ParameterServers",
    "ProcessDied",
    "RankDied",
    "RankFailed",
    "stop_requested",
]
