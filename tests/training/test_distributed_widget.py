"""The widget on real Horovod ranks, driven through its controls."""

import os
import re
import signal
import time

import pytest

from dgc_lab.training.distributed_trainer import DistributedConfig
from dgc_lab.training.distributed_widget import METHODS, DistributedSweep
from widgets import said


def wait_for_step(widget, seconds=60):
    """Wait until the current run has shown a step."""
    end = time.monotonic() + seconds
    while not (widget.curves.runs and widget.curves.runs[-1]["loss"][0]):
        assert time.monotonic() < end, widget.message.value
        time.sleep(0.02)


@pytest.fixture
def lab(two_ranks):
    widget = DistributedSweep(two_ranks, steps=40, ratios="1, 0.01")
    yield widget
    widget.stop()
    assert widget.wait(30)


def test_run_trains_on_ranks_and_compares_bytes_with_dense(lab):
    lab.run_button.click()
    assert lab.wait(120)
    assert [row["ratio"] for row in lab.rows] == [1.0, 0.01]
    assert "Done: 2 rows" in said(lab)
    assert re.search(rf"Step {lab.steps.value}: a rank sends <b>[\d.,]+ kB</b> \(dense: 153.1 kB", lab.traffic.value)
    frame = lab.frame().set_index("ratio")
    assert frame.loc[0.01, "bytes per step"] < frame.loc[1, "bytes per step"] / 10
    assert "ratio 0.01" in lab.image.value
    lab.clear_button.click()
    assert lab.traffic.value == ""


def test_method_menu_and_switches_stay_in_sync(lab):
    for name, switches in METHODS.items():
        lab.method.value = name
        assert {switch: getattr(lab.settings(), switch) for switch in switches} == switches
    lab.method.value = "complete DGC"
    lab.accumulate.value = False
    assert lab.method.value == "as typed"
    lab.momentum_correction.value = False
    assert lab.method.value == "as typed"
    lab.factor_masking.value = False
    assert lab.method.value == "masking alone"


def test_every_switch_reaches_the_ranks(lab, monkeypatch):
    asked, stream = [], lab.ranks.stream
    monkeypatch.setattr(lab.ranks, "stream", lambda *given: asked.append(given[1]) or stream(*given))
    settings = {
        "warm_up": "paper",
        "warm_up_steps": 3,
        "clip_norm": 1.5,
        "values": "float16",
        "rule": "exact",
        "nesterov": True,
        "momentum": 0.5,
    }
    for name, value in settings.items():
        lab.controls[name].value = value
    lab.ratios.value = "0.02"
    lab.start()
    assert lab.wait(120)
    assert {name: lab.rows[0][name] for name in settings} == settings
    assert [{name: getattr(given, name) for name in settings} for given in asked] == [settings], "wrong settings"


@pytest.mark.alone
def test_stop_halts_ranks_keeps_rows_and_run_resumes(lab):
    lab.steps.value, lab.ratios.value = 60, "1"
    lab.start()
    assert lab.wait(120)
    first = lab.rows[0]
    lab.steps.value, lab.ratios.value = 100_000, "0.01"
    lab.start()
    wait_for_step(lab)
    lab.stop_button.click()
    lab.stop_button.click()
    start = time.monotonic()
    assert lab.wait(30)
    assert time.monotonic() - start < 10
    assert "Stopped at step" in said(lab)
    assert lab.rows == [first]
    lab.steps.value = 60
    lab.start()
    assert lab.wait(120)
    assert len(lab.rows) == 2
    assert lab.ranks.ready


def test_dead_rank_is_named_and_run_restarts_the_ranks(lab):
    pids = lab.ranks.run(os.getpid)
    lab.steps.value, lab.ratios.value = 100_000, "0.01"
    lab.start()
    wait_for_step(lab)
    os.kill(pids[1], signal.SIGKILL)
    assert lab.wait(30)
    assert "rank 1" in said(lab)
    assert 'role="alert"' in lab.message.value
    assert not lab.run_button.disabled
    lab.steps.value = 20
    lab.start()
    assert lab.wait(120)
    assert [row["ratio"] for row in lab.rows] == [0.01]


@pytest.mark.parametrize(
    ("control", "value", "message"),
    [
        ("ratios", "2", r"ratios must be in \[0, 1\], got 2.0"),
        ("clip_norm", -1, "clip_norm must be above 0"),
        ("warm_up_steps", 0, "warm_up_steps must be a whole number of at least 1, got 0"),
        ("workers", 0, "workers must be a whole number of at least 1, got 0"),
        ("workers", 3, "workers must be 2, the number of ranks, got 3"),
        ("momentum", 1, "momentum must be at least 0 and below 1"),
    ],
)
def test_invalid_values_are_reported_and_nothing_starts(lab, control, value, message):
    lab.controls[control].value = value
    lab.start()
    assert lab.wait(30)
    assert re.search(message, said(lab))
    assert lab.rows == []
    assert not lab.run_button.disabled


def test_unknown_settings_are_rejected(two_ranks):
    with pytest.raises(ValueError, match=r"settings must be among dataset, ratios, .*workers, .* got .rank."):
        DistributedSweep(two_ranks, rank=2)


def test_workers_must_match_the_number_of_ranks(two_ranks):
    with pytest.raises(ValueError, match=r"workers must be 2, got 3"):
        DistributedSweep(two_ranks, workers=3)


@pytest.mark.nightly
def test_widget_starts_its_ranks_on_run_and_ends_them_on_close():
    lab = DistributedSweep(workers=1, steps=10)
    assert lab.ranks is None, "ranks started before Run"
    lab.run()
    [pid] = lab.ranks.run(os.getpid)
    lab.close()
    end = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.nightly
def test_rerunning_a_cell_leaves_one_set_of_ranks(horovod):
    """The first widget becomes unreachable, so it cannot be closed."""
    first, second = (DistributedSweep(workers=1, steps=2, ratios="1") for _ in range(2))
    first.run()
    first_ranks = first.ranks
    second.run()
    assert second.ranks.ready
    assert not first_ranks.ready
    first.close()
    assert second.ranks.ready
    second.close()


# Settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
        ({"rule": "off"}, "rule must not be 'off' with several workers"),
        ({"warm_up": "slow"}, "warm_up must be one of none, paper, geometric, dense, got 'slow'"),
        ({"values": "int8"}, "values must be one of float32, float16, got 'int8'"),
        ({"dataset": "cifar"}, "dataset must be one of digits, mnist1d, python_reference, mnist"),
    ],
)
def test_invalid_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        DistributedConfig(**settings)


def test_warm_up_never_goes_below_the_ratio():
    for warm_up in ("none", "paper", "geometric", "dense"):
        for ratio in (0.0, 0.001, 0.1, 0.25, 0.9, 1.0):
            config = DistributedConfig(warm_up=warm_up, warm_up_steps=1).config(ratio)
            stages = [config.ratio_at(step) for step in range(8)]
            assert stages[-1] == ratio
            assert stages == sorted(stages, reverse=True)
