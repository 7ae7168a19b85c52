"""What the parts of a step cost in seconds: given, or taken from a measured run, for `dgc_lab.parameter_server.simulation`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgc_lab.parameter_server.metrics import check_runs
from dgc_lab.parameter_server.schedule import GradientEvent


@dataclass(frozen=True)
class StepCosts:
    """How long the parts of a step take, in seconds: each one number, or a sequence of measured ones to draw from.

    Attributes:
        computing: to compute a gradient, without a straggler; above 0.
        reading: to read the weights, with the servers' lock held.
        applying: to hand in a gradient, with the servers' lock held.
        dispatch: from the end of one gradient until the worker has the next batch.
        serial_dispatch: True where the coordinator hands out one batch at a time, False where it serves all workers
            at once.

    Raises:
        ValueError: an attribute holds no number, a negative or infinite one, or computing a 0.

    Example:
        >>> StepCosts(computing=0.01, dispatch=[0.001, 0.002])
        Costs(computing=(0.01,), reading=(0.0,), applying=(0.0,), dispatch=(0.001, 0.002), serial_dispatch=False)
    """

    computing: tuple[float, ...]
    reading: tuple[float, ...] = (0.0,)
    applying: tuple[float, ...] = (0.0,)
    dispatch: tuple[float, ...] = (0.0,)
    serial_dispatch: bool = False

    def __post_init__(self):
        for name in ("computing", "reading", "applying", "dispatch"):
            given = getattr(self, name)
            try:
                values = np.asarray(given, float).ravel()
            except (TypeError, ValueError):
                raise ValueError(f"{name} must be seconds, one number or several, got {given!r}") from None
            if not values.size:
                raise ValueError(f"{name} must hold at least one number of seconds, got none")
            wrong = values[~np.isfinite(values) | (values < 0) | ((values == 0) & (name == "computing"))]
            if wrong.size:
                least = "above 0" if name == "computing" else "at least 0"
                raise ValueError(f"{name} must be {least} seconds and finite, got {float(wrong[0])!r}")
            object.__setattr__(self, name, tuple(values.tolist()))

    @classmethod
    def measured(cls, records: list[GradientEvent], serial_dispatch: bool = False) -> StepCosts:
        """Costs as a real run without a straggler shows them.

        Time under the lock is taken from those reads and submissions alone during which no other worker's ended: in
        the others a worker may have waited, for its turn or for the lock, and the simulation adds waiting by itself.
        An asynchronous run has the most of them.

        Raises:
            ValueError: there is no record, no worker with two gradients, or no exchange in which none ended.

        Example:
            >>> run = [GradientEvent(0, n, 5 * n, 5 * n + 1, 5 * n + 3, 5 * n + 4, n, n, 2.3) for n in range(3)]
            >>> Costs.measured(run)  # doctest: +ELLIPSIS
            Costs(computing=(2.0, 2.0, 2.0), reading=(1.0, 1.0, 1.0), applying=(1.0, 1.0, 1.0), dispatch=(1.0, 1.0)...
        """
        check_runs({"records": records})
        reads = np.array([(record.began, record.read) for record in records])
        submissions = np.array([(record.computed, record.done) for record in records])
        ends = np.sort(np.concatenate([reads[:, 1], submissions[:, 1]]))
        reading, applying = _unhindered(reads, ends), _unhindered(submissions, ends)
        if not reading.size or not applying.size:
            raise ValueError(
                "records must hold reads and submissions during which no other worker's ended, got "
                f"{reading.size} and {applying.size} of {len(records)}; measure an asynchronous run of few workers"
            )
        gaps, last = [], {}
        for record in sorted(records, key=lambda record: record.began):
            if record.worker in last:
                gaps.append(max(0.0, record.began - last[record.worker]))
            last[record.worker] = record.done
        if not gaps:
            raise ValueError(f"records must hold two gradients of one worker, got {len(records)} of as many workers")
        return cls([record.computed - record.read for record in records], reading, applying, gaps, serial_dispatch)


def _unhindered(spans, ends) -> np.ndarray:
    """Lengths of those spans, shape (n, 2), in which none of the sorted ends lies, but for their own."""
    within = np.searchsorted(ends, spans[:, 1], "left") - np.searchsorted(ends, spans[:, 0], "right")
    return np.diff(spans)[within == 0, 0]
