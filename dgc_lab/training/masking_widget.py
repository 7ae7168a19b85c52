"""The widgets of the first page and of lesson 4: choose what share of the gradients is kept, and watch it train."""

from __future__ import annotations

from typing import ClassVar

from ipywidgets import Dropdown

from dgc_lab.training.live_sweep import RatioSweep
from dgc_lab.training.published_tables import SINGLE_NODE
from dgc_lab.ui.widget import wide

PUBLISHED_RECIPE = (
    "<p>Published rows: 20 000 steps, learning rate 0.001, momentum 0.9, batch 100, the first tensor's threshold.</p>"
)
SCOPE_NAMES = {"each tensor its own": "tensor", "one over all tensors": "global", "the first tensor's": "first"}


class CompressionSweep(RatioSweep):
    """Train one worker at one or several compression ratios and watch it live.

    Run trains every ratio in the list that has no row yet, Stop ends the training within a twentieth of a second, or
    with the step, and keeps the finished rows, Clear empties picture and table. ``run()`` does what Run does and waits
    for the end.

    Args:
        out: file that keeps finished rows (`dgc_lab.training.sweeps`); a restarted kernel goes on with it.
        settings: first values of the controls: dataset, ratios (text), rule, scope, learning_rate, momentum, batch,
            steps, seed, as in `dgc_lab.training.masking_trainer.MaskingConfig`.

    Attributes:
        rows: the finished rows, in the order in which they were made.

    Raises:
        ValueError: a keyword is not the name of a control, or its value is none that the control takes.

    Example:
        >>> lab = CompressionSweep(ratios="1, 0.01", steps=100)
        >>> lab.settings().steps, lab.rows
        (100, [])
    """

    published: ClassVar = SINGLE_NODE
    presets: ClassVar = {
        "4 ratios": "1, 0.1, 0.01, 0.001",
        "12 published ratios": ", ".join(f"{ratio:g}" for ratio in SINGLE_NODE),
    }

    def _columns(self):
        self.rule = wide(Dropdown, "Threshold", options=["sampled", "hierarchical", "exact", "off"])
        self.scope = wide(Dropdown, "Whose", options=SCOPE_NAMES)
        return [
            [self.dataset, self.ratio, self.ratios, self.preset],
            [self.rule, self.scope, self.learning_rate, self.momentum],
            [self.batch, self.steps, self.seed],
        ]

    def settings(self):
        """The controls as `dgc_lab.training.masking_trainer.MaskingConfig`; a ValueError names what is wrong."""
        from dgc_lab.training.masking_trainer import MaskingConfig

        return MaskingConfig(**self._values())

    def _below_table(self):
        return PUBLISHED_RECIPE * self._on_mnist()

    def _trainer(self, settings):
        """The last trainer when it fits, for a second trace of the step costs a second; else a new one."""
        from dgc_lab.training.masking_trainer import Trainer

        if self._last_trainer is None or self._last_trainer.settings != settings:
            self._last_trainer = None  # lets go of the old one's memory first
            self._last_trainer = Trainer(settings, self._data)
        return self._last_trainer


class CompressionTaste(CompressionSweep):
    """`CompressionSweep` with one slider, the ratio, and everything else at its first value: digits, 300 steps.

    ``out`` is that of `CompressionSweep`; a ValueError for any of ``settings``.

    Example:
        >>> CompressionTaste().settings().dataset
        'digits'
    """

    def _columns(self):
        self.ratios.value = "1"
        return [[self.ratio]]
