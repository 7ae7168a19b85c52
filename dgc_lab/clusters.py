"""Processes that train together beside the notebook: where to find them.

- `HorovodRanks`: Horovod ranks, which talk by allreduce and allgather;
- `ParameterServers`: TensorFlow's parameter servers with workers and a coordinator;
- `MultiWorkerMirrored`: TensorFlow's workers that talk by allreduce.
"""

from dgc_lab.calls import FunctionFailed, ProcessDied
from dgc_lab.engine_calls import RankFailed
from dgc_lab.engines import RankDied
from dgc_lab.horovod_ranks import HorovodRanks
from dgc_lab.rank import stop_requested
from dgc_lab.tensorflow_clusters import MultiWorkerMirrored, ParameterServers

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
