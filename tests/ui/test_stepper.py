"""The widget that shows a series of pictures step by step, driven through its controls."""

import re

import pandas as pd
import pytest
from matplotlib.figure import Figure

from dgc_lab.ui import Picture, Stepper
from kernels import until
from widgets import picture_of, press, said, set_and_wait

TABLE = pd.DataFrame({"step": [1, 2, 3], "bytes": [10, 20, 30]})


def draw(step):
    figure = Figure(figsize=(2, 2))
    figure.subplots().bar(0, step)
    return Picture(figure, f"A bar of height {step}.")


@pytest.fixture
def stepper():
    widget = Stepper(draw, 3, TABLE, step=2)
    yield widget
    widget.close()


def test_stepper_starts_with_the_given_step(stepper):
    assert 'alt="A bar of height 2."' in stepper.image.value
    assert said(stepper) == "Step 2 of 3."


def test_slider_shows_another_step(stepper):
    before = picture_of(stepper)
    set_and_wait(stepper, step=3)
    assert stepper.picture.alt == "A bar of height 3."
    assert (picture_of(stepper) != before).any()
    assert said(stepper) == "Step 3 of 3."


def test_stepper_table_has_all_steps_at_every_step(stepper):
    """An unchanged text is not sent to the browser again, which would fold the table."""
    changes = []
    stepper.table.observe(changes.append, "value")
    set_and_wait(stepper, step=0)
    assert changes == []
    assert stepper.frame.equals(TABLE)
    assert re.findall(r"<td>(\d+)</td>", stepper.table.value) == ["1", "10", "2", "20", "3", "30"]


def test_show_displays_the_current_step_and_the_table(stepper, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *things: shown.extend(things))
    stepper.show()
    assert shown[0].alt == "A bar of height 2."
    assert shown[1].equals(TABLE)


@pytest.mark.parametrize(("step", "expected"), [(1, [2, 3]), (3, [0, 1, 2, 3])])
def test_play_shows_the_steps_up_to_the_last_one(stepper, monkeypatch, step, expected):
    monkeypatch.setattr("dgc_lab.ui.stepper.SECONDS_PER_STEP", 0.01)
    set_and_wait(stepper, step=step)
    seen = []
    stepper.controls["step"].observe(lambda change: seen.append(change["new"]), "value")
    press(stepper, "play")
    until(lambda: seen[-1:] == [3] and stepper.play_button.description == "Play", 60)
    assert seen == expected
    assert stepper.wait(60)
    assert stepper.picture.alt == "A bar of height 3."


def test_pause_stops_playing_and_play_resumes(stepper, monkeypatch):
    monkeypatch.setattr("dgc_lab.ui.stepper.SECONDS_PER_STEP", 3600)
    press(stepper, "play")
    assert stepper.play_button.description == "Pause"
    press(stepper, "play")
    until(lambda: stepper.play_button.description == "Play", 60)
    assert stepper.values() == {"step": 2}
    monkeypatch.setattr("dgc_lab.ui.stepper.SECONDS_PER_STEP", 0.01)
    press(stepper, "play")
    until(lambda: stepper.values() == {"step": 3}, 60)


def test_closing_a_stepper_ends_its_player(monkeypatch):
    monkeypatch.setattr("dgc_lab.ui.stepper.SECONDS_PER_STEP", 3600)
    widget = Stepper(draw, 3, TABLE)
    press(widget, "play")
    player = widget._player
    widget.close()
    assert not player.is_alive()


@pytest.mark.parametrize("step", [-1, 4, 1.5, "two", None])
def test_stepper_rejects_steps_without_a_picture(step):
    with pytest.raises(ValueError, match=r"step must be a whole number from 0 to 3, got "):
        Stepper(draw, 3, TABLE, step=step)


def test_stepper_rejects_a_series_of_one_picture():
    with pytest.raises(ValueError, match="last must be a whole number from 1 to 1000, got 0"):
        Stepper(draw, 0, TABLE)


def test_stepper_reports_an_error_of_a_picture():
    def fails(step):
        if step == 1:
            raise ValueError("step 1 has no picture")
        return draw(step)

    widget = Stepper(fails, 2, TABLE)
    set_and_wait(widget, step=1)
    assert "step 1 has no picture" in widget.message.value
    assert 'role="alert"' in widget.message.value
    set_and_wait(widget, step=2)
    assert said(widget) == "Step 2 of 2."
    widget.close()
