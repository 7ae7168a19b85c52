"""Lesson 3's widget of modelled timelines, driven through its controls."""

import html
import re

import numpy as np
import pytest

from dgc_lab.parameter_server import Schedule, StepCosts, StragglerExplorer, figures, simulate
from widgets import picture_of, said, set_and_wait

FIRST = {"slowdown": 3.0, "workers": 4, "backup": 1}


@pytest.fixture(scope="module")
def explorer():
    explorer = StragglerExplorer()
    yield explorer
    assert explorer.wait(60)


@pytest.fixture(autouse=True)
def restore_values(explorer):
    yield
    set_and_wait(explorer, **FIRST)


@pytest.mark.parametrize("slowdown", [1.0, 3.5, 10.0])
@pytest.mark.parametrize(("workers", "backup"), [(4, 1), (6, 3)])
def test_table_matches_the_arithmetic(explorer, slowdown, workers, backup):
    set_and_wait(explorer, slowdown=slowdown, workers=workers, backup=backup)
    frame = explorer.frame.set_index("mode")
    slow = 1 / (0.09 * slowdown + 0.01)  # gradients per second of the last worker; the others compute ten
    updates = {"synchronous": slow, "backup workers": 10, "asynchronous": 10 * (workers - 1) + slow}
    averaged = {"synchronous": workers, "backup workers": workers - backup, "asynchronous": 1}
    for mode, rate in updates.items():
        assert frame.loc[mode, "updates/s"] == pytest.approx(rate, rel=0.01), mode
        assert frame.loc[mode, "gradients/s in updates"] == pytest.approx(rate * averaged[mode], rel=0.01), mode
    dropped = 10 * (backup - 1) + slow
    assert frame.loc["backup workers", "gradients/s dropped"] == pytest.approx(dropped, rel=0.05)
    assert frame.loc[["synchronous", "asynchronous"], "gradients/s dropped"].eq(0).all()
    assert frame.loc[["synchronous", "backup workers"], "max staleness"].eq(0).all()


def test_message_compares_the_modes(explorer):
    assert said(explorer).startswith("Of 4 workers, worker 3 takes 3 times as long. Gradients in updates per second:")
    assert "synchronous 14.3, backup workers 30, asynchronous 33.5." in said(explorer)
    set_and_wait(explorer, slowdown=1.0)
    assert said(explorer).startswith("Of 4 workers, worker 3 is as fast as the others.")


def test_picture_shows_modelled_timelines_on_a_fixed_axis(explorer):
    for slowdown in (1.0, 10.0):
        set_and_wait(explorer, slowdown=slowdown)
        panels = explorer.picture.figure.axes
        assert [panel.get_title().partition(",")[0] for panel in panels] == explorer.frame["mode"].tolist()
        assert all("modelled" in panel.get_title() for panel in panels)
        assert {panel.get_xlim() for panel in panels} == {(0, 2)}, "the axis does not move when the slider does"
    assert f'alt="{html.escape(explorer.picture.alt)}"' in explorer.image.value
    updates = re.findall(r"(\d+) updates", explorer.picture.alt)
    assert updates == ["2", "20", "62"]


def test_every_control_changes_the_figure(explorer):
    for name, value in {"slowdown": 7.5, "workers": 8, "backup": 2}.items():
        before = picture_of(explorer)
        set_and_wait(explorer, **{name: value})
        after = picture_of(explorer)
        assert before.shape != after.shape or np.any(before != after), name
        assert 'role="status"' in explorer.message.value


@pytest.mark.parametrize("backup", [1, 2, 3])
@pytest.mark.parametrize("workers", [4, 8])
def test_all_positions_of_the_sliders_are_valid(explorer, workers, backup):
    set_and_wait(explorer, workers=workers, backup=backup)
    assert 'role="status"' in explorer.message.value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slowdown": 11}, "slowdown must be from 1.0 to 10.0, got 11"),
        ({"workers": 3}, "workers must be from 4 to 8, got 3"),
        ({"backup": 0}, "backup must be from 1 to 3, got 0"),
        ({"speed": 1}, "settings must be among slowdown, workers, backup, got 'speed'"),
    ],
)
def test_invalid_initial_values_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        StragglerExplorer(**settings)


def test_every_control_has_a_label(explorer):
    labels = [control.description for control in explorer.controls.values()]
    assert all(labels)
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("seconds", [0, -1, np.inf, np.nan, "two"])
def test_timelines_reject_lengths_that_cannot_be_drawn(seconds):
    runs = {"one": simulate(Schedule(), 1, 3, StepCosts(0.1))}
    with pytest.raises(ValueError, match="seconds must be"):
        figures.timelines(runs, seconds)
