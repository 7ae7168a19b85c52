"""Training on parameter servers, synchronous and asynchronous: when workers wait, and what staleness does. Lesson 3."""

from dgc_lab.common import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "schedule": "GradientEvent MODES Schedule Straggler",
        "training_loop": "AsyncConfig train train_on",
        "tasks": "Classifier",
        "metrics": "by_worker summary",
        "simulation": "scale_row simulate sweep_workers",
        "step_costs": "StepCosts",
        "widget": "StragglerLab",
    },
)
