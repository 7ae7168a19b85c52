"""Closing a widget releases all its parts: ipywidgets keeps unclosed parts until the kernel exits."""

import gc
import weakref

import ipywidgets
import pandas as pd
import pytest
from matplotlib.figure import Figure

from dgc_lab.aggregation import AggregationExplorer
from dgc_lab.common import LabError
from dgc_lab.comparison import SchemeLab
from dgc_lab.exercises import Questions
from dgc_lab.parameter_server import StragglerExplorer, StragglerLab
from dgc_lab.replicas import ReplicaExplorer
from dgc_lab.scaling import MemoryExplorer, ScaleExplorer
from dgc_lab.scaling.timing import StepTimes
from dgc_lab.training import CompressionSweep, CompressionTaste, DistributedSweep
from dgc_lab.ui import Picture, Prediction, Stepper
from dgc_lab.ui.explorer import Explorer
from dgc_lab.ui.widget import Panel
from kernels import until

LONG = 100_000  # steps; only Stop ends such a run


def registered():
    """Return the widgets registered with ipywidgets, version 7 or 8."""
    from ipywidgets.widgets import widget

    return dict(widget._instances if hasattr(widget, "_instances") else ipywidgets.Widget.widgets)


def used_explorer(explorer):
    """Change an explorer's first control and wait for the new figure."""
    control = next(iter(explorer.controls.values()))
    control.value = control.options[-1] if hasattr(control, "options") else control.max
    assert explorer.wait(60)
    return explorer


def trained(lab):
    """Train one row in a widget and create its download links."""
    lab.start()
    assert lab.wait(120)
    assert len(lab.rows) == 1, lab.message.value
    lab.save()
    return lab


def kept_prediction():
    guess = Prediction("How many?", of=("one", "two"))
    guess.keep()
    guess.confront({"one": 1, "two": 0})
    return guess


def answered_questions():
    quiz = Questions("04_dgc_masking")
    quiz.choices[0].value = "A"
    return quiz


USED = {
    "AggregationExplorer": lambda: used_explorer(AggregationExplorer(addends=64)),
    "ReplicaExplorer": lambda: used_explorer(ReplicaExplorer()),
    "ScaleExplorer": lambda: used_explorer(ScaleExplorer(StepTimes(0.05, 0.01, 1e-8))),
    "MemoryExplorer": lambda: used_explorer(MemoryExplorer()),
    "StragglerExplorer": lambda: used_explorer(StragglerExplorer()),
    "Stepper": lambda: used_explorer(
        Stepper(lambda step: Picture(Figure(), str(step)), 2, pd.DataFrame({"step": [1, 2]}))
    ),
    "CompressionSweep": lambda: trained(CompressionSweep(steps=10)),
    "CompressionTaste": CompressionTaste,
    "DistributedSweep": DistributedSweep,
    "StragglerLab": StragglerLab,
    "SchemeLab": lambda: trained(SchemeLab(steps=10)),
    "Prediction": kept_prediction,
    "Questions": answered_questions,
}


def figures():
    return [each for each in gc.get_objects() if isinstance(each, Figure)]


@pytest.mark.parametrize("name", USED)
def test_closed_widget_leaves_nothing_behind(name):
    gc.collect()
    before, drawn = registered(), {id(figure) for figure in figures()}
    widget = USED[name]()
    parts = [part for key, part in registered().items() if key not in before]
    assert len(parts) > 8
    left = [weakref.ref(part) for part in parts]
    widget.close()
    assert registered() == before
    gc.collect()
    assert isinstance(widget, Explorer) or [figure for figure in figures() if id(figure) not in drawn] == []
    del widget, parts
    gc.collect()
    assert [each() for each in left if each() is not None] == []
    assert [figure for figure in figures() if id(figure) not in drawn] == []


def test_every_public_widget_is_covered():
    """Collects the widgets in `__all__` of every subpackage."""
    import importlib
    from pathlib import Path

    import dgc_lab

    subpackages = [file.parent.name for file in Path(dgc_lab.__file__).parent.glob("*/__init__.py")]
    public = {
        name
        for package in map(importlib.import_module, (f"dgc_lab.{each}" for each in subpackages if each != "marking"))
        for name in getattr(package, "__all__", ())
        if isinstance(getattr(package, name), type) and issubclass(getattr(package, name), ipywidgets.Widget)
    }
    assert public == set(USED)


def test_close_stops_the_run_and_keeps_its_rows():
    lab = CompressionSweep(ratios="1", steps=10)
    lab.run()
    lab.ratios.value, lab.steps.value = "0.1", LONG
    lab.start()
    until(lambda: lab.curves.runs[-1]["loss"][0], 60)
    lab.close()
    assert lab.wait(0), "the thread must have ended"
    assert [row["ratio"] for row in lab.rows] == lab.frame()["ratio"].tolist() == [1.0]
    lab.close()  # closing twice is harmless


def test_closed_widgets_cannot_run():
    lab = CompressionSweep(steps=10)
    lab.close()
    with pytest.raises(LabError, match="this widget is closed: create a new one"):
        lab.run()
    lab.start()
    lab.save()
    lab.clear()
    assert lab.rows == []
    assert lab.wait(0), "nothing may be running"


@pytest.mark.parametrize(
    "make",
    [
        lambda: CompressionSweep(speed=1),
        lambda: AggregationExplorer(addends=100),
        lambda: ScaleExplorer(StepTimes(0.05, 0.01, 1e-8), model="none"),
        lambda: SchemeLab(schemes=3),
    ],
)
def test_rejected_widgets_leave_no_parts(make):
    before = registered()
    with pytest.raises(ValueError, match=r"must be"):
        make()
    assert registered() == before


IN_A_CELL = """
import gc
from ipywidgets.widgets import widget
from dgc_lab.aggregation import AggregationExplorer
comms = get_ipython().kernel.comm_manager.comms
explorer = AggregationExplorer(addends=64)
explorer
"""


def test_closed_widgets_release_kernel_comms(kernel):
    """The output history keeps the displayed widgets, but their comms must be closed."""
    kernel.ok(IN_A_CELL)
    assert int(kernel.ok("print(len(comms))")) > 8
    for _ in range(2):
        assert kernel.ok("explorer.close(); gc.collect(); print(len(comms), len(widget._instances))") == "0 0\n"
        kernel.ok(IN_A_CELL)


def test_panel_closes_parts_that_are_not_displayed():
    before = registered()
    panel = Panel({}, [], {})
    panel.beside, panel.more = ipywidgets.Text(), {"one": ipywidgets.Button(), "two": ipywidgets.Text()}
    assert len(registered()) > len(before) + 9
    panel.close()
    assert registered() == before
