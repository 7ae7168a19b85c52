"""What the widgets of lessons 4, 5 and 8 have in common: runs to choose, one after the other, shown live."""

from __future__ import annotations

import contextlib
import os
import time
from typing import ClassVar

from ipywidgets import Dropdown, FloatLogSlider, FloatText, IntText, Text

from dgc_lab.common import check_file, free_memory
from dgc_lab.training.events import Evaluation, RowEnded, RowFailed, RowStarted, Step, TrainingDiverged
from dgc_lab.training.live_figure import Curves
from dgc_lab.training.published_tables import beside_published
from dgc_lab.training.sweeps import is_of, parse_ratios, table, train_each
from dgc_lab.ui.live_run import LiveRun
from dgc_lab.ui.widget import wide
from dgc_lab.workloads.data import load
from dgc_lab.workloads.models import MODELS

AS_TYPED = "as typed"


class LiveSweep(LiveRun):
    """A widget that trains one run after the other and shows it live; the base of those of lessons 4, 5 and 8.

    A subclass says

    - ``listed``: the name of the control that lists, as text, what to run;
    - ``runs()``: settings and ratio of each run that the controls ask for; a ValueError says what is wrong;
    - ``_trainer(settings)``: who trains with ``_data``;
    - ``_label(settings, ratio)``: a run's name in the legend;
    - ``_sent(row)``: how much a run has sent, in the unit of ``sent``;
    - ``_saw_step(step)``: shows what else is to be seen of the latest step, now and then.
    """

    listed: ClassVar[str]
    presets: ClassVar[dict[str, str]]  # texts for the field that lists what to run, by name
    published: ClassVar[dict] = {}  # what MNIST's rows are shown beside
    sent: ClassVar[str] = "share of the gradient that was sent"
    beside_settings: ClassVar = ("preset",)
    redraw_share: ClassVar = 0.012

    def __init__(self, out: str | os.PathLike | None = None, **settings):
        self.out = None if out is None else check_file("out", out)
        self._data = self._last_trainer = None  # a subclass may train with the last one again
        self.dataset = wide(Dropdown, "Data set", options=list(MODELS))
        self.preset = wide(Dropdown, "Sweep", options=[AS_TYPED, *self.presets])
        self.learning_rate = wide(FloatText, "Learning rate", value=0.05)
        self.momentum = wide(FloatText, "Momentum", value=0.9)
        self.batch = wide(IntText, "Batch", value=64)
        self.steps = wide(IntText, "Steps", value=300)
        getattr(self, self.listed).observe(self._list_changed, "value")
        self.preset.observe(self._preset_chosen, "value")
        super().__init__(**settings)

    # What the user sees ------------------------------------------------------------------------------------------

    def _list_changed(self, change):
        if change["new"] != self.presets.get(self.preset.value):
            self.preset.value = AS_TYPED

    def _preset_chosen(self, change):
        if change["new"] in self.presets:
            getattr(self, self.listed).value = self.presets[change["new"]]

    def _new_curves(self):
        self._first, self._marks = None, {}
        # Clear may be pressed whatever stands in the field.
        return Curves(max(1, min(self.steps.value, 2**63 - 1)), self.sent)

    def close(self):
        """Stop the training and close the widget; of what it has made only the rows stay."""
        super().close()
        self._data = self._last_trainer = None
        free_memory()

    # The work ----------------------------------------------------------------------------------------------------

    def _saw_step(self, step) -> None:
        pass

    def _job(self):
        """The runs that have no row yet, with the buttons set for them; None when all rows are there."""
        runs = [(settings, ratio) for settings, ratio in self.runs() if not self._has_row(settings, ratio)]
        if not runs:
            clear = "press Clear" if self.out is None else f"remove them from {self.out} and press Clear"
            self._say(f"The table has these rows already. Change a control, or {clear} to make them again.")
            return None
        name = runs[0][0].dataset
        source = "MNIST (DGC_LAB_DATA, Keras's cache, or an 11 MB download)" if name == "mnist" else name
        self._say(f"Starting: loading {source} and tracing the training step.")
        return (runs,)

    def _has_row(self, settings, ratio):
        return any(is_of(row, {**settings.facts(), "ratio": ratio}) for row in self.rows)

    def _work(self, *job, raise_errors=False):
        failures = super()._work(*job, raise_errors=raise_errors)
        if failures and raise_errors:
            raise TrainingDiverged(" ".join(failures))

    def _train(self, failures, runs):
        settings, _ = runs[0]
        self.curves.fit(settings.steps)
        if settings.dataset == "mnist" and self.published:
            self.curves.beside(self.published)
        if self._data is None or self._data.name != settings.dataset:
            self._data = load(settings.dataset)
        with contextlib.closing(train_each(runs, self._trainer, self._data, self.out)) as events:
            return self._follow(events, runs, failures)

    def _follow(self, events, runs, failures) -> str:
        """Show the events of a sweep as they come, until they end or Stop is pressed; returns the last message."""
        done, steps, start = 0, runs[0][0].steps, time.monotonic()
        total = len(runs) * steps

        def tell():
            if not done:
                return ""
            self.progress.value = done / total
            self._saw_step(last)
            left = (time.monotonic() - start) * (total - done) / done
            return f"{label[0].upper()}{label[1:]}: step {done} of {total}, about {left:.0f} s left."

        for event in self._live(events, tell):
            if isinstance(event, RowStarted):
                label = self._label(*runs[event.number])
                self.curves.begin(label)
            elif isinstance(event, Step):
                done += 1
                last = event
                self.curves.add_loss(event.step, event.loss)
            elif isinstance(event, Evaluation):
                self.curves.add_accuracy(event.step, event.accuracy)
            elif isinstance(event, RowFailed):
                failures.append(event.reason + ".")
            elif isinstance(event, RowEnded):
                self.rows.append(event.row)
                self._show_table()
                if event.from_file:
                    total -= steps
                    self.curves.add_accuracy(steps, event.row["accuracy"])
                self.curves.add_row(self._sent(event.row), event.row["accuracy"], self._mark(runs[event.number][0]))
            if self._stopping.is_set() and not isinstance(event, RowEnded):
                self.curves.rename(f"{self.curves.runs[-1]['label']} (stopped)")
                return f"Stopped at step {done} of {total}. The finished rows are kept; Run goes on with the others."
        tell()  # of the last step too
        self.progress.value = 1.0
        found, made = len(runs) - total // steps, total // steps - len(failures)
        others = f", and {found} from {os.path.basename(self.out)}" if found else ""
        return f"Done: {made} {'row' if made == 1 else 'rows'} in {time.monotonic() - start:.1f} s{others}."

    def _mark(self, settings) -> int:
        """A number for each of the settings that were seen: their points have marks of their own."""
        return self._marks.setdefault(repr(settings.facts()), len(self._marks))


