"""The widget of lesson 4, driven through its controls, training for real."""

import base64
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from dgc_lab.training.events import TrainingDiverged
from dgc_lab.training.masking_widget import CompressionSweep
from dgc_lab.training.sweeps import read_rows
from dgc_lab.ui.charts import Picture
from dgc_lab.ui.curves import Curves
from widgets import assert_matches_the_full_figure, picture_of, press

LONG = 1_000_000  # steps; such a run ends only when stopped


@pytest.fixture
def lab():
    """A widget configured for a short run, always stopped after the test."""
    widget = CompressionSweep(ratios="0.1", steps=20, batch=16)
    yield widget
    widget.stop()
    assert widget.wait(30)


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def wait_for_first_step(widget):
    """Wait until the first step of a run is shown."""
    wait_for(lambda: re.search(r"step \d+ of", widget.message.value))


def test_run_button_trains_and_shows_curves_and_row(lab):
    before = picture_of(lab)
    press(lab, "run")
    assert lab.run_button.disabled
    assert not lab.stop_button.disabled
    assert lab.wait(60)
    assert "Done: 1 row" in lab.message.value
    assert [row["ratio"] for row in lab.rows] == [0.1]
    assert f"{lab.rows[0]['accuracy']:.4g}" in lab.table.value
    assert np.any(picture_of(lab) != before)
    assert "ratio 0.1: loss" in lab.image.value, "alt text must describe the plot"
    assert lab.progress.value == 1
    assert lab.stop_button.disabled
    assert not lab.run_button.disabled


@pytest.mark.nightly
def test_run_pressed_as_soon_as_enabled_is_not_lost(lab):
    """The browser enables the button shortly before the training thread ends."""
    lab.stop_button.observe(lambda change: change["new"] and time.sleep(0.2), "disabled")
    press(lab, "run")
    wait_for(lambda: lab.rows and not lab.run_button.disabled)
    lab.ratios.value = "0.2"
    press(lab, "run")
    assert lab.wait(60)
    assert [row["ratio"] for row in lab.rows] == [0.1, 0.2]


def test_slider_text_and_presets_stay_in_sync(lab):
    lab.ratio.value = 0.001
    assert lab.ratios.value == "0.001"
    lab.ratios.value = "2.5%"
    assert lab.ratio.value == pytest.approx(0.025)
    assert lab.ratios.value == "2.5%"
    lab.preset.value = "4 ratios"
    assert lab.ratios.value == "1, 0.1, 0.01, 0.001"
    lab.ratios.value = "0.5, 0.2"
    assert lab.preset.value == "as typed"
    lab.preset.value = "12 published ratios"
    lab.ratio.value = 0.5
    assert lab.ratios.value == "0.5"
    assert lab.preset.value == "as typed"


def test_table_grows_by_one_row_per_ratio(lab):
    grown = []
    lab.table.observe(lambda change: grown.append(change["new"].count("<tr")), "value")
    lab.ratios.value = "1, 0.1, 0.01"
    press(lab, "run")
    assert lab.wait(60)
    assert grown[:3] == [2, 3, 4]


@pytest.mark.alone
def test_stop_within_a_second_keeps_rows_and_run_resumes(lab):
    press(lab, "run")
    assert lab.wait(60)
    lab.steps.value = LONG
    press(lab, "run")
    wait_for_first_step(lab)
    asked = time.monotonic()
    press(lab, "stop")
    press(lab, "stop")
    lab.stop()
    assert lab.wait(10)
    assert time.monotonic() - asked < 1
    assert "Stopped at step" in lab.message.value
    assert len(lab.rows) == 1
    assert lab.curves.runs[-1]["label"].endswith("(stopped)")
    lab.steps.value, lab.ratios.value = 20, "0.1, 0.01"
    press(lab, "run")
    assert lab.wait(60)
    assert "Done: 1 row" in lab.message.value, "the existing row must not be retrained"
    assert [row["ratio"] for row in lab.rows] == [0.1, 0.01]


