"""Everything that fixes a training on parameter servers. Lesson 3, from section 2 on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dgc_lab.common import check_flag, check_instance, check_number, check_whole
from dgc_lab.parameter_server.schedule import Schedule


@dataclass(frozen=True)
class AsyncConfig:
    """Everything that fixes a training.

    Attributes:
        schedule: the mode, and who is slow.
        gradients: how many batches are worked off in all, whichever worker takes them; at least one for each worker,
            and a multiple of their number in synchronous training.
        batch: examples of one gradient.
        learning_rate: for one worker's gradient, above 0; see `dgc_lab.parameter_server.server.ParameterServerModel`.
        momentum: in [0, 1).
        staleness_aware: divide the rate by the staleness, where that is above 1.
        seed: of the order of examples; in any mode but synchronous two runs differ all the same, by who comes first.
        score_every: gradients between two scores (and two checkpoints).

    Raises:
        ValueError: a value is outside what is allowed.

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
        check_whole("batch", self.batch, 1, min(2**16, 2**27 // self.gradients))  # their order is a gigabyte at most
        check_whole("seed", self.seed, 0, 2**31 - 1)
        check_whole("score_every", self.score_every, 1, 1_000_000)
        check_number("learning_rate", self.learning_rate, "above 0 and finite")
        check_number("momentum", self.momentum, "at least 0 and below 1")

    def check(self, workers: int) -> None:
        """Raise a ValueError if the config does not fit that many workers."""
        if self.gradients < workers:
            raise ValueError(f"gradients must be at least one for each of {workers} workers, got {self.gradients}")
        if self.gradients % (workers if self.schedule.mode == "synchronous" else 1):
            raise ValueError(f"gradients must be a multiple of the {workers} workers, got {self.gradients}")
        self.schedule.gradients_an_update(workers)

    def batch_order(self, examples: int) -> np.ndarray:
        """Places of each batch's examples in the training set: int64 (gradients, batch), the same in every mode."""
        return np.random.default_rng(self.seed).integers(0, examples, (self.gradients, self.batch))
