"""Widget of lesson 9: memory and traffic of a model by method, ranks, precision, optimizer and link."""

from __future__ import annotations

import math

from ipywidgets import Dropdown, FloatText, SelectionSlider

from dgc_lab.scaling.cluster_figures import memory_bars
from dgc_lab.scaling.known_models import KNOWN_LINKS, KNOWN_MODELS
from dgc_lab.scaling.memory import OPTIMIZER_BYTES, PRECISIONS, compare_methods, fits
from dgc_lab.scaling.model_widget import ModelExplorer
from dgc_lab.ui.explorer import wider

RANKS = tuple(2**power for power in range(13))
MOST_PARAMETERS = 1e9  # in millions: 10^15


class MemoryExplorer(ModelExplorer):
    """Widget that redraws a rank's memory and a step's exchange when the model, the ranks or the link change.

    All numbers are arithmetic (`dgc_lab.scaling.compare_methods`): nothing is trained or measured.

    Args:
        settings: initial values of the controls: model, parameters (in millions), ranks (a power of two up to 4 096),
            precision, optimizer, link, and memory (GB of a device).

    Raises:
        ValueError: a setting has no control, or its control rejects the value.

    Example:
        >>> explorer = MemoryExplorer(model="Llama 2 7B", ranks=8)
        >>> explorer.frame["method"].tolist()
        ['data parallel', 'ZeRO 1', 'ZeRO 2', 'ZeRO 3, FSDP']

    References:
        arXiv:1910.02054 (ZeRO).
    """

    def __init__(self, **settings):
        controls = {
            "model": wider(Dropdown, "Model", options=list(KNOWN_MODELS), value="Llama 3 8B"),
            "parameters": wider(FloatText, "Parameters, 10⁶"),
            "ranks": wider(SelectionSlider, "Ranks", options=RANKS, value=8),
            "precision": wider(Dropdown, "Precision", options=list(PRECISIONS), value="bfloat16 with float32 copy"),
            "optimizer": wider(Dropdown, "Optimizer", options=list(OPTIMIZER_BYTES), value="Adam"),
            "link": wider(Dropdown, "Link", options=list(KNOWN_LINKS), value="400G InfiniBand"),
            "memory": wider(FloatText, "Device, GB", value=80.0),
        }
        super().__init__(controls, 4, settings)

    def _fill_in(self, controls):
        controls["parameters"].value = round(KNOWN_MODELS[controls["model"].value] / 1e6, 3)

    def result(self, model, parameters, ranks, precision, optimizer, link, memory):
        """Return picture, table and message for these values."""
        if not 1e-6 <= parameters <= MOST_PARAMETERS:
            raise ValueError(f"parameters must be from 0.000001 to {MOST_PARAMETERS:g} millions, got {parameters:g}")
        if not 0 < memory < math.inf:
            raise ValueError(f"memory must be above 0 GB, got {memory:g}")
        known = KNOWN_MODELS[model]
        number = known if parameters == round(known / 1e6, 3) else round(parameters * 1e6)
        name = model if number == known else "A model of your own"
        table = compare_methods(number, ranks, precision, optimizer, KNOWN_LINKS[link])
        which = " or ".join(fits(table, memory)) or "no method"
        said = (
            f"{name} with {number / 1e9:.4g} billion parameters on {ranks} rank{'s' * (ranks > 1)} of {memory:g} GB "
            f"fits with {which}, before activations. Exchanges are without overlap."
        )
        return memory_bars(table, memory), table.reset_index(), said
