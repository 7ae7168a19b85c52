"""Controls and experiment of the widgets of lessons 4, 5 and 8; the experiment trains one run after another."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

from ipywidgets import Dropdown, FloatLogSlider, FloatText, IntText, Text, Widget

from dgc_lab.common import check_file, free_memory
from dgc_lab.training.events import Evaluation, RowEnded, RowStarted, Step
from dgc_lab.training.progress import SweepProgress
from dgc_lab.training.published_tables import beside_published
from dgc_lab.training.sweeps import parse_ratios, row_matches, train_each
from dgc_lab.ui.curves import Curves
from dgc_lab.ui.widget import preset_menu, wide
from dgc_lab.workloads.data import load
from dgc_lab.workloads.models import MODELS

FIRST_STEPS = 300
# Settings in a legend, if their names with spaces instead of underscores are not what people write.
WORDS = {
    "rule": "threshold",
    "warm_up": "warm-up",
    "warm_up_steps": "steps per warm-up stage",
    "accumulate": "accumulation",
    "nesterov": "Nesterov's momentum",
    "clip_norm": "gradient clipping",
}


def training_controls(learning_rate: Widget | None = None) -> dict[str, Widget]:
    """Return the controls that all training widgets have; ``learning_rate`` replaces its number field."""
    return {
        "dataset": wide(Dropdown, "Data set", options=list(MODELS)),
        "learning_rate": learning_rate or wide(FloatText, "Learning rate", value=0.05),
        "momentum": wide(FloatText, "Momentum", value=0.9),
        "batch": wide(IntText, "Batch", value=64),
        "steps": wide(IntText, "Steps", value=FIRST_STEPS),
    }


def ratio_controls(presets: dict[str, str]) -> dict[str, Widget]:
    """Return a slider for one ratio, a text field for a list of ratios, a menu of ``presets``, and the seed."""
    options = {"value": 0.01, "base": 10, "min": -4, "max": 0, "step": 0.1, "readout_format": ".2g"}
    slider = wide(FloatLogSlider, "Ratio", **options)
    field = wide(Text, "Ratios", value="0.01", placeholder="0.01 or 1, 10%, 1%")

    def write_ratio(_):
        if single_ratio(field.value) != slider.value:
            field.value = f"{slider.value:.2g}"

    def follow_field(_):
        if 10**slider.min <= single_ratio(field.value) <= 1:
            slider.value = single_ratio(field.value)

    slider.observe(write_ratio, "value")
    field.observe(follow_field, "value")
    menu = preset_menu("Sweep", {"ratios": field}, {name: {"ratios": text} for name, text in presets.items()})
    return {"ratio": slider, "ratios": field, "preset": menu, "seed": wide(IntText, "Seed", value=0)}


def single_ratio(text: str) -> float:
    """Return the ratio in a text with exactly one ratio, else -1."""
    try:
        (ratio,) = parse_ratios(text)
    except ValueError:
        return -1.0
    return ratio


def label_by_ratio(settings, ratio: float, first) -> str:
    """Return a run's name: its ratio, and the settings in which it differs from the ``first`` run."""
    now, then = settings.to_dict(), first.to_dict()
    return ", ".join([f"ratio {ratio:g}", *(in_words(name, now[name]) for name in now if now[name] != then[name])])


def in_words(name: str, value) -> str:
    """Return a setting as people write it.

    Example:
        >>> in_words("learning_rate", 0.1), in_words("factor_masking", False), in_words("rule", "exact")
        ('learning rate 0.1', 'no factor masking', 'threshold exact')
    """
    words = WORDS.get(name, name.replace("_", " "))
    if value is True:
        return words
    return f"no {words}" if value is False or value is None else f"{words} {value}"


def runs_from(panel) -> Callable:
    """Return a function that reads a panel's ``settings()`` and ``ratios`` and returns a run for each ratio."""

    def runs():
        settings, ratios = panel.settings(), parse_ratios(panel.ratios.value)
        settings.check_ratios(ratios)
        return [(settings, ratio) for ratio in ratios]

    return runs


