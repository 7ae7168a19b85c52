"""The lab's widgets work on ipywidgets 7 in the classic notebook: they display, respond, train, draw and stop."""

import pytest
from classic import complaints, expect_live, expect_message, fill, move, press, run_all, widget
from playwright.sync_api import expect

from browser import ROOT, one_cell_notebook, screenshot

AGGREGATION = """\
from dgc_lab.aggregation import AggregationExplorer

AggregationExplorer(method="sequential", addends=1024, dtype="float16", signs="positive")"""
REPLICAS = """\
from dgc_lab.replicas import ReplicaExplorer

ReplicaExplorer(replicas=4, aggregation="SUM", synchronization="ON_READ")"""
STRAGGLERS = """\
from dgc_lab.parameter_server import StragglerLab

lab = StragglerLab(gradients=240)
lab"""
RANKS = """\
from dgc_lab.cluster import HorovodRanks
from dgc_lab.training import DistributedSweep

ranks = HorovodRanks(2)
lab = DistributedSweep(ranks, rule="exact")
lab"""
SCALE = """\
from IPython.display import display

from dgc_lab.scaling import ScaleExplorer
from dgc_lab.scaling.timing import StepTimes
from dgc_lab.ui import Prediction

display(Prediction("How accurate will it be?", of=("at 1 %", "at 0.1 %")))
ScaleExplorer(StepTimes(0.05, 0.01, 1e-8, "measured here", "measured here"))"""
LOSS = "img[alt^='Training loss']"
pytestmark = pytest.mark.usefixtures("screenshot_of_a_failure")


def test_lesson_4_sweep_draws_live_stops_and_resumes(page, show):
    show(ROOT / "notebooks" / "04_dgc_masking.ipynb")
    assert run_all(page) == []
    lab = widget(page, "button:has-text('Run')")
    rows = lab.locator("table tbody tr")
    expect(rows).to_have_count(0)
    before = lab.get_by_label("Ratios", exact=True).first.input_value()
    move(lab, 1)
    expect(lab.get_by_label("Ratios", exact=True).first).not_to_have_value(before)
    fill(lab, Ratios="0.1, 0.01", Steps="2500")
    press(lab, "Run")
    expect_message(lab, r"step \d+ of 5000")
    expect_live(lab, LOSS)
    expect_message(lab, "Ratio 0.01: step")
    screenshot(page, "classic_lesson4_running")
    press(lab, "Stop")
    expect_message(lab, "Stopped at step")
    expect(rows).to_have_count(1)
    fill(lab, Ratios="0.05", Steps="60")
    press(lab, "Run")
    expect_message(lab, "Done: 1 row")
    expect(rows).to_have_count(2)
    fill(lab, Ratios="2")
    press(lab, "Run")
    expect(lab.get_by_role("alert")).to_contain_text("ratios must be in [0, 1], got 2.0")
    lab.screenshot(path=ROOT / "artefacts" / "classic_sweep.png")
    assert complaints(page) == []


def test_aggregation_explorer_redraws(page, show, tmp_path):
    show(one_cell_notebook(tmp_path, "aggregation.ipynb", AGGREGATION))
    assert run_all(page) == []
    explorer = widget(page, "img[alt^='Relative error']")
    expect_message(explorer, "sequential: relative error")
    picture = explorer.locator("img[alt^='Relative error']")
    before = picture.get_attribute("src")
    explorer.get_by_label("Method", exact=True).select_option("kahan")
    expect_message(explorer, "kahan: relative error")
    expect(picture).not_to_have_attribute("src", before)
    before = picture.get_attribute("src")
    move(explorer, 1)
    expect(picture).not_to_have_attribute("src", before)
    screenshot(page, "classic_aggregation")
    assert complaints(page) == []


def test_replica_explorer_has_a_field_per_replica(page, show, tmp_path):
    show(one_cell_notebook(tmp_path, "replicas.ipynb", REPLICAS))
    assert run_all(page) == []
    explorer = widget(page, "img[alt^='assign']")
    expect_message(explorer, "A read outside the replicas gives 10")
    explorer.get_by_label("Aggregation", exact=True).select_option("MEAN")
    expect_message(explorer, r"A read outside the replicas gives 2\.5")
    move(explorer, 2)
    expect_message(explorer, r"gave 1, 2, 3, 4, 5, 6\.")
    expect(explorer.get_by_label("Replica 5", exact=True)).to_be_visible()
    expect(explorer.get_by_label("Replica 6", exact=True)).to_be_hidden()
    screenshot(page, "classic_replicas")
    assert complaints(page) == []


def test_straggler_lab_trains_live_and_stops(page, show, tmp_path):
    show(one_cell_notebook(tmp_path, "stragglers.ipynb", STRAGGLERS))
    assert run_all(page) == []
    lab = widget(page, "button:has-text('Run')")
    lab.get_by_label("Mode", exact=True).select_option("asynchronous")
    fill(lab, Gradients="100000")
    press(lab, "Run")
    expect_message(lab, r"2 workers, asynchronous.*: \d+ of 100000 gradients")
    expect_live(lab, LOSS)
    screenshot(page, "classic_stragglers")
    press(lab, "Stop")
    expect_message(lab, "Stopped: 2 workers, asynchronous")
    expect(lab.locator("table tbody tr")).to_have_count(1)
    assert complaints(page) == []


def test_distributed_sweep_trains_live_and_stops(page, show, tmp_path):
    show(one_cell_notebook(tmp_path, "ranks.ipynb", RANKS))
    assert run_all(page) == []
    lab = widget(page, "button:has-text('Run')")
    fill(lab, Ratios="0.01", Steps="4000")
    lab.get_by_label("Method", exact=True).select_option("masking alone")
    expect(lab.get_by_label("Accumulate unsent elements", exact=True)).not_to_be_checked(timeout=30_000)
    press(lab, "Run")
    expect_message(lab, r"step \d+ of 4000")
    expect_live(lab, LOSS)
    screenshot(page, "classic_ranks")
    press(lab, "Stop")
    expect_message(lab, "Stopped at step")
    fill(lab, Steps="30")
    press(lab, "Run")
    expect_message(lab, "Done: 1 row")
    expect(lab.locator("table tbody tr")).to_have_count(1)
    assert complaints(page) == []


def test_scale_explorer_and_a_prediction(page, show, tmp_path):
    show(one_cell_notebook(tmp_path, "scale.ipynb", SCALE))
    assert run_all(page) == []
    explorer = widget(page, "img[alt^='Speed-up, bytes']")
    explorer.get_by_label("Model", exact=True).select_option("ResNet-50")
    expect_message(explorer, "ResNet-50, 8 workers")
    move(explorer, 3)
    expect_message(explorer, "ResNet-50, 64 workers")
    guess = widget(page, "button:has-text('This is my prediction')")
    move(guess, 5)
    press(guess, "This is my prediction")
    expect(guess).to_contain_text("Prediction saved. Now run the experiment.")
    screenshot(page, "classic_scale")
    assert complaints(page) == []
