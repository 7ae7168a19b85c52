"""Lesson 6's widget, driven through its controls, matches the cost model and names its data sources."""

import dataclasses
import math
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from dgc_lab.scaling.cost_model import METHODS, step
from dgc_lab.scaling.network import GBIT, Link
from dgc_lab.scaling.timing import ASSUMED_COMPUTE, StepTimes, workload
from dgc_lab.scaling.widget import ScaleExplorer
from widgets import assert_rejected, picture_of, set_and_wait

HERE = StepTimes(0.05, 0.01, 1e-8, "measured here", "measured here")
FIT = Link(math.inf, latency=200e-6, efficiency=0.9, per_byte=1e-9)
ROW = {"link": "1 Gbit/s", "bandwidth": GBIT, "ratio": 1.0, "values": "float32", "indices": "int32"}
LINK_ROWS = [  # in the format of results/link.jsonl
    {**ROW, "method": "no exchange", "ms": 50.0, "payload_bytes": 0, "wire_bytes": 7000},
    {**ROW, "method": "dense", "ms": 150.0, "payload_bytes": 13e6, "wire_bytes": 13.1e6},
    {**ROW, "method": "masking", "ratio": 0.001, "ms": 55.0, "payload_bytes": 26e3, "wire_bytes": 35e3},
    {**ROW, "method": "DGC", "ratio": 0.001, "ms": 60.0, "payload_bytes": 34e3, "wire_bytes": 42e3},
    {
        **ROW,
        "method": "DGC",
        "ratio": 0.001,
        "ms": 58.0,
        "payload_bytes": 20e3,
        "wire_bytes": 28e3,
        "values": "float16",
    },
]


@pytest.fixture(scope="module")
def explorer():
    explorer = ScaleExplorer(HERE, FIT, LINK_ROWS)
    yield explorer
    assert explorer.wait(60)


@pytest.fixture(autouse=True)
def restore_values(explorer):
    values = explorer.values()
    yield
    explorer.controls["model"].value = values["model"]
    set_and_wait(explorer, **values)


def shown(explorer):
    """Parse the widget's HTML table: {(method, source): {column: number}}."""
    names, *rows = re.findall(r"<tr.*?>(.*?)</tr>", explorer.table.value, re.DOTALL)
    names = re.findall(r"<th>(.*?)</th>", names)
    cells = [dict(zip(names, re.findall(r"<td>(.*?)</td>", row), strict=True)) for row in rows]
    return {
        (row.pop("method"), row.pop("source")): {name: float(text or "nan") for name, text in row.items()}
        for row in cells
    }


def test_import_does_not_load_tensorflow():
    code = "import sys, dgc_lab.scaling.widget, dgc_lab.scaling.timing; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_table_matches_the_cost_model(explorer):
    set_and_wait(
        explorer,
        **{"model": "ResNet-50", "workers": 64, "bandwidth": 10 * GBIT, "latency": 20, "ratio": 0.004},
        **{"values": "float16", "indices": "run_lengths"},
    )
    set_and_wait(explorer, compute=300, selection=40)
    times = StepTimes(0.3, 0.04, 1e-8)
    work, link = workload("ResNet-50", times, "float16", "run_lengths"), Link(10 * GBIT, 20e-6)
    table = shown(explorer)
    for method in METHODS:
        expected = step(work, link, 64, method, 0.004)
        row = table[method, "modelled"]
        for column, value in {
            "ms per step": 1e3 * expected.seconds,
            "speed-up": expected.speed_up,
            "MB sent per worker": expected.payload_bytes / 1e6,
            "MB per link": expected.passed / 1e6,
            "speed-up with 1024": step(work, link, 1024, method, 0.004).speed_up,
        }.items():
            assert row[column] == pytest.approx(value, rel=1e-3), (method, column)
        assert f"{method}, modelled: speed-up {expected.speed_up:.3g}" in explorer.picture.alt
    assert f'alt="{explorer.picture.alt}"' in explorer.image.value
    assert "Speed-up over one worker: switching " in explorer.message.value
    assert "smaller below a ratio of 0.0312" in explorer.message.value, "2 / 64 with 4 bytes an entry"


@pytest.mark.nightly
def test_every_control_changes_the_figure(explorer):
    moves = {"workers": 256, "bandwidth": GBIT / 10, "latency": 5000, "ends": "fitted to measurements", "ratio": 0.01}
    moves |= {"overlap": 1.0, "compressing": "tensor by tensor"}
    moves |= {"values": "float16", "indices": "run_lengths", "compute": 500, "selection": 100, "model": "BERT-base"}
    assert set(moves) == set(explorer.controls)
    for name, value in moves.items():
        before = image(explorer)
        set_and_wait(explorer, **{name: value})
        assert np.any(image(explorer) != before), name
        assert 'role="status"' in explorer.message.value


def image(explorer):
    """Return the figure at a fixed size: its legend may have an extra row."""
    return np.asarray(Image.fromarray(picture_of(explorer)).resize((900, 315)))


def test_link_starts_as_the_reference_link(explorer):
    assert explorer.controls["latency"].value == 20
    expected = step(workload("mnist_cnn", HERE), Link(GBIT), 8, "dense")
    assert shown(explorer)["dense", "modelled"]["ms per step"] == pytest.approx(1e3 * expected.seconds, rel=1e-3)


