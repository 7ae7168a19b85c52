"""A widget that is closed leaves nothing: ipywidgets keeps every part that nobody closes until the kernel ends."""

import gc
import weakref

import ipywidgets
import pytest
from matplotlib.figure import Figure

from dgc_lab.aggregation import AggregationExplorer
from dgc_lab.common import LabError
from dgc_lab.comparison import SchemeLab
from dgc_lab.parameter_server import StragglerLab
from dgc_lab.replicas import ReplicaExplorer
from dgc_lab.scaling import ScaleExplorer
from dgc_lab.scaling.timing import StepTimes
from dgc_lab.training import CompressionSweep, CompressionTaste, DistributedSweep
from dgc_lab.ui import Prediction
from dgc_lab.ui.explorer import Explorer
from dgc_lab.ui.widget import Panel
from kernels import until

LONG = 100_000  # steps; such a run ends by Stop alone


def registered():
    """The widgets that ipywidgets knows, in its version 8 and in 7."""
    from ipywidgets.widgets import widget

    return dict(widget._instances if hasattr(widget, "_instances") else ipywidgets.Widget.widgets)


def used_explorer(explorer):
    """An explorer whose first control has been moved, and which has drawn that."""
    control = next(iter(explorer.controls.values()))
    control.value = control.options[-1] if hasattr(control, "options") else control.max
    assert explorer.wait(60)
    return explorer


def trained(lab):
    """A widget that has trained a row, and has made the links that save it."""
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


USED = {
    "AggregationExplorer": lambda: used_explorer(AggregationExplorer(addends=64)),
    "ReplicaExplorer": lambda: used_explorer(ReplicaExplorer()),
    "ScaleExplorer": lambda: used_explorer(ScaleExplorer(StepTimes(0.05, 0.01, 1e-8))),
    "CompressionSweep": lambda: trained(CompressionSweep(steps=10)),
    "CompressionTaste": CompressionTaste,
    "DistributedSweep": DistributedSweep,
    "StragglerLab": StragglerLab,
    "SchemeLab": lambda: trained(SchemeLab(steps=10)),
    "Prediction": kept_prediction,
}


def figures():
    return [each for each in gc.get_objects() if isinstance(each, Figure)]


@pytest.mark.parametrize("name", USED)
def test_nothing_is_left_of_a_closed_widget(name):
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


def test_every_public_widget_is_looked_at():
    """Each room's, as the reference has them."""
    import importlib
    from pathlib import Path

    import dgc_lab

    rooms = [file.parent.name for file in Path(dgc_lab.__file__).parent.glob("*/__init__.py")]
    public = {
        name
        for room in map(importlib.import_module, (f"dgc_lab.{room}" for room in rooms if room != "marking"))
        for name in getattr(room, "__all__", ())
        if isinstance(getattr(room, name), type) and issubclass(getattr(room, name), ipywidgets.Widget)
    }
    assert public == set(USED)


def test_a_run_under_way_ends_first_and_its_rows_stay():
    lab = CompressionSweep(ratios="1", steps=10)
    lab.run()
    lab.ratios.value, lab.steps.value = "0.1", LONG
    lab.start()
    until(lambda: lab.curves.runs[-1]["loss"][0], 60)
    lab.close()
    assert lab.wait(0), "the thread has ended"
    assert [row["ratio"] for row in lab.rows] == lab.frame()["ratio"].tolist() == [1.0]
    lab.close()  # a second time changes nothing


def test_a_closed_widget_says_that_it_runs_no_more():
    lab = CompressionSweep(steps=10)
    lab.close()
    with pytest.raises(LabError, match="this widget is closed: make a new one"):
        lab.run()
    lab.start()
    lab.save()
    lab.clear()
    assert lab.rows == []
    assert lab.wait(0), "nothing runs"


@pytest.mark.parametrize(
    "make",
    [
        lambda: CompressionSweep(speed=1),
        lambda: AggregationExplorer(addends=100),
        lambda: ScaleExplorer(StepTimes(0.05, 0.01, 1e-8), model="none"),
        lambda: SchemeLab(schemes=3),
    ],
)
def test_a_widget_that_was_refused_leaves_nothing(make):
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


def test_a_kernel_that_shows_widgets_and_closes_them_keeps_none(kernel):
    """Its output history holds what a cell has shown, but none of the channels to the page."""
    kernel.ok(IN_A_CELL)
    assert int(kernel.ok("print(len(comms))")) > 8
    for _ in range(2):
        assert kernel.ok("explorer.close(); gc.collect(); print(len(comms), len(widget._instances))") == "0 0\n"
        kernel.ok(IN_A_CELL)


def test_a_panel_closes_what_it_holds_and_does_not_show():
    before = registered()
    panel = Panel({}, [], {})
    panel.beside, panel.more = ipywidgets.Text(), {"one": ipywidgets.Button(), "two": ipywidgets.Text()}
    assert len(registered()) > len(before) + 9
    panel.close()
    assert registered() == before
