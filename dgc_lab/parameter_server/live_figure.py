"""The live figure of lesson 3's widget: loss by time, staleness, and a timeline of the last seconds."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from dgc_lab.parameter_server.figures import LOOKS, spans
from dgc_lab.parameter_server.metrics import update_times
from dgc_lab.parameter_server.schedule import DROPPED, GradientEvent
from dgc_lab.ui.charts import BESIDE, PALETTE, legend_of_rows, name_rows
from dgc_lab.ui.live_figure import LiveFigure

SMOOTH = 20  # gradients in the loss's moving average
MIN_WINDOW = 1.5  # seconds of the timeline; doubled for slow workers
GRADIENTS_IN_WINDOW = 4  # of the slowest worker, at least
MIN_STALENESS = 8  # last bar of the empty histogram; doubled until it counts few gradients
MAX_IN_LAST_BAR = 0.02  # share of the gradients, so that a single stale one does not narrow all other bars
GRADIENTS_FOR_SHARES = 25
NAMES_IN_LEGEND = 12
CORNERS = ((0, -0.4), (0, 0.4), (1, 0.4), (1, -0.4))  # of a bar: in units of its length, and in rows


class StragglerPicture(LiveFigure):
    """Figure with three panels: loss of all runs by time; staleness and last seconds of the current run."""

    def __init__(self):
        super().__init__(Figure(figsize=(9.6, 4.9), dpi=100))
        # Fixed positions: automatic layout takes longer than drawing and always gives the same result.
        self.loss_axes = self.figure.add_axes((0.065, 0.5, 0.375, 0.46))
        self.staleness_axes = self.figure.add_axes((0.52, 0.5, 0.205, 0.46))  # to its right, the loss's legend
        self.worker_axes = self.figure.add_axes((0.09, 0.17, 0.895, 0.21))
        self.loss_axes.set(ylabel=f"training loss, mean of {SMOOTH}", xlim=(0, 4), ylim=(0, 2.5))
        self.loss_axes.set_xlabel("seconds", labelpad=1)
        self.loss_axes.grid(alpha=0.3)
        self.staleness_axes.set(ylabel="share of gradients", ylim=(0, 1.02))
        self.staleness_axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        self.staleness_axes.xaxis.get_major_locator().set_params(integer=True)
        self.staleness_axes.grid(alpha=0.3, axis="y")
        self.worker_axes.set_xlabel("seconds, back from the latest gradient", labelpad=1)
        for axes in self.figure.axes:
            axes.tick_params(labelsize=8)
            for label in (axes.xaxis.label, axes.yaxis.label):
                label.set_size(9)
        self._stairs = self.staleness_axes.stairs([0.0], [-0.5, 0.5], fill=True, color=PALETTE[0])
        self._bars = {look: PolyCollection([], **looks) for look, looks in LOOKS.items()}
        for bars in self._bars.values():
            self.worker_axes.add_collection(bars, autolim=False)
        [self._marks] = self.worker_axes.plot([], [], "|", color="black", markersize=9)
        legend_of_rows(self.figure, LOOKS, "update")
        self._start(0)

    def _start(self, workers: int):
        """Clear the panels of the current run."""
        self.workers, self.window, self.shown = workers, MIN_WINDOW, MIN_STALENESS
        self.counts, self._recent = Counter(), deque()
        self._lengths = [deque(maxlen=9) for _ in range(workers)]  # seconds of a worker's last gradients
        name_rows(self.worker_axes, ["updates", *(f"worker {n}" for n in range(workers))], first=-1)
        self._fit()

    def _fit(self):
        self.worker_axes.set_xlim(-self.window, 0)
        self.staleness_axes.set_xlim(-0.7, self.shown + 0.7)
        self.staleness_axes.set_xlabel(f"staleness (last bar: {self.shown} or more)", labelpad=1)
        self.background = None

    def begin(self, label: str, workers: int) -> None:
        """Start a new run; the lines of earlier runs become thinner."""
        self._last = deque(maxlen=SMOOTH)  # losses
        self._begin(label, loss=(self.loss_axes, {"linewidth": 1.8}))
        self._start(workers)

    def _update_legend(self):
        run = self.runs[-1]
        run["lines"]["loss"].set_label(run["label"])
        self.staleness_axes.set_title(run["label"], fontsize=9, pad=3)
        # The names of more runs have no space.
        lines = [run["lines"]["loss"] for run in self.runs[-NAMES_IN_LEGEND:]]
        place = {**BESIDE, "bbox_to_anchor": (0.73, 0.975), "bbox_transform": self.figure.transFigure}
        self.loss_axes.legend(handles=lines, **place, handlelength=1.2, frameon=False)

    def add(self, record: GradientEvent) -> None:
        """Add a gradient of the current run."""
        self._last.append(record.loss)
        # Records of different workers can arrive out of order, but time on the line never goes back.
        seconds = max([record.done, *self.runs[-1]["loss"][0][-1:]])
        loss = float(np.mean(self._last))
        self._add("loss", seconds, loss)
        if record.update != DROPPED:
            self.counts[record.staleness] += 1
        self._recent.append(record)
        self._lengths[record.worker].append(record.done - record.read)
        if seconds > self.loss_axes.get_xlim()[1]:
            self.loss_axes.set_xlim(0, 1.6 * seconds)
            self.background = None
        self._extend_loss_axis(self.loss_axes, loss)
        self._fit_one_run()

    def _fit_one_run(self):
        """Double the ranges of the current run's panels if they have become too small."""
        slowest = max(float(np.median(lengths)) for lengths in self._lengths if lengths)
        before = self.shown, self.window
        while self.shares()[-1] > MAX_IN_LAST_BAR and self.counts.total() >= GRADIENTS_FOR_SHARES:
            self.shown *= 2
        while GRADIENTS_IN_WINDOW * slowest > self.window:
            self.window *= 2
        if (self.shown, self.window) != before:
            self._fit()

    def shares(self) -> list[float]:
        """Return the bars of the histogram: the share of gradients with staleness 0, 1, ..., ``shown`` or more."""
        total = max(self.counts.total(), 1)
        below = [self.counts[staleness] for staleness in range(self.shown)]
        return [count / total for count in (*below, self.counts.total() - sum(below))]

    def _last_seconds(self):
        """Return the window's end (when the latest gradient was done), its spans by worker, and its update times."""
        end = max((record.done for record in self._recent), default=0.0)
        start = end - self.window
        self._recent = deque(record for record in self._recent if record.done > start)
        return end, spans(self._recent, range(self.workers), start, end), [*update_times(self._recent).values()]

    def _moving(self):
        if not self.runs:
            return []
        self._stairs.set_data(self.shares(), np.arange(self.shown + 2) - 0.5)
        end, bars, moments = self._last_seconds()
        for look, collection in self._bars.items():
            corners = [
                [(begin - end + side * length, worker + height) for side, height in CORNERS]
                for worker in range(self.workers)
                for begin, length in bars[worker, look]
            ]
            collection.set_verts(np.reshape(corners, (-1, 4, 2)))
        self._marks.set_data([moment - end for moment in moments], [-1] * len(moments))
        return [*super()._moving(), self._stairs, *self._bars.values(), self._marks]

    def alt(self) -> str:
        """Describe the three panels in words."""
        said = []
        for run in self.runs:
            seconds, values = run["loss"]
            points = f"{values[0]:.3f} at first, {values[-1]:.3f} after {seconds[-1]:.3g} s" if values else ""
            said.append(f"{run['label']}: {points or 'starting'}")
        words = "Training loss by seconds. " + ("; ".join(said) or "No run yet") + "."
        if not self.counts:
            return words
        total = self.counts.total()
        mean = sum(staleness * count for staleness, count in self.counts.items()) / total
        _, bars, moments = self._last_seconds()
        doing = []
        for worker in range(self.workers):
            shares = {look: sum(length for _, length in bars[worker, look]) / self.window for look in LOOKS}
            named = [f"{look} {share:.0%}" for look, share in shares.items() if share >= 0.005]
            doing.append(f"worker {worker} " + (", ".join(named) or "nothing"))
        return (
            f"{words} Staleness of {self.runs[-1]['label']}: mean {mean:.2f}, at most {max(self.counts)}, "
            f"{self.counts[0] / total:.0%} are 0. Its last {self.window:g} seconds: {len(moments)} updates; "
            f"{'; '.join(doing)}."
        )
