"""Events that the training loops of lessons 4 and 5 yield, and the error for divergence. Needs no TensorFlow."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np


class TrainingDiverged(ArithmeticError):
    """Error for a gradient that contains NaN or infinity; the message names the step and the variable."""


@dataclass(frozen=True)
class Step:
    """Result of one update.

    Attributes:
        step: 1 for the first update.
        loss: mean cross-entropy of the batch before the update.
        shares_sent: share of each tensor's elements that passed the mask, in the order of the trainer's ``names``.
        share_sent: share of all elements that passed the mask.
        seconds: wall-clock time of all updates so far, without tracing and evaluations.
        bytes_sent: payload that a worker passed to the collectives; None if one worker trains alone.

    Example:
        >>> Step(1, loss=2.3, shares_sent=np.array([0.02, 0.5]), share_sent=0.02, seconds=0.1).loss
        2.3
    """

    step: int
    loss: float
    shares_sent: np.ndarray
    share_sent: float
    seconds: float
    bytes_sent: int | None = None


@dataclass(frozen=True)
class DistributedStep(Step):
    """Result of one update of all workers.

    Fields step, loss, shares_sent, share_sent, seconds and bytes_sent are as in `Step`. The loss is the mean over all
    workers, ``shares_sent`` the mean over the workers of this process.

    Attributes:
        dense_bytes: size of the dense gradient in float32.
        ratio: ratio of this step, which depends on the warm-up.

    Example:
        >>> step = DistributedStep(1, 2.3, np.array([0.01]), 0.01, 0.1, bytes_sent=400, dense_bytes=40_000)
        >>> step.dense_bytes / step.bytes_sent
        100.0
    """

    dense_bytes: int = 0
    ratio: float = 1.0


@dataclass(frozen=True)
class Evaluation:
    """Accuracy in [0, 1] and mean loss on the whole test set after ``step`` updates.

    Example:
        >>> Evaluation(step=300, accuracy=0.97, loss=0.1).accuracy
        0.97
    """

    step: int
    accuracy: float
    loss: float


@dataclass(frozen=True)
class RowStarted:
    """Start of row ``number`` of a sweep, counted from 0, at a ``ratio``.

    Example:
        >>> RowStarted(number=0, ratio=0.01).ratio
        0.01
    """

    number: int
    ratio: float


@dataclass(frozen=True)
class RowFailed:
    """Divergence of row ``number`` at a ``ratio``, with the ``reason`` as text. The sweep continues without a row.

    Example:
        >>> RowFailed(1, 0.01, "the gradient of dense/kernel holds NaN").reason
        'the gradient of dense/kernel holds NaN'
    """

    number: int
    ratio: float
    reason: str


@dataclass(frozen=True)
class RowEnded:
    """End of row ``number``; ``from_file`` says whether the file already contained the ``row``.

    Example:
        >>> RowEnded(0, {"ratio": 0.01, "accuracy": 0.9}, from_file=True).row["accuracy"]
        0.9
    """

    number: int
    row: dict
    from_file: bool


def next_evaluation(step: int, steps: int, evaluations: int) -> int:
    """Return the next step after ``step`` with an evaluation.

    Evaluations are evenly spaced; the last one follows the last step.

    Example:
        >>> next_evaluation(0, 300, 10), next_evaluation(30, 300, 10), next_evaluation(270, 300, 1)
        (30, 60, 300)
    """
    number = step * evaluations // steps + 1
    return -(-number * steps // evaluations)


def readable_error(error) -> str:
    """Shorten TensorFlow's message to "gradient of NAME holds NaN" if it reports that."""
    message = str(error.message).replace('\\"', "")
    found = re.search(r"gradient of .*?(?= values| \[\[|]?$)", message, re.MULTILINE)
    return found[0].replace(" : Tensor had", " holds") if found else message
