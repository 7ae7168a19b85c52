"""Settings of a training run on parameter servers. Lesson 3, sections 2 to 10."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dgc_lab.common import check_flag, check_instance, check_number, check_whole
from dgc_lab.parameter_server.schedule import Schedule


@dataclass(frozen=True)
class AsyncConfig:
    """Settings of a training run on parameter servers.

    Attributes:
        schedule: mode and stragglers.
        gradients: total number of batches, whichever workers process them; at least one for each worker. In
            synchronous training, a multiple of the number of workers.
        batch: examples per gradient.
        learning_rate: for one worker's gradient, above 0; see `dgc_lab.parameter_server.server.ParameterServerModel`.
        momentum: in [0, 1).
        staleness_aware: divide the learning rate by the staleness if that is above 1.
        seed: seed of the order of examples. Unless synchronous, two runs with the same seed still differ, because
            gradients arrive in a different order.
        score_every: gradients between two scores (and two checkpoints).

    Raises:
        ValueError: an attribute is not as described above.

    Example:
        >>> AsyncConfig(Schedule("asynchronous"), gradients=240, batch=128).learning_rate
        0.05
    """

    schedule: Schedule = field(default_factory=Schedule)
    gradients: int = 400
    batch: int = 64
    learning_rate: float = 0.05
    momentum: float = 0.0
    staleness_aware: bool = False
    seed: int = 0
    score_every: int = 100

    def __post_init__(self):
        check_instance("schedule", self.schedule, Schedule)
        check_flag("staleness_aware", self.staleness_aware)
        check_whole("gradients", self.gradients, 1, 1_000_000)
        check_whole("batch", self.batch, 1, min(2**16, 2**27 // self.gradients))  # their order takes at most a gigabyte
        check_whole("seed", self.seed, 0, 2**31 - 1)
        check_whole("score_every", self.score_every, 1, 1_000_000)
        check_number("learning_rate", self.learning_rate, "above 0 and finite")
        check_number("momentum", self.momentum, "at least 0 and below 1")

    def check(self, workers: int) -> None:
        """Raise ValueError if the config does not fit this number of workers."""
        if self.gradients < workers:
            raise ValueError(f"gradients must be at least {workers}, one for each worker, got {self.gradients}")
        if self.gradients % (workers if self.schedule.mode == "synchronous" else 1):
            raise ValueError(f"gradients must be a multiple of {workers}, the number of workers, got {self.gradients}")
        self.schedule.gradients_per_update(workers)

    def batch_order(self, examples: int) -> np.ndarray:
        """Return the positions of each batch's examples in the training set, the same in every mode.

        The result is int64 (gradients, batch).
        """
        return np.random.default_rng(self.seed).integers(0, examples, (self.gradients, self.batch))
