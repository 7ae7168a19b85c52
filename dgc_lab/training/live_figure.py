"""The live picture of the widgets of lessons 4 and 5: loss and accuracy by step."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure

from dgc_lab.ui.live_figure import LiveFigure

LONGEST_LINE = 30  # letters in the legend


class Curves(LiveFigure):
    """Two panels that grow while training runs: loss by step, accuracy on the test set by step."""

    def __init__(self, steps: int):
        super().__init__(Figure(figsize=(9.0, 3.2), dpi=84, layout="constrained"))
        self.loss_axes, self.accuracy_axes = self.figure.subplots(1, 2)
        self.loss_axes.set(xlabel="step", ylabel="training loss", ylim=(0, 2.5))
        self.accuracy_axes.set(xlabel="step", ylabel="test accuracy", ylim=(0, 1.02))
        for axes in self.figure.axes:
            axes.grid(alpha=0.3)
        # Laying out costs as much as drawing and comes out the same every time: do it once.
        self.figure.get_layout_engine().set(w_pad=0.16)  # inches; room for longer numbers at the right ends
        self.canvas.draw()
        self.figure.set_layout_engine("none")
        self.steps = 0
        self.fit(steps)

    def fit(self, steps: int) -> None:
        """Make room for runs of that many steps."""
        self.steps = max(self.steps, steps)
        for axes in self.figure.axes:
            axes.set_xlim(0, self.steps)
            axes.locator_params(axis="x", nbins=6)  # more labels of thousands of steps run into each other
        self.background = None

    def begin(self, label: str) -> None:
        """A new run starts; the ones before become thinner."""
        thick = {"linewidth": 2, "marker": "o", "markersize": 3.5}
        self._begin(label, loss=(self.loss_axes, {"linewidth": 1.2}), accuracy=(self.accuracy_axes, thick))

    def _named(self):
        # Names that list settings are longer than a panel is wide.
        self.runs[-1]["lines"]["accuracy"].set_label(textwrap.fill(self.runs[-1]["label"], LONGEST_LINE))
        self.accuracy_axes.legend(loc="lower right", fontsize=8, ncols=1 + len(self.runs) // 7, framealpha=0.8)

    def add_loss(self, step: int, loss: float) -> None:
        """One more point of the current run's loss."""
        self._add("loss", step, loss)
        self._make_room(self.loss_axes, loss)

    def add_accuracy(self, step: int, accuracy: float) -> None:
        """One more point of the current run's accuracy on the test set."""
        self._add("accuracy", step, accuracy)

    def alt(self) -> str:
        """What the two panels show, in words."""
        said = []
        for run in self.runs:
            (steps, losses), (_, accuracies) = run["loss"], run["accuracy"]
            words = [f"loss {losses[-1]:.3f} at step {steps[-1]}"] if losses else []
            words += [f"test accuracy {accuracies[-1]:.3f}"] if accuracies else []
            said.append(f"{run['label']}: {', '.join(words) or 'starting'}")
        return "Training loss (left) and test accuracy (right) by step. " + ("; ".join(said) or "No run yet") + "."
