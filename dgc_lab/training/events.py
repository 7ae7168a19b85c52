"""What the training loops of lessons 4 and 5 yield, and the error that ends one. Readers of rows need no TensorFlow."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np


class TrainingDiverged(ArithmeticError):
    """A gradient held NaN or infinity; the message names the step and the variable."""


@dataclass(frozen=True)
class Step:
    """What one update did.

    Attributes:
        step: 1 for the first.
        loss: mean cross-entropy of the batch before the update.
        kept: share of the elements that passed the mask, per tensor in the order of the trainer's ``names``.
        kept_overall: the same over all elements.
        seconds: wall-clock time of the updates so far; tracing and evaluations left out.
        bytes_sent: payload that a worker handed to the collectives; None where one worker trains alone.

    Example:
        >>> Step(1, loss=2.3, kept=np.array([0.02, 0.5]), kept_overall=0.02, seconds=0.1).loss
        2.3
    """

    step: int
    loss: float
    kept: np.ndarray
    kept_overall: float
    seconds: float
    bytes_sent: int | None = None


@dataclass(frozen=True)
class DistributedStep(Step):
    """What one update of all workers did; the loss is the mean over them, ``kept`` that over those of this process.

    Its step, loss, kept, kept_overall, seconds and bytes_sent are as in `Step`.

    Attributes:
        dense_bytes: what sending the whole gradient in float32 would have been.
        ratio: the ratio of this step, by the warm-up.

    Example:
        >>> step = DistributedStep(1, 2.3, np.array([0.01]), 0.01, 0.1, bytes_sent=400, dense_bytes=40_000)
        >>> step.dense_bytes / step.bytes_sent
        100.0
    """

    dense_bytes: int = 0
    ratio: float = 1.0


@dataclass(frozen=True)
class Evaluation:
    """What the model is worth after ``step`` updates, on the whole test set: accuracy in [0, 1] and mean loss.

    Example:
        >>> Evaluation(step=300, accuracy=0.97, loss=0.1).accuracy
        0.97
    """

    step: int
    accuracy: float
    loss: float


@dataclass(frozen=True)
class RowStarted:
    """A ``ratio`` begins; ``number`` counts from 0 over all ratios of the sweep.

    Example:
        >>> RowStarted(number=0, ratio=0.01).ratio
        0.01
    """

    number: int
    ratio: float


@dataclass(frozen=True)
class RowFailed:
    """A ``ratio``, the ``number``-th, whose training diverged: no row, the ``reason`` in words; the sweep goes on.

    Example:
        >>> RowFailed(1, 0.01, "the gradient of dense/kernel holds NaN").reason
        'the gradient of dense/kernel holds NaN'
    """

    number: int
    ratio: float
    reason: str


@dataclass(frozen=True)
class RowEnded:
    """A ratio is done: ``number`` as in `RowStarted`, its ``row``, and whether an earlier call had made it.

    Example:
        >>> RowEnded(0, {"ratio": 0.01, "accuracy": 0.9}, from_file=True).row["accuracy"]
        0.9
    """

    number: int
    row: dict
    from_file: bool


def next_evaluation(step: int, steps: int, evaluations: int) -> int:
    """The next step after ``step``, not the last, at which the test set is measured: evenly spaced, the last included.

    Example:
        >>> next_evaluation(0, 300, 10), next_evaluation(30, 300, 10), next_evaluation(270, 300, 1)
        (30, 60, 300)
    """
    number = step * evaluations // steps + 1
    return -(-number * steps // evaluations)


def readable_error(error) -> str:
    """TensorFlow's message cut down to "gradient of NAME holds NaN", where that is what it says."""
    said = str(error.message).replace('\\"', "")
    found = re.search(r"gradient of .*?(?= values| \[\[|]?$)", said, re.MULTILINE)
    return found[0].replace(" : Tensor had", " holds") if found else said
