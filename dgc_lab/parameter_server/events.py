"""What a training tells while it runs, and all of it collected. Lesson 3, from section 2 on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dgc_lab.parameter_server.schedule import GradientEvent


@dataclass(frozen=True)
class Score:
    """How good the weights were at a moment.

    Attributes:
        gradients: how many batches had been worked off.
        seconds: since the training began.
        values: by name, such as loss and accuracy.

    Example:
        >>> Score(40, seconds=1.5, values={"accuracy": 0.9}).values["accuracy"]
        0.9
    """

    gradients: int
    seconds: float
    values: dict[str, float]


@dataclass(frozen=True)
class WorkerDied:
    """A worker's process ended, and the training goes on without it, or with its successor.

    Attributes:
        worker: its number.
        seconds: since the training began.

    Example:
        >>> WorkerDied(worker=1, seconds=2.5).worker
        1
    """

    worker: int
    seconds: float


@dataclass(frozen=True)
class Finished:
    """The end of the training, or of the part of it until a stop.

    Attributes:
        weights: as they are now.
        version: number of updates made.
        gradients: how many batches were worked off, those before the checkpoint that it went on from included.

    Example:
        >>> Finished([np.zeros(3)], version=20, gradients=40).version
        20
    """

    weights: list[np.ndarray]
    version: int
    gradients: int


@dataclass
class Training:
    """What happened in a training.

    Attributes:
        records: one for each batch, as it ended.
        scores, deaths: of the weights, and of workers, in the order of time.
        end: None where the training was cut off.

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
