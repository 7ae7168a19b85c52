"""The widget of lesson 5: Horovod ranks, every option of Deep Gradient Compression, and each rank's traffic, live."""

from __future__ import annotations

import os

from ipywidgets import HTML, Checkbox, Dropdown, FloatText, IntText

from dgc_lab.cluster.base import Cluster
from dgc_lab.common import check_instance
from dgc_lab.training.live_sweep import LiveSweep, ratio_controls, runs_from, training_controls
from dgc_lab.training.published_tables import TWO_NODE
from dgc_lab.ui.live_panel import LivePanel, start_alone
from dgc_lab.ui.widget import preset_menu, wide

PRESETS = {
    "dense and 4 ratios": "1, 0.1, 0.01, 0.001, 0.0001",
    "11 published ratios": ", ".join(f"{ratio:g}" for ratio in TWO_NODE),
}
COMPLETE = {"accumulate": True, "momentum_correction": True, "factor_masking": True}
# Complete DGC; DGC without one of the two momentum options; masking alone, which drops the elements it does not send.
METHODS = {
    "complete DGC": COMPLETE,
    "momentum after the exchange": {**COMPLETE, "momentum_correction": False},
    "no momentum factor masking": {**COMPLETE, "factor_masking": False},
    "masking alone": dict.fromkeys(COMPLETE, False),
}


class DistributedSweep(LivePanel):
    """Widget that trains on Horovod ranks at one or more ratios, with any option of DGC off, and shows it live.

    Run starts the ranks if they are not up (about ten seconds, once), then trains every ratio in the list that has no
    row yet. Stop ends the training on all ranks and keeps the finished rows; the ranks stay up. ``run()`` does what
    Run does and waits until the training ends. ``close()`` stops the ranks unless the caller passed them.

    Args:
        ranks: started `dgc_lab.cluster.HorovodRanks` to train on; if None, the widget starts its own.
        out: file for finished rows (`dgc_lab.training.sweeps`); Run finds them there after a kernel restart.
        settings: initial values of the controls: dataset, ratios (text), workers, learning_rate, momentum, batch,
            steps, seed, rule, clip_norm (0 for none), warm_up, warm_up_steps, values, accumulate, momentum_correction,
            factor_masking, nesterov, as in `dgc_lab.training.DistributedConfig`.

    Attributes:
        rows: the finished rows, in order of completion.
        ranks: the `HorovodRanks`; None before the first run.

    Raises:
        ValueError: a setting is not the name of a control, or its value is not accepted.

    Example:
        >>> lab = DistributedSweep(ratios="1, 0.001", warm_up="paper")
        >>> lab.settings().workers, lab.settings().warm_up
        (2, 'paper')
    """

    def __init__(self, ranks: Cluster | None = None, out: str | os.PathLike | None = None, **settings):
        self.ranks, self._own_ranks = ranks, ranks is None
        if ranks is not None:
            check_instance("ranks", ranks, Cluster)
        sweep = LiveSweep(runs_from(self), self._trainer, TWO_NODE, out=out)
        switches = {
            "accumulate": wide(Checkbox, "Accumulate unsent elements", value=True, indent=False),
            "momentum_correction": wide(Checkbox, "Momentum correction", value=True, indent=False),
            "factor_masking": wide(Checkbox, "Momentum factor masking", value=True, indent=False),
        }
        controls = {
            **training_controls(),
            **ratio_controls(PRESETS),
            **switches,
            "method": preset_menu("Method", switches, METHODS, field=19),
            "workers": wide(IntText, "Ranks", value=ranks.size if ranks else 2, disabled=ranks is not None),
            "nesterov": wide(Checkbox, "Nesterov's momentum", value=False, indent=False),
            "clip_norm": wide(FloatText, "Clip norm", value=0),
            "warm_up": wide(Dropdown, "Warm-up", options=["none", "paper", "geometric", "dense"]),
            "warm_up_steps": wide(IntText, "Steps/stage", value=20),
            "values": wide(Dropdown, "Values", options=["float32", "float16"]),
            "rule": wide(Dropdown, "Threshold", options=["sampled", "hierarchical", "exact"]),
        }
        columns = [
            "dataset ratio ratios preset warm_up warm_up_steps workers",
            "method accumulate momentum_correction factor_masking nesterov clip_norm values",
            "rule learning_rate momentum batch steps seed",
        ]
        super().__init__(sweep, controls, columns, settings, helpers=("ratio", "preset", "method"))
        self.traffic = HTML()
        self.progress.observe(self._show_traffic, "value")
        place = self.children.index(self.image)
        self.children = [*self.children[:place], self.traffic, *self.children[place:]]

    def settings(self):
        """Return the controls as `dgc_lab.training.DistributedConfig`.

        Raises ValueError if a value is not allowed; the message names the control.
        """
        from dgc_lab.training.distributed_trainer import DistributedConfig

        values = self._values(without=("ratios",))
        return DistributedConfig(**{**values, "clip_norm": values["clip_norm"] or None})

    def close(self) -> None:
        """Close the widget and stop the ranks that it started."""
        super().close()
        if self._own_ranks and self.ranks is not None:
            self.ranks.stop()

    def _trainer(self, settings, data):
        """Return a trainer on the ranks; start the ranks if they are not up."""
        from dgc_lab.cluster import HorovodRanks
        from dgc_lab.training.distributed_trainer import TrainerOnRanks

        if self.ranks is None or (self._own_ranks and self.ranks.size != settings.workers):
            if self.ranks is not None:
                self.ranks.stop()
            self.ranks = HorovodRanks(settings.workers, progress=self._say)
        if not self.ranks.ready:  # never started, or a rank has died
            start_alone(self.ranks) if self._own_ranks else self.ranks.restart()
        return TrainerOnRanks(settings, self.ranks, data)

    def _show_traffic(self, _):
        step = self.experiment.progress.step
        if step is None or not self.progress.value:  # Clear sets the bar to 0
            self.traffic.value = ""
            return
        times = f", {step.dense_bytes / step.bytes_sent:.1f} times as much" if step.bytes_sent else ""
        self.traffic.value = (
            f"<div>Step {step.step}: a rank sends <b>{step.bytes_sent / 1000:,.1f} kB</b> "
            f"(dense: {step.dense_bytes / 1000:,.1f} kB{times}), ratio {step.ratio:g}, "
            f"{step.share_sent:.3%} of the gradient's elements.</div>"
        )
