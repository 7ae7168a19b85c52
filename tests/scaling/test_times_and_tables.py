"""Shapes, times and tables of the cost model, and the figures' alt texts."""

import json
import math

import pandas as pd
import pytest

from conftest import ROOT
from dgc_lab.scaling import figures as scale_pictures
from dgc_lab.scaling import named_shapes
from dgc_lab.scaling import tables as scale_tables
from dgc_lab.scaling import timing as step_times
from dgc_lab.scaling.cost_model import ELEMENTS, Workload
from dgc_lab.scaling.network import COLLECTIVES, GBIT, Link
from dgc_lab.scaling.timing import StepTimes, gpu_rows, selection_times, times_of, workload

HERE = StepTimes(0.05, 0.01, 1e-8, "measured here", "measured here")
ROW = {"link": "1 Gbit/s", "bandwidth": GBIT, "ratio": 1.0, "values": "float32", "indices": "int32"}


def test_shapes_have_the_listed_number_of_elements():
    for model, shapes in named_shapes.SHAPES.items():
        assert sum(math.prod(shape) for shape in shapes()) == ELEMENTS[model]
    from dgc_lab.workloads.models import mnist_cnn

    assert [tuple(weight.shape) for weight in mnist_cnn().trainable_variables] == named_shapes.mnist_cnn()


def test_times_are_measured_here_scaled_or_assumed():
    here = step_times.measured(batch=8, rounds=3)
    assert here.compute > 0
    assert here.selection > 0
    assert 0 <= here.adding < 1e-5
    assert (here.compute_is, here.selection_is) == ("measured here", "measured here")
    assert times_of("mnist_cnn", here) is here
    bert = times_of("BERT-base", here)
    assert bert.selection == pytest.approx(here.selection * 109_482_240 / 3_274_634)
    assert (bert.compute_is, bert.selection_is) == ("assumed", "scaled from mnist_cnn measured here")
    assert workload("mnist_cnn", here).whole == 800 + 32 + 64 + 1024 + 10, "the first kernel is small"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step_times.measured(batch=0), r"batch must be a whole number from 1 to 10000, got 0"),
        (lambda: step_times.measured(rounds=1), r"rounds must be a whole number from 3 to 1000, got 1"),
        (lambda: times_of("GPT", HERE), r"model must be one of mnist_cnn, ResNet-50, BERT-base, got 'GPT'"),
        (lambda: Workload(10, math.nan), r"compute must be above 0, got nan"),
        (lambda: Workload(10, 1.0, selection=-1), r"selection must be at least 0, got -1"),
        (lambda: scale_tables.times_over_links([]), r"rows must include no-exchange and DGC steps at ratio 0.001"),
        (lambda: selection_times(0), r"elements must be a whole number from 1 to 1073741824, got 0"),
        (lambda: selection_times(10, [1.0]), r"ratios must be above 0 and below 1, got 1.0"),
        (lambda: scale_pictures.age_histograms([]), r"rows must have at least one element, got \[\]"),
        (lambda: scale_pictures.lines_and_marks(pd.DataFrame(), "x", "y"), r"frame must hold at least one row"),
    ],
)
def test_invalid_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_tables_accept_iterators():
    assert scale_tables.break_even_table(iter([0.25]), iter([2, 4])).loc[0.25].tolist() == [0.5, 1]
    frame = scale_tables.gains_by_bandwidth({"small": Workload(10**6, 0.1)}, iter([GBIT]), 8, 0.001, Link(GBIT))
    assert len(frame) == 1
    assert len(selection_times(1000, iter([0.1]), rounds=3)) == 3


def test_alt_texts_state_the_numbers_of_the_rows():
    rows = [
        {
            **{"workers": workers, "ratio": 0.01, "mean age": 7.25},
            "sent by age": [[0, 0, 10], [1, 1, 20], [2, 3, 70]],
        }
        for workers in (1, 4)
    ]
    alt = scale_pictures.age_histograms(rows).alt
    assert "ratio 0.01, 4 workers: mean age 7.2 steps, most at 2 to 3" in alt
    points = pd.DataFrame({"curve": ["dense"] * 2, "source": ["modelled", "measured"], "x": [1, 1], "y": [2, 3]})
    alt = scale_pictures.lines_and_marks(points, "Gbit/s", "ms", break_even=1).alt
    assert "ms by Gbit/s. dense, modelled: 2 at 1; dense, measured: 3 at 1." in alt
    picture = scale_pictures.lines_and_marks(points.assign(link="unlimited"), "link", "ms")
    assert "ms by link. dense, modelled: 2 at unlimited; dense, measured: 3 at unlimited." in picture.alt
    [axes] = picture.figure.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["unlimited"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["dense", "modelled", "measured"]
    with pytest.raises(ValueError, match="source must be modelled or measured"):
        scale_pictures.lines_and_marks(points.assign(source="guessed"), "x", "y")


def test_fit_on_two_links_predicts_the_third():
    """The synthetic steps over three links follow the model exactly."""
    rows = []
    for gbit in (0.01, 0.1, 1):
        for method, collective, payload_bytes, selection in (
            ("no exchange", None, 0, 0.0),
            ("dense", "ring", 4 * 3_274_634, 0.0),
            ("DGC", "allgather", 8 * 3272.704 + 8 + 4 * 1930, 8.0),
        ):
            link = Link(gbit * GBIT, 2e-4, 0.9, 1e-9)
            network = link.seconds(*COLLECTIVES[collective](2, payload_bytes)) if collective else 0
            row = {
                **ROW,
                "link": f"{gbit} Gbit/s",
                "bandwidth": gbit * GBIT,
                "method": method,
                "collective": collective,
            }
            row |= {
                "ratio": 0.001 if method == "DGC" else 1.0,
                "payload_bytes": payload_bytes,
                "wire_bytes": payload_bytes,
            }
            rows.append({**row, "selection_ms": selection, "ms": 50 + selection + 1e3 * network})
    times = scale_tables.times_over_links(rows)
    assert (times.compute, times.selection, times.compute_is) == (0.05, 0.008, "measured over links")
    errors = scale_tables.errors_over_links(scale_tables.steps_over_links(rows))
    assert errors.index.tolist() == ["DGC 0.1%", "dense"]
    assert errors.columns.tolist() == ["0.01 Gbit/s", "0.1 Gbit/s", "1 Gbit/s"]
    assert errors.abs().max().max() < 1e-3
    wrong = scale_tables.steps_over_links(rows, Link(math.inf, 2e-4, 0.45, 1e-9))
    assert scale_tables.errors_over_links(wrong).loc["dense", "0.01 Gbit/s"] == pytest.approx(1, abs=0.01)
    assert wrong.query("source == 'measured' and curve == 'dense'")["y"].tolist() == [r["ms"] for r in rows[1::3]]


def test_gpu_rows_are_those_of_the_benchmark():
    """If ``make bench-gpu`` has measured again, copy its ``step`` rows to ``results/gpu_steps.jsonl``."""
    rows = json.loads((ROOT / "benchmarks/results/gpu.json").read_text())["rows"]
    assert gpu_rows() == [row for row in rows if (row["part"], row["what"]) == ("step", "step")]
