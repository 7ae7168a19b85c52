"""The parts that all widgets share: rows of panels and of controls, and tables."""

import ipywidgets
import pandas as pd

from dgc_lab.ui.charts import panels_tag
from dgc_lab.ui.curves import Curves
from dgc_lab.ui.widget import side_by_side, table_html


def test_panels_of_a_live_picture_can_wrap():
    panels = Curves(3, "kB per step").panels()
    shown = panels_tag(panels, "Loss, accuracy and bytes.")
    assert len(panels) == shown.count("<img") == 3
    assert len({int.from_bytes(panel[16:20]) for panel in panels}) == 1, "equal widths"
    assert "flex-wrap: wrap" in shown
    assert shown.count('alt="Loss, accuracy and bytes."') == 1
    assert shown.count('alt=""') == 2, "screen readers read the text once"


def test_a_single_panel_is_an_ordinary_picture():
    assert panels_tag([b"one"], "Loss.").startswith('<img alt="Loss."')


def test_disabled_controls_are_not_shown():
    enabled, disabled = ipywidgets.IntText(), ipywidgets.IntText(disabled=True)
    [column] = side_by_side([[enabled, disabled]]).children
    assert column.children == (enabled,)


def test_table_headings_are_words():
    assert "<th>learning rate</th>" in table_html(pd.DataFrame({"learning_rate": [0.1]}))