@dataclass(eq=False)
class LiveSweep:
    """Experiment of a `dgc_lab.ui.live_panel.LivePanel` that trains runs of equal length one after another."""

    runs: Callable  # reads the controls; returns settings and ratio of each run
    trainer: Callable  # takes settings and data; returns a trainer
    published: dict  # published accuracy and loss by ratio, for table and figure of runs on MNIST
    label: Callable = label_by_ratio  # takes settings, ratio and the first run's settings; returns the legend's label
    group: Callable = lambda settings: settings.to_dict()  # runs with equal values share a marker
    sent: Callable = itemgetter("share sent")  # takes a row; returns the amount sent, in the unit of `sent_label`
    sent_label: str = "share of the gradient that was sent"
    table: Callable = beside_published  # takes rows and published results; returns a DataFrame
    recipe: str = ""  # HTML below a table with rows on MNIST
    out: str | os.PathLike | None = None  # file for finished rows (`dgc_lab.training.sweeps`)

    def __post_init__(self):
        self.out = None if self.out is None else check_file("out", self.out)
        self.rows, self.curves, self.data = [], None, None

    def clear(self) -> None:
        self.rows, self.first, self.groups = [], None, {}
        self.curves = Curves(FIRST_STEPS, self.sent_label)

    def close(self) -> None:
        self.curves = self.data = self.trainer = None
        free_memory()

    def frame(self):
        return self.table(self.rows, self.published)

    @property
    def note(self) -> str:
        return self.recipe if any(row["dataset"] == "mnist" for row in self.rows) else ""

    def prepare(self) -> tuple[list | None, str]:
        runs = [run for run in self.runs() if not self._has_row(*run)]
        if not runs:
            clear = "press Clear" if self.out is None else f"remove them from {self.out} and press Clear"
            return None, f"The table has these rows already. Change a control, or {clear} to train them again."
        settings, _ = runs[0]
        self.first = self.first or settings
        names, steps = zip(*((self.label(*run, self.first), run[0].steps) for run in runs), strict=True)
        self.progress = SweepProgress(names, steps, self.out)
        # Read them now: the user may change the controls before a row ends.
        keys = [repr(self.group(settings)) for settings, _ in runs]
        self.marks = [self.groups.setdefault(key, len(self.groups)) for key in keys]
        name = settings.dataset
        source = "MNIST (DGC_LAB_DATA, Keras's cache, or an 11 MB download)" if name == "mnist" else name
        return runs, f"Starting: loading {source} and tracing the training step."

    def train(self, runs, stopping):
        settings, _ = runs[0]
        self.curves.fit(settings.steps)
        if settings.dataset == "mnist" and self.published:
            self.curves.beside(self.published)
        if self.data is None or self.data.name != settings.dataset:
            self.data = load(settings.dataset)
        began = time.monotonic()
        trained = train_each(runs, lambda settings: self.trainer(settings, self.data), self.data, self.out)
        with contextlib.closing(trained) as events:
            for event in events:
                self.progress.take(event, time.monotonic() - began)
                self._draw(event)
                # After its last step, a run only needs its evaluation to become a row.
                finishing = isinstance(event, RowEnded) or getattr(event, "step", None) == settings.steps
                if stopping.is_set() and not finishing:
                    self.progress.stopped = True
                    self.curves.rename(f"{self.progress.name} (stopped)")
                    return
                yield

    def _draw(self, event) -> None:
        if isinstance(event, RowStarted):
            self.curves.begin(self.progress.name)
        elif isinstance(event, Step):
            self.curves.add_loss(event.step, event.loss)
        elif isinstance(event, Evaluation):
            self.curves.add_accuracy(event.step, event.accuracy)
        elif isinstance(event, RowEnded):
            self.rows.append(event.row)
            if event.from_file:
                self.curves.add_accuracy(self.progress.steps[event.number], event.row["accuracy"])
            self.curves.add_row(self.sent(event.row), event.row["accuracy"], self.marks[event.number])

    def _has_row(self, settings, ratio) -> bool:
        return any(row_matches(row, {**settings.to_dict(), "ratio": ratio}) for row in self.rows)
