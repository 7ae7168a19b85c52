"""The live figure of the sweep widgets: loss and accuracy by step, and accuracy by the amount sent."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from dgc_lab.ui.charts import GREY, MARKERS
from dgc_lab.ui.live_figure import LiveFigure

LONGEST_LINE = 30  # characters in a line of the legend
LEFT_END = 3  # rows that sent nothing are drawn at the smallest amount sent, divided by this


class Curves(LiveFigure):
    """Panels that grow during training: loss and test accuracy by step.

    Args:
        steps: end of the step axes.
        sent: axis label for the amount sent, such as ``"kB per step"``; adds a third panel, accuracy by this amount.
    """

    def __init__(self, steps: int, sent: str = ""):
        super().__init__(Figure(figsize=(10.8 if sent else 9.0, 3.3), dpi=100, layout="constrained"))
        self.columns = 3 if sent else 2
        self.loss_axes, self.accuracy_axes, *third = self.figure.subplots(1, self.columns)
        self.loss_axes.set(xlabel="step", ylabel="training loss", ylim=(0, 2.5))
        self.accuracy_axes.set(xlabel="step", ylabel="test accuracy", ylim=(0, 1.02))
        self.sent, self.sent_axes, self.points = sent, third[0] if third else None, []
        if sent:
            self.sent_axes.set(xlabel=sent, ylabel="test accuracy", xscale="log", xlim=(1e-3, 1), ylim=(0, 1.02))
            self.sent_axes.xaxis.set_major_locator(LogLocator())
            self.sent_axes.xaxis.set_major_formatter("{x:g}")
            self.sent_axes.xaxis.set_minor_formatter(NullFormatter())
            self.sent_axes.locator_params(axis="y", nbins=5)  # longer numbers, such as 0.975, would cover the label
        for axes in self.figure.axes:
            axes.grid(alpha=0.3)
        # Layout takes as long as drawing and always gives the same result: do it once.
        self.figure.get_layout_engine().set(w_pad=0.16)  # inches; space for longer numbers at the right ends
        self.canvas.draw()
        self.figure.set_layout_engine("none")
        self.fit(steps)

    def fit(self, steps: int) -> None:
        """Extend the step axes to ``steps``; if there is no run yet, shorten them too."""
        self.steps = max(steps, self.steps) if self.runs else steps
        for axes in (self.loss_axes, self.accuracy_axes):
            axes.set_xlim(0, self.steps)
            axes.locator_params(axis="x", nbins=6)  # more labels would overlap at thousands of steps
        self.background = None

    def begin(self, label: str) -> None:
        """Start a new run; the lines of earlier runs become thinner."""
        thick = {"linewidth": 2, "marker": "o", "markersize": 3.5}
        self._begin(label, loss=(self.loss_axes, {"linewidth": 1.2}), accuracy=(self.accuracy_axes, thick))

    def _update_legend(self):
        # Names that list settings can be wider than the panel. Runs with the same name share one legend entry.
        label = self.runs[-1]["label"]
        again = label in [run["label"] for run in self.runs[:-1]]
        name = "_again" if again else textwrap.fill(label, LONGEST_LINE)
        self.runs[-1]["lines"]["accuracy"].set_label(name)
        columns = 1 + len({run["label"] for run in self.runs}) // 7
        self.accuracy_axes.legend(loc="lower right", fontsize=8, ncols=columns, framealpha=0.8)

    def add_loss(self, step: int, loss: float) -> None:
        """Add a point to the current run's loss."""
        self._add("loss", step, loss)
        self._extend_loss_axis(self.loss_axes, loss)

    def add_accuracy(self, step: int, accuracy: float) -> None:
        """Add a point to the current run's test accuracy."""
        self._add("accuracy", step, accuracy)

    def add_row(self, sent: float, accuracy: float, mark: int = 0) -> None:
        """Add the point of the current run, which has finished. Runs with the same ``mark`` share a marker."""
        colour = self.runs[-1]["lines"]["loss"].get_color()
        looks = {"color": colour, "marker": MARKERS[mark % len(MARKERS)], "markersize": 6}
        [point] = self.sent_axes.plot([sent], [accuracy], linestyle="", **looks)
        self.points.append((self.runs[-1]["label"], sent, accuracy, point))
        sizes = [size for _, size, _, _ in self.points if size] or [1.0]
        least, most = min(sizes), max(sizes)
        self.sent_axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if most < 10 * least else (1,)))
        lowest = min(accuracy for _, _, accuracy, _ in self.points)
        self.sent_axes.set(xlim=(least / LEFT_END / 1.3, most * 2), ylim=(max(0, lowest // 0.1 / 10 - 0.1), 1.02))
        for _, own, _, drawn in self.points:
            drawn.set_xdata([own or least / LEFT_END])
        self.background = None

    def beside(self, published: dict) -> None:
        """Draw published accuracies by share sent, as a thin line behind the points."""
        if not self.sent_axes.get_legend():
            shares = sorted(share for share in published if share > 0)
            accuracies = [published[share][0] for share in shares]
            self.sent_axes.plot(shares, accuracies, color=GREY, linewidth=1, zorder=1, label="published")
            self.sent_axes.legend(loc="lower right", fontsize=8, framealpha=0.8)
            self.background = None

    def alt(self) -> str:
        """Return an alternative text for the panels."""
        said = []
        for run in self.runs:
            (steps, losses), (_, accuracies) = run["loss"], run["accuracy"]
            words = [f"loss {losses[-1]:.3f} at step {steps[-1]}"] if losses else []
            words += [f"test accuracy {accuracies[-1]:.3f}"] if accuracies else []
            said.append(f"{run['label']}: {', '.join(words) or 'starting'}")
        ended = [f"{label}: {accuracy:.3f} at {sent:.3g}" for label, sent, accuracy, _ in self.points]
        places, third = "(left) and test accuracy (right)", ""
        if self.sent:
            places = "(left) and test accuracy (middle)"
            third = f" Right: test accuracy by {self.sent}. {'; '.join(ended) or 'No run has ended yet'}."
        return f"Training loss {places} by step. {'; '.join(said) or 'No run yet'}.{third}"