def test_fitted_endpoint_costs_are_applied(explorer):
    set_and_wait(explorer, bandwidth=200 * GBIT)
    free = shown(explorer)["dense", "modelled"]["ms per step"]
    set_and_wait(explorer, ends="fitted to measurements")
    fitted = shown(explorer)["dense", "modelled"]["ms per step"]
    expected = step(workload("mnist_cnn", HERE), Link(200 * GBIT, 20e-6, 0.9, 1e-9), 8, "dense")
    assert fitted == pytest.approx(1e3 * expected.seconds, rel=1e-3)
    assert fitted > free


@pytest.mark.nightly
def test_overlap_applies_to_dense_and_per_tensor_exchanges(explorer):
    """Compares table, message, and figure with a model without overlap."""
    set_and_wait(explorer, model="ResNet-50", bandwidth=10 * GBIT, ratio=0.01)
    shown_all, before = shown(explorer), image(explorer)
    assert "The backward pass hides up to 0 ms of an exchange." in explorer.message.value
    set_and_wait(explorer, overlap=1.0)
    assert "The backward pass hides up to 66.67 ms of an exchange." in explorer.message.value
    for method in METHODS:
        hidden = 1e3 * ASSUMED_COMPUTE["ResNet-50"] * 2 / 3 if method in ("dense", "float16") else 0
        assert shown(explorer)[method, "modelled"]["ms per step"] == pytest.approx(
            shown_all[method, "modelled"]["ms per step"] - hidden, rel=1e-3
        )
    assert np.any(image(explorer) != before)
    at_the_end = shown(explorer)["sparse", "modelled"]["ms per step"]
    set_and_wait(explorer, compressing="tensor by tensor")
    work = dataclasses.replace(workload("ResNet-50", explorer.times["ResNet-50"]), overlap=1, by_tensor=True)
    expected = 1e3 * step(work, Link(10 * GBIT), 8, "sparse", 0.01).seconds
    assert shown(explorer)["sparse", "modelled"]["ms per step"] == pytest.approx(expected, rel=1e-3)
    assert expected < at_the_end


@pytest.mark.nightly
def test_measured_steps_are_marked_at_their_settings(explorer):
    assert ("dense", "measured") in shown(explorer)
    assert "no exchange, measured: speed-up 2 with 2; " in explorer.picture.alt
    assert "dense, measured: speed-up 0.667 with 2; sparse, measured: speed-up 1.67 with 2" in explorer.picture.alt
    set_and_wait(explorer, values="float16")
    assert "sparse, measured: speed-up 1.72 with 2" in explorer.picture.alt
    assert shown(explorer)["sparse", "measured"]["MB per link"] == 0.028
    set_and_wait(explorer, values="float32")
    set_and_wait(explorer, ratio=0.01)
    assert ("dense", "measured") in shown(explorer)
    assert ("sparse", "measured") not in shown(explorer)
    set_and_wait(explorer, bandwidth=10 * GBIT)
    assert "measured:" not in explorer.picture.alt
    set_and_wait(explorer, bandwidth=GBIT, model="ResNet-50")
    assert set(explorer.frame["source"]) == {"modelled"}


def test_message_names_the_source_of_each_time(explorer):
    assert "Compute 50 ms: measured here. Selection 10 ms: measured here." in explorer.message.value
    set_and_wait(explorer, selection=2)
    assert "Selection 2 ms: set by you." in explorer.message.value
    set_and_wait(explorer, model="ResNet-50")
    assert explorer.controls["compute"].value == 1e3 * ASSUMED_COMPUTE["ResNet-50"]
    assert explorer.controls["selection"].value == pytest.approx(10 * 25_557_032 / 3_274_634, abs=1e-3)
    assert "Compute 100 ms: assumed. Selection 78.05 ms: scaled from mnist_cnn" in explorer.message.value
    set_and_wait(explorer, compute=120)
    assert "Compute 120 ms: set by you." in explorer.message.value
    assert "measured here. " not in explorer.message.value.replace("mnist_cnn measured here", "")


@pytest.mark.nightly_except("compute-nan-compute must be above 0 ms, got nan")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("compute", 0, "compute must be above 0 ms, got 0"),
        ("compute", math.nan, "compute must be above 0 ms, got nan"),
        ("selection", -1, "selection must be at least 0 ms, got -1"),
        ("latency", -5, "latency must be at least 0 µs, got -5"),
        ("latency", math.inf, "latency must be at least 0 µs, got inf"),
    ],
)
def test_invalid_values_are_reported_and_keep_the_figure(explorer, name, value, message):
    assert_rejected(explorer, name, value, re.escape(message))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 3}, r"workers must be .*1, 2, 4.*, got 3"),
        ({"model": "GPT"}, r"model must be .*mnist_cnn.*, got 'GPT'"),
        ({"speed": 1}, r"settings must be among model, workers, .*, got 'speed'"),
    ],
)
def test_invalid_initial_values_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        ScaleExplorer(HERE, **settings)


def test_rapid_changes_draw_rarely_and_end_up_to_date(explorer):
    drawn = []
    explorer.image.observe(lambda _: drawn.append(time.monotonic()), "value")
    for turn in range(33):
        explorer.controls["workers"].value = 2 ** (turn % 11)
    assert explorer.wait(60)
    explorer.image.unobserve_all()
    assert len(drawn) < 12
    assert f"{explorer.controls['workers'].value} workers" in explorer.message.value
    assert explorer.controls["workers"].value == 1024


def test_every_control_has_a_label(explorer):
    labels = [control.description for control in explorer.controls.values()]
    assert all(labels)
    assert len(set(labels)) == len(labels)
