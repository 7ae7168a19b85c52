"""Every widget field accepts typed values or reports what is wrong, and the widget stays usable.

Values arrive as the front end sends them. After each one, the test presses Run and Stop or waits for the figure.
"""

import contextlib
import importlib
import math
import re

import ipywidgets
import pytest
from test_bad_input import devices, in_its_own_process

from dgc_lab.ui.live_panel import LivePanel
from widgets import press, said

pytestmark = pytest.mark.nightly

TYPED = {
    ipywidgets.IntText: [-1, 0, 2**31, 2**62, 2**70],
    ipywidgets.FloatText: [-1.0, 0.0, 1e30, math.inf, math.nan],
    ipywidgets.Text: ["", " ", "ä 中 \0", "../..", "x" * 10_000, "nan", "inf", "-1", "1e-400", "1, " * 5000],
}
WIDGETS = {  # name: (subpackage, settings for a short run)
    "CompressionSweep": ("training", {"steps": 20}),
    "DistributedSweep": ("training", {"steps": 20}),
    "SchemeLab": ("comparison", {"steps": 20}),
    "StragglerLab": ("parameter_server", {"gradients": 20, "batch": 16}),
    "ReplicaExplorer": ("replicas", {}),
    "ScaleExplorer": ("scaling", {}),
    "MemoryExplorer": ("scaling", {}),
}
CALLED = {"parameter": "levels", **{f"value{place}": "values" for place in range(8)}}  # names used in messages
LONGEST = 60  # seconds until the widget must respond


def fields(widget):
    """Return all enabled, visible text and number fields by attribute name."""
    every = {**vars(widget), **widget.controls}
    return {
        name: field
        for name, field in every.items()
        if type(field) in TYPED and not field.disabled and field.layout.display != "none"
    }


def answer(widget, name, field, value):
    """Return None if the value is accepted or rejected by name, otherwise the widget's message."""
    field.set_state({"value": value})
    if isinstance(widget, LivePanel):
        press(widget, "run")
        widget.stop()
    if not widget.wait(LONGEST):
        return f"no answer in {LONGEST} s: {said(widget)}"
    shown, refused = said(widget), 'role="alert"' in widget.message.value
    if isinstance(widget, LivePanel):
        widget.clear()
    named = re.match(rf"({CALLED.get(name, name)}) must ", shown)
    return shown if len(shown) > 1000 or (refused and not named) else None


@pytest.mark.parametrize("name", WIDGETS)
def test_typed_values_are_accepted_or_rejected_by_name(name, request):
    subpackage, settings = WIDGETS[name]
    if subpackage == "replicas" and not devices():
        in_its_own_process(f"test_typed_values_are_accepted_or_rejected_by_name[{name}]", __file__)
        return
    make, given = getattr(importlib.import_module(f"dgc_lab.{subpackage}"), name), ()
    if name == "DistributedSweep":
        given = (request.getfixturevalue("two_ranks"),)
    elif name == "ScaleExplorer":
        from dgc_lab.scaling import StepTimes

        given = (StepTimes(0.05, 0.01, 1e-8),)
    with contextlib.closing(make(*given, **settings)) as widget:
        if name == "SchemeLab":
            widget.scheme.value = "qsgd"  # a scheme with a parameter
        answers = []
        for field_name, field in fields(widget).items():
            first = field.value
            for value in TYPED[type(field)]:
                answers.append((field_name, str(value)[:20], answer(widget, field_name, field, value)))
            field.value = first
            assert widget.wait(LONGEST)
    assert len(answers) >= 10
    assert [each for each in answers if each[-1]] == []
