"""Events that a training run yields, and their collection. Lesson 3, sections 2 to 10."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dgc_lab.parameter_server.schedule import GradientEvent


@dataclass(frozen=True)
class Score:
    """Quality of the weights at one moment.

    Attributes:
        gradients: number of finished batches.
        seconds: time since the start of the training.
        values: scores by name, such as loss and accuracy.

    Example:
        >>> Score(40, seconds=1.5, values={"accuracy": 0.9}).values["accuracy"]
        0.9
    """

    gradients: int
    seconds: float
    values: dict[str, float]


@dataclass(frozen=True)
class WorkerDied:
    """Death of a worker's process; the training continues without it, or with its replacement.

    Attributes:
        worker: number of the worker.
        seconds: time since the start of the training.

    Example:
        >>> WorkerDied(worker=1, seconds=2.5).worker
        1
    """

    worker: int
    seconds: float


@dataclass(frozen=True)
class Finished:
    """End of the training, or of the part before a stop.

    Attributes:
        weights: final weights.
        version: number of updates made.
        gradients: number of finished batches, including those before the checkpoint from which it resumed.

    Example:
        >>> Finished([np.zeros(3)], version=20, gradients=40).version
        20
    """

    weights: list[np.ndarray]
    version: int
    gradients: int


@dataclass
class Training:
    """Collected events of a training run.

    Attributes:
        records: one for each finished batch.
        scores, deaths: scores of the weights, and deaths of workers, in chronological order.
        end: the `Finished` event; None if the training was interrupted.

    Example:
        >>> training = Training()
        >>> training.take(Score(40, seconds=1.5, values={"accuracy": 0.9}))
        >>> len(training.scores), training.end
        (1, None)
    """

    records: list[GradientEvent] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    deaths: list[WorkerDied] = field(default_factory=list)
    end: Finished | None = None

    def take(self, event) -> None:
        """Add an event of `dgc_lab.parameter_server.training_loop.train`."""
        if isinstance(event, Finished):
            self.end = event
        else:
            {GradientEvent: self.records, Score: self.scores, WorkerDied: self.deaths}[type(event)].append(event)
