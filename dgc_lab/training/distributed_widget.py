"""The widget of lesson 5: real Horovod ranks, every switch of Deep Gradient Compression, and what it sends, live."""

from __future__ import annotations

import os
from typing import ClassVar

from ipywidgets import HTML, Checkbox, Dropdown, FloatText, IntText

from dgc_lab.cluster.base import Cluster
from dgc_lab.training.live_sweep import AS_TYPED, RatioSweep
from dgc_lab.training.published_tables import TWO_NODE
from dgc_lab.ui.widget import wide

COMPLETE = {"accumulate": True, "momentum_correction": True, "factor_masking": True}
# Each of the two about momentum off by itself, and masking alone: nothing that is not sent is kept.
METHODS = {
    "complete DGC": COMPLETE,
    "momentum after the exchange": {**COMPLETE, "momentum_correction": False},
    "no momentum factor masking": {**COMPLETE, "factor_masking": False},
    "masking alone": dict.fromkeys(COMPLETE, False),
}


class DistributedSweep(RatioSweep):
    """Train on Horovod ranks at one or several ratios, with any switch of DGC off, and watch it live.

    Run starts the ranks if they are not there (about ten seconds, once), then trains every ratio in the list that has
    no row yet. Stop ends the training on all ranks and keeps the finished rows; the ranks stay. ``run()`` does what
    Run does and waits for the end; ``close()`` ends the ranks, unless they were given.

    Args:
        ranks: started `dgc_lab.cluster.HorovodRanks` to train on; the widget's own if None.
        out: file that keeps finished rows (`dgc_lab.training.sweeps`); a restarted kernel goes on with it.
        settings: first values of the controls: dataset, ratios (text), workers, learning_rate, momentum, batch, steps,
            seed, rule, clip_norm (0 for none), warm_up, warm_up_steps, values, accumulate, momentum_correction,
            factor_masking, nesterov, as in `dgc_lab.training.DistributedConfig`.

    Attributes:
        rows: the finished rows, in the order in which they were made.
        ranks: the `HorovodRanks`; None before the first run.

    Raises:
        ValueError: a keyword is not the name of a control, or its value is none that the control takes.

    Example:
        >>> lab = DistributedSweep(ratios="1, 0.001", warm_up="paper")
        >>> lab.settings().workers, lab.settings().warm_up
        (2, 'paper')
    """

    published: ClassVar = TWO_NODE
    presets: ClassVar = {
        "dense and 4 ratios": "1, 0.1, 0.01, 0.001, 0.0001",
        "11 published ratios": ", ".join(f"{ratio:g}" for ratio in TWO_NODE),
    }
    beside_settings: ClassVar = (*RatioSweep.beside_settings, "method")

    def __init__(self, ranks: Cluster | None = None, out: str | os.PathLike | None = None, **settings):
        self.ranks, self._own_ranks = ranks, ranks is None
        super().__init__(out, **settings)
        self.traffic = HTML()
        place = self.children.index(self.image)
        self.children = [*self.children[:place], self.traffic, *self.children[place:]]

    def _columns(self):
        self.workers = wide(IntText, "Ranks", value=self.ranks.size if self.ranks else 2, disabled=not self._own_ranks)
        self.method = wide(Dropdown, "Method", options=[AS_TYPED, *METHODS], value="complete DGC")
        self.accumulate = wide(Checkbox, "Accumulate what is not sent", value=True, indent=False)
        self.momentum_correction = wide(Checkbox, "Momentum correction", value=True, indent=False)
        self.factor_masking = wide(Checkbox, "Momentum factor masking", value=True, indent=False)
        self.nesterov = wide(Checkbox, "Nesterov's momentum", value=False, indent=False)
        self.clip_norm = wide(FloatText, "Clip norm", value=0)
        self.warm_up = wide(Dropdown, "Warm-up", options=["none", "paper", "geometric", "dense"])
        self.warm_up_steps = wide(IntText, "Steps a stage", value=20)
        self.values = wide(Dropdown, "Values", options=["float32", "float16"])
        self.rule = wide(Dropdown, "Threshold", options=["sampled", "hierarchical", "exact"])
        self.method.observe(self._method_chosen, "value")
        for name in COMPLETE:
            getattr(self, name).observe(self._switch_moved, "value")
        methods = [self.method, self.accumulate, self.momentum_correction, self.factor_masking, self.nesterov]
        return [
            [self.dataset, self.ratio, self.ratios, self.preset, self.warm_up, self.warm_up_steps, self.workers],
            [*methods, self.clip_norm, self.values],
            [self.rule, self.learning_rate, self.momentum, self.batch, self.steps, self.seed],
        ]

    def _method_chosen(self, change):
        for name, on in METHODS.get(change["new"], {}).items():
            getattr(self, name).value = on

    def _switch_moved(self, _):
        now = {name: getattr(self, name).value for name in COMPLETE}
        if now != METHODS.get(self.method.value):
            self.method.value = next((name for name, switches in METHODS.items() if switches == now), AS_TYPED)

    def settings(self):
        """The controls as `dgc_lab.training.DistributedConfig`; a ValueError names what is wrong."""
        from dgc_lab.training.distributed_trainer import DistributedConfig

        values = self._values()
        return DistributedConfig(**{**values, "clip_norm": values["clip_norm"] or None})

    def _saw_step(self, step):
        times = f", {step.dense_bytes / step.bytes_sent:.1f} times as much" if step.bytes_sent else ""
        self.traffic.value = (
            f"<div>Step {step.step}: a rank sends <b>{step.bytes_sent / 1000:,.1f} kB</b> "
            f"(dense: {step.dense_bytes / 1000:,.1f} kB{times}), ratio {step.ratio:g}, "
            f"kept {step.kept_overall:.3%} of the gradient.</div>"
        )

    def _trainer(self, settings):
        """The ranks, started where they are not up, with these settings."""
        from dgc_lab.cluster import HorovodRanks
        from dgc_lab.training.distributed_trainer import TrainerOnRanks

        if self._own_ranks and self.ranks is not None and self.ranks.size != settings.workers:
            self.ranks.stop()
            self.ranks = None
        if self.ranks is None:
            self.ranks = HorovodRanks(settings.workers, progress=self._say)
        if not self.ranks.ready:  # never started, or a rank has died
            self._start_alone(self.ranks) if self._own_ranks else self.ranks.restart()
        return TrainerOnRanks(settings, self.ranks, self._data)

    def close(self):
        """End the widget, and the ranks that it started."""
        super().close()
        if getattr(self, "_own_ranks", False) and self.ranks is not None:  # one that refused a setting has none
            self.ranks.stop()
