"""Base class of the widgets of lessons 6 and 9 in which the choice of a model fills in other controls."""

from __future__ import annotations

from dgc_lab.ui.explorer import Explorer, in_columns
from dgc_lab.ui.widget import side_by_side


class ModelExplorer(Explorer):
    """Base class for widgets with a control ``model``.

    A subclass defines ``_fill_in(controls)``, which sets the controls that depend on the model.
    """

    def __init__(self, controls: dict, columns: int, settings: dict):
        self._fill_in(controls)
        controls["model"].observe(lambda _: self._fill_in(controls), "value")
        settings = dict(sorted(settings.items(), key=lambda setting: setting[0] != "model"))  # it sets other controls
        super().__init__(controls, [side_by_side(in_columns(controls, columns))], settings)

    def _fill_in(self, controls):
        raise NotImplementedError
