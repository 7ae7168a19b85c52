"""Processes alongside the notebook that train together: they start, stay warm, run one function at a time, and stop.

Lessons 3, 5, 7 and 8. `HorovodRanks` communicate by allreduce and allgather, and ``%%px`` runs a cell on them.
`ParameterServers` are TensorFlow's parameter servers, with workers and a coordinator. `MultiWorkerMirrored` are
TensorFlow's workers that communicate by allreduce.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
