"""Progress of a sweep, counted from its events, for widgets, the terminal and progress bars.

It uses neither a clock nor a widget.
"""

from __future__ import annotations

import math
import os

from dgc_lab.training.events import Evaluation, RowEnded, RowFailed, RowStarted, Step, TrainingDiverged


class SweepProgress:
    """Progress of a sweep's rows, with a name and a number of updates each; `take` updates it with every event.

    Attributes:
        done, total: updates so far, and in all. ``total`` excludes rows that the file ``out`` already contains, and
            the updates that a diverged row skips.
        name: name of the current row.
        rows, found: the finished rows, and how many of them the file already contained.
        failures: the reason for each diverged row.
        step, evaluation: the latest `Step` and `Evaluation`; None before the first.
        seconds: time from the start of the sweep to the latest event.
        stopped: whether the caller ended the sweep early.

    Example:
        >>> import numpy as np
        >>> progress = SweepProgress(["ratio 1", "ratio 0.1"], steps=[2, 2])
        >>> progress.take(RowStarted(0, 1.0))
        >>> progress.take(Step(1, loss=2.3, shares_sent=np.ones(1), share_sent=1.0, seconds=0.1), seconds=5.0)
        >>> progress.share, progress.message()
        (0.25, 'Ratio 1: step 1 of 4, about 15 s left.')
    """

    def __init__(self, names: list[str], steps: list[int], out: str | os.PathLike | None = None):
        self.names, self.steps, self.out = names, steps, out
        self.done, self.total, self.seconds = 0, sum(steps), 0.0
        self.name, self.step, self.evaluation = "", None, None
        self.rows, self.found, self.failures, self.stopped = [], 0, [], False
        self._row_began = 0  # updates before the current row

    def take(self, event, seconds: float = 0.0) -> None:
        """Update the progress with an event that came ``seconds`` after the start of the sweep."""
        self.seconds = seconds
        if isinstance(event, RowStarted):
            self.name, self._row_began = self.names[event.number], self.done
        elif isinstance(event, Step):
            self.done, self.step = self.done + 1, event
        elif isinstance(event, Evaluation):
            self.evaluation = event
        elif isinstance(event, RowFailed):
            self.failures.append(event.reason)
            self.total -= self.steps[event.number] - (self.done - self._row_began)
        elif isinstance(event, RowEnded):
            self.rows.append(event.row)
            if event.from_file:
                self.found += 1
                self.total -= self.steps[event.number]

    @property
    def ended(self) -> bool:
        """Whether every row has finished or failed."""
        return len(self.rows) + len(self.failures) == len(self.names)

    @property
    def share(self) -> float:
        """Share of the updates that are done, in [0, 1]."""
        return 1.0 if self.ended else self.done / self.total

    @property
    def seconds_left(self) -> float:
        """Estimated seconds for the remaining updates at the mean speed so far; infinite before the first."""
        return self.seconds * (self.total - self.done) / self.done if self.done else math.inf

    @property
    def failure(self) -> TrainingDiverged | None:
        """Error with the reasons of all diverged rows; None if no row diverged."""
        return TrainingDiverged(" ".join(f"{reason}." for reason in self.failures)) if self.failures else None

    def message(self) -> str:
        """Return the progress as text; "" before the first update."""
        if self.stopped:
            kept = "Finished rows are kept; Run continues with the others."
            return f"Stopped at step {self.done} of {self.total}. {kept}"
        if self.ended:
            made = len(self.rows) - self.found
            found = f", and {self.found} from {os.path.basename(self.out)}" if self.found else ""
            return f"Done: {made} {'row' if made == 1 else 'rows'} in {self.seconds:.1f} s{found}."
        name = self.name[:1].upper() + self.name[1:]
        return f"{name}: step {self.done} of {self.total}, about {self.seconds_left:.0f} s left." if self.done else ""
