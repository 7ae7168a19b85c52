"""Training on parameter servers, synchronous and asynchronous: when workers wait, and what staleness does. Lesson 3.

`train_on` trains a `Classifier` on started `dgc_lab.cluster.ParameterServers` as an `AsyncConfig` says, in which a
`Schedule` says who waits for whom. Each batch ends as a `GradientEvent`; `summary` and `by_worker` make tables of them,
`simulate` makes them for more workers than this machine holds, and `replay` makes a training of such records again
without servers. `stability` asks how high a rate stale gradients allow.

A gradient's way: the coordinator's loop (`training_loop`) hands a batch to a worker (`coordinator`), whose step
(`worker`) reads weights from the servers and submits a gradient to them (`server`). Without servers: `allreduce`.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "schedule": "DROPPED GradientEvent MODES Schedule Straggler",
        "config": "AsyncConfig",
        "training_loop": "train train_on",
        "events": "Finished Score Training WorkerDied",
        "tasks": "Classifier",
        "worker": "worker_step",
        "allreduce": "train_mirrored",
        "metrics": "by_worker count_staleness events_in_order speed_in_parts summary",
        "replaying": "replay",
        "simulation": "StepCosts scale_row simulate sweep_workers",
        "stability": "guaranteed_rate largest_stable_rate stable_rate",
        "widget": "StragglerLab",
    },
)