def test_stop_during_the_last_evaluation_keeps_the_run(lab):
    make = lab.experiment.trainer

    def trainer_that_stops(settings, data):
        trainer = make(settings, data)
        evaluate = trainer.evaluate

        def stop_and_evaluate(model):
            if trainer.steps_done == settings.steps:
                lab.stop()
            return evaluate(model)

        trainer.evaluate = stop_and_evaluate
        return trainer

    lab.experiment.trainer, lab.ratios.value = trainer_that_stops, "0.1, 0.01"
    press(lab, "run")
    assert lab.wait(60)
    assert [row["ratio"] for row in lab.rows] == [0.1]
    assert "Stopped at step 20 of 40" in lab.message.value


@pytest.mark.nightly
def test_plots_update_at_most_four_times_a_second(lab):
    lab.steps.value = LONG
    times = []
    lab.image.observe(lambda _: times.append(time.monotonic()), "value")
    press(lab, "run")
    wait_for(lambda: len(times) >= 4)
    press(lab, "stop")
    assert lab.wait(10)
    gaps = np.diff(times[:4])
    assert gaps.min() >= 0.24


def test_only_one_run_at_a_time(lab):
    lab.steps.value = LONG
    press(lab, "run")
    wait_for_first_step(lab)
    thread = lab._thread
    press(lab, "run")
    lab.start()
    lab.clear()
    assert lab._thread is thread
    assert len(lab.curves.runs) == 1
    with pytest.raises(RuntimeError, match="a run is in progress"):
        lab.run()


def test_repeated_settings_are_reported_and_clear_retrains(lab):
    press(lab, "run")
    assert lab.wait(60)
    first = dict(lab.rows[0])
    press(lab, "run")
    assert "has these rows already" in lab.message.value
    press(lab, "clear")
    assert lab.rows == []
    assert lab.table.value == ""
    press(lab, "run")
    assert lab.wait(60)
    assert lab.rows[0]["accuracy"] == first["accuracy"]


@pytest.mark.nightly_except("ratios--at least one element")
@pytest.mark.parametrize(
    ("control", "value", "message"),
    [
        ("ratios", "1, 2", "ratios must be in [0, 1], got 2.0"),
        ("ratios", "many", "got &#x27;many&#x27;"),
        ("ratios", "", "at least one element"),
        ("steps", 0, "steps must be a whole number of at least 1, got 0"),
        ("batch", -1, "batch must be"),
        ("learning_rate", -0.1, "learning_rate must be above 0"),
        ("momentum", 1.5, "momentum must be"),
        ("seed", -1, "seed must be"),
    ],
)
def test_invalid_values_are_reported_and_change_nothing(lab, control, value, message):
    lab.controls[control].value = value
    press(lab, "run")
    assert 'role="alert"' in lab.message.value
    assert message in lab.message.value
    assert not lab.run_button.disabled
    assert lab.rows == []
    with pytest.raises(ValueError, match="must"):
        lab.run()


@pytest.mark.nightly
def test_divergence_is_reported_and_keeps_finished_rows(lab):
    press(lab, "run")
    assert lab.wait(60)
    lab.learning_rate.value, lab.steps.value = 1e6, 50
    press(lab, "run")
    assert lab.wait(60)
    assert re.search(r'role="alert".*step \d+, ratio 0.1: gradient of .* holds (NaN|Inf)', lab.message.value)
    assert "Traceback" not in lab.message.value
    assert len(lab.rows) == 1
    assert lab.curves.loss_axes.get_ylim()[1] <= 12, "the other runs' curves must stay visible"
    with pytest.raises(TrainingDiverged, match="holds"):
        lab.run()
    lab.learning_rate.value, lab.ratios.value, lab.steps.value = 0.05, "0.5", 20
    press(lab, "run")
    assert lab.wait(60)
    assert len(lab.rows) == 2