class RatioSweep(LiveSweep):
    """A sweep over ratios, chosen by a slider or as a list; a subclass has its ``settings()``, which may not fit."""

    listed: ClassVar = "ratios"
    beside_settings: ClassVar = ("ratio", "preset")

    def __init__(self, out: str | os.PathLike | None = None, **settings):
        ratios = {"value": 0.01, "base": 10, "min": -4, "max": 0, "step": 0.1, "readout_format": ".2g"}
        self.ratio = wide(FloatLogSlider, "Ratio", **ratios)
        self.ratios = wide(Text, "Ratios", value="0.01", placeholder="0.01 or 1, 10%, 1%")
        self.seed = wide(IntText, "Seed", value=0)
        self.ratio.observe(self._slider_moved, "value")
        super().__init__(out, **settings)

    def _slider_moved(self, change):
        if self._single_ratio() != change["new"]:
            self.ratios.value = f"{change['new']:.2g}"

    def _list_changed(self, change):
        super()._list_changed(change)
        single = self._single_ratio()
        if single is not None and 10**self.ratio.min <= single <= 1:
            self.ratio.value = single

    def _single_ratio(self):
        """The ratio in the text field, when it holds one number and no list."""
        try:
            ratios = parse_ratios(self.ratios.value)
        except ValueError:
            return None
        return ratios[0] if len(ratios) == 1 else None

    def frame(self):
        """The rows as a table; on MNIST with the published accuracy and loss beside the measured ones."""
        return beside_published(self.rows, self.published) if self._on_mnist() else table(self.rows)

    def _on_mnist(self):
        return any(row["dataset"] == "mnist" for row in self.rows)

    def _values(self) -> dict:
        """The controls' values, but for the ratios."""
        return {name: value for name, value in super()._values().items() if name != "ratios"}

    def runs(self):
        settings, ratios = self.settings(), parse_ratios(self.ratios.value)
        settings.check_ratios(ratios)
        return [(settings, ratio) for ratio in ratios]

    def _sent(self, row):
        return row["kept"]

    def _label(self, settings, ratio):
        """Its ratio, and where its settings differ from the first run's."""
        self._first = self._first or settings
        now, first = settings.facts(), self._first.facts()
        return ", ".join([f"ratio {ratio:g}", *(f"{name} {now[name]}" for name in now if now[name] != first[name])])
