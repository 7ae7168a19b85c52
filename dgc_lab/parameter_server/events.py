"""What a training tells while it runs, and all of it collected. Lesson 3, from section 2 on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dgc_lab.parameter_server.schedule import GradientEvent


@dataclass(frozen=True)
class Score:
    """How good the weights were at a moment."""

    gradients: int  # how many batches had been worked off
    seconds: float  # since the training began
    values: dict[str, float]  # by name, such as loss and accuracy


@dataclass(frozen=True)
class WorkerDied:
    """A worker's process ended, and the training goes on without it, or with its successor."""

    worker: int  # its number
    seconds: float  # since the training began


@dataclass(frozen=True)
class Finished:
    """The end of the training, or of the part of it until a stop."""

    weights: list[np.ndarray]  # as they are now
    version: int  # number of updates made
    gradients: int  # how many batches were worked off, those before the checkpoint that it went on from included


@dataclass
class Training:
    """What happened in a training."""

    records: list[GradientEvent] = field(default_factory=list)  # one for each batch, as it ended
    scores: list[Score] = field(default_factory=list)
    deaths: list[WorkerDied] = field(default_factory=list)
    end: Finished | None = None  # None where the training was cut off

    def take(self, event) -> None:
        """Add an event of `dgc_lab.parameter_server.training_loop.train`."""
        if isinstance(event, Finished):
            self.end = event
        else:
            {GradientEvent: self.records, Score: self.scores, WorkerDied: self.deaths}[type(event)].append(event)