def test_widget_reports_missing_mnist(lab, monkeypatch):
    monkeypatch.setenv("DGC_LAB_DATA", "/nowhere")
    lab.dataset.value = "mnist"
    press(lab, "run")
    assert lab.wait(60)
    assert "DGC_LAB_DATA is &#x27;/nowhere&#x27;" in lab.message.value


@pytest.mark.nightly
def test_mnist_rows_include_published_accuracy(lab, small_mnist, monkeypatch):
    monkeypatch.setenv("DGC_LAB_DATA", str(small_mnist[0]))
    lab.dataset.value, lab.ratios.value, lab.steps.value = "mnist", "0.001", 2
    press(lab, "run")
    assert lab.wait(120)
    assert "published accuracy" in lab.table.value
    assert "0.4099" in lab.table.value
    assert "20 000 steps" in lab.table.value, "the table must name the published configuration"


@pytest.mark.nightly
def test_run_blocks_and_displays_a_static_figure_and_table(lab, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *things: shown.extend(things))
    lab.run()
    picture, frame = shown
    assert isinstance(picture, Picture)
    data, metadata = picture._repr_mimebundle_()
    assert base64.b64decode(data["image/png"])[:4] == b"\x89PNG"
    assert metadata["image/png"]["alt"] == picture.alt
    assert f'<img alt="{picture.alt}"' in data["text/html"]
    assert "ratio 0.1" in picture.alt
    assert frame["ratio"].tolist() == [0.1]


def test_interrupting_run_keeps_rows_and_a_usable_widget(lab, monkeypatch):
    lab.ratios.value = "0.1, 0.01"
    draw = lab._draw

    def interrupt():
        draw()
        if lab.rows:
            monkeypatch.setattr(lab, "_draw", draw)
            raise KeyboardInterrupt

    monkeypatch.setattr(lab, "_draw", interrupt)
    monkeypatch.setattr("dgc_lab.ui.live_panel.SHORTEST_REDRAW", 0)
    monkeypatch.setattr(lab, "redraw_share", 1e9)
    with pytest.raises(KeyboardInterrupt):
        lab.run()
    assert [row["ratio"] for row in lab.rows] == [0.1]
    assert "Interrupted" in lab.message.value
    monkeypatch.setattr("IPython.display.display", lambda *_: None)
    lab.run()
    assert [row["ratio"] for row in lab.rows] == [0.1, 0.01]


@pytest.mark.nightly
@pytest.mark.parametrize("part", ["_draw", "_show_table", "_say"])
def test_failure_during_cleanup_leaves_buttons_working(lab, monkeypatch, part):
    usual = getattr(lab, part)
    follow = lab._follow

    def breaks(*arguments, **options):
        raise KeyboardInterrupt

    def follow_then_break(*arguments):
        said = follow(*arguments)
        monkeypatch.setattr(lab, part, breaks)
        return said

    monkeypatch.setattr(lab, "_follow", follow_then_break)
    with pytest.raises(KeyboardInterrupt):
        lab.run()
    monkeypatch.setattr(lab, part, usual)
    assert not lab.run_button.disabled
    lab.clear()
    assert lab.rows == []


def test_rows_in_a_file_are_restored_after_a_restart(tmp_path):
    out = tmp_path / "rows.jsonl"
    options = {"ratios": "0.1, 0.01", "steps": 20, "batch": 16}
    first = CompressionSweep(out=out, **options)
    first.start()
    assert first.wait(60)
    again = CompressionSweep(out=out, **options)
    again.ratios.value = "0.1, 0.01, 0"
    again.start()
    assert again.wait(60)
    assert again.rows[:2] == first.rows
    assert re.search(r">Done: 1 row in [\d.]+ s, and 2 from rows.jsonl.<", again.message.value), again.message.value
    assert len(read_rows(out, {})) == 3


def test_trainer_is_reused_while_settings_are_unchanged(lab):
    press(lab, "run")
    assert lab.wait(60)
    trainer = lab.experiment.trainer.last
    lab.ratio.value = 0.01
    press(lab, "run")
    assert lab.wait(60)
    assert lab.experiment.trainer.last is trainer
    assert trainer.traces == 1


