"""The widgets of the start page and of lesson 4: choose the share of the gradient to keep, and watch the training."""

from __future__ import annotations

import os

from ipywidgets import Dropdown

from dgc_lab.common import free_memory
from dgc_lab.training.live_sweep import LiveSweep, ratio_controls, runs_from, training_controls
from dgc_lab.training.published_tables import SINGLE_NODE
from dgc_lab.ui.live_panel import LivePanel
from dgc_lab.ui.widget import wide

PRESETS = {
    "4 ratios": "1, 0.1, 0.01, 0.001",
    "12 published ratios": ", ".join(f"{ratio:g}" for ratio in SINGLE_NODE),
}
PUBLISHED_RECIPE = (
    "<p>Published rows: 20 000 steps, learning rate 0.001, momentum 0.9, batch 100, the first tensor's threshold.</p>"
)
SCOPE_NAMES = {"one per tensor": "tensor", "one for all tensors": "global", "the first tensor's": "first"}


class CompressionSweep(LivePanel):
    """Widget that trains one worker at one or more compression ratios and shows it live.

    Run trains every ratio in the list that has no row yet. Stop ends the training within a twentieth of a second, or
    at the end of the step, and keeps the finished rows. A run that has taken its last step is still
    evaluated. Clear empties figure and table. ``run()`` does what Run does and waits until the training ends.

    Args:
        out: file for finished rows (`dgc_lab.training.sweeps`); Run finds them there after a kernel restart.
        settings: initial values of the controls: dataset, ratios (text), rule, scope, learning_rate, momentum, batch,
            steps, seed, as in `dgc_lab.training.masking_trainer.MaskingConfig`.

    Attributes:
        rows: the finished rows, in order of completion.

    Raises:
        ValueError: a setting is not the name of a control, or its value is not accepted.

    Example:
        >>> lab = CompressionSweep(ratios="1, 0.01", steps=100)
        >>> lab.settings().steps, lab.rows
        (100, [])
    """

    def __init__(self, out: str | os.PathLike | None = None, **settings):
        sweep = LiveSweep(runs_from(self), TrainerCache(), SINGLE_NODE, recipe=PUBLISHED_RECIPE, out=out)
        controls = {
            **training_controls(),
            **ratio_controls(PRESETS),
            "rule": wide(Dropdown, "Threshold", options=["sampled", "hierarchical", "exact", "off"]),
            "scope": wide(Dropdown, "Scope", options=SCOPE_NAMES),
        }
        columns = ["dataset ratio ratios preset", "rule scope learning_rate momentum", "batch steps seed"]
        super().__init__(sweep, controls, columns, settings, helpers=("ratio", "preset"))

    def settings(self):
        """Return the controls as `dgc_lab.training.masking_trainer.MaskingConfig`.

        Raises ValueError if a value is not allowed; the message names the control.
        """
        from dgc_lab.training.masking_trainer import MaskingConfig

        return MaskingConfig(**self._values(without=("ratios",)))


class CompressionTaste(LivePanel):
    """`CompressionSweep` with the ratio slider alone; all other settings have their defaults: digits, 300 steps.

    Example:
        >>> CompressionTaste().settings().dataset
        'digits'
    """

    def __init__(self):
        sweep = LiveSweep(runs_from(self), TrainerCache(), SINGLE_NODE)
        super().__init__(sweep, ratio_controls(PRESETS), ["ratio"], {}, helpers=("ratio",))
        self.ratio.value = 1

    def settings(self):
        """Return the settings of every run, a `dgc_lab.training.masking_trainer.MaskingConfig`."""
        from dgc_lab.training.masking_trainer import MaskingConfig

        return MaskingConfig()


class TrainerCache:
    """Function of settings and data that returns a trainer. It keeps the last one, because tracing takes a second."""

    last = None

    def __call__(self, settings, data):
        from dgc_lab.training.masking_trainer import Trainer

        if self.last is None or self.last.settings != settings:
            self.last = None
            free_memory()
            self.last = Trainer(settings, data)
        return self.last