@pytest.mark.nightly
@pytest.mark.parametrize("where", ["display", "thread", "buttons"])
def test_widget_still_trains_after_an_interrupt_at_any_point(lab, where, monkeypatch):
    """Interrupt before training starts, while starting the thread, and as buttons are re-enabled."""
    with monkeypatch.context() as patched:
        if where == "display":
            patched.setattr("IPython.get_ipython", lambda: SimpleNamespace(kernel=None))
            patched.setattr("IPython.display.display", interrupt)
        elif where == "thread":
            patched.setattr(threading.Thread, "start", interrupt)
        else:
            lab.save_button.observe(interrupt_when_enabled, "disabled")
        with pytest.raises(KeyboardInterrupt):
            (lab.start if where == "thread" else lab.run)()
    lab.save_button.unobserve_all("disabled")
    assert not lab._lock.locked()
    assert not lab.run_button.disabled
    lab.clear()
    press(lab, "run")
    assert lab.wait(60)
    assert len(lab.rows) == 1
    assert [lab.run_button.disabled, lab.stop_button.disabled] == [False, True]
    lab.close()


def interrupt_when_enabled(change):
    if not change["new"]:
        raise KeyboardInterrupt


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_unknown_initial_setting_is_rejected():
    with pytest.raises(ValueError, match=r"settings must be among dataset, ratios, .* got 'epochs'"):
        CompressionSweep(epochs=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "cifar"}, r"dataset must be .*digits.*mnist.*, got 'cifar'"),
        ({"dataset": None}, r"dataset must be .*digits.*mnist.*, got None"),
        ({"steps": 1.9}, "steps must be a whole number, got 1.9"),
        ({"steps": True}, "steps must be a whole number, got True"),
        ({"learning_rate": "much"}, "learning_rate must be a number, got 'much'"),
        ({"out": "/tmp"}, "out must be a file, or not exist yet, got '/tmp'"),
        ({"out": f"{__file__}/rows.jsonl"}, "out must be a file, or not exist yet"),
    ],
)
def test_invalid_initial_value_is_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        CompressionSweep(**settings)


def test_rule_off_with_another_ratio_is_reported(lab):
    lab.rule.value = "off"
    press(lab, "run")
    assert "ratio must be 1 with rule &#x27;off&#x27;" in lab.message.value
    lab.ratios.value = "1"
    press(lab, "run")
    assert lab.wait(60)
    assert lab.rows[0]["share sent"] == 1


def test_every_control_has_a_label(lab):
    assert all(control.description for control in lab.controls.values())


def test_legend_names_the_settings_that_differ(lab):
    press(lab, "run")
    assert lab.wait(60)
    lab.momentum.value, lab.rule.value = 0.5, "exact"
    press(lab, "run")
    assert lab.wait(60)
    assert [run["label"] for run in lab.curves.runs] == ["ratio 0.1", "ratio 0.1, momentum 0.5, threshold exact"]
    assert "momentum" in lab.table.value


def test_earlier_runs_keep_their_last_point():
    curves = Curves(3)
    for label in ("a", "b"):
        curves.begin(label)
        curves.panels()
        for step in (1, 2, 3):
            curves.add_loss(step, 1.0)
            curves.add_accuracy(step, 0.5)
    for line in curves.runs[0]["lines"].values():
        assert line.get_xdata()[-1] == 3


def test_fast_frame_matches_the_full_figure():
    curves = Curves(10)
    for label in ("a", "b"):
        curves.begin(label)
        for step in range(1, 11):
            curves.add_loss(step, 3.0 / step)
            curves.add_accuracy(step, step / 11)
    curves.panels()
    curves.add_loss(10, 5.0)  # above the axis limit, which must grow
    assert_matches_the_full_figure(curves)
    assert curves.loss_axes.get_ylim()[1] == 6
