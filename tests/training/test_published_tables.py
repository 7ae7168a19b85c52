"""Rows of the published tables in results/ are complete, share one configuration and ship in the wheel."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dgc_lab.distributed import SimulatedWorkers
from dgc_lab.training import published_tables as published
from dgc_lab.training.distributed_trainer import DistributedTrainer
from dgc_lab.training.masking_trainer import Trainer
from dgc_lab.training.sweeps import row_matches

SMALL = [0.01, 0.005, 0.002, 0.001]
TWO_NODE_RATIOS = {
    "masking": list(published.TWO_NODE),
    "masking_per_tensor": [1.0, *SMALL],
    "dgc": [1.0, 0.3, 0.1, *SMALL],
    "dgc_without_factor_masking": [1.0, 0.3],
}


def share_settings(rows: list[dict], wanted: dict, borrowed: bool) -> bool:
    """Check that rows share settings and data; if `borrowed`, row 1 (ratio 1) may use another rule."""
    return all(row_matches(row, wanted) for row in rows[borrowed:]) and len({row["data"] for row in rows}) == 1


@pytest.mark.parametrize("scope", ["first", "tensor"])
def test_single_worker_rows_match_the_published_length(scope):
    rows = published.single_node_rows(scope)
    assert [row["ratio"] for row in rows] == list(published.SINGLE_NODE)
    assert share_settings(rows, dataclasses.asdict(published.single_node_settings(scope=scope)), scope == "tensor")
    assert {row["steps"] for row in rows} == {published.PUBLISHED_STEPS}


@pytest.mark.parametrize("method", published.METHODS)
def test_two_worker_rows_match_the_published_length(method):
    rows = published.two_node_rows(method)
    assert [row["ratio"] for row in rows] == TWO_NODE_RATIOS[method]
    borrowed = method in ("masking_per_tensor", "dgc_without_factor_masking")
    assert share_settings(rows, published.two_node_settings(method).to_dict(), borrowed)
    assert {row["steps"] * row["workers"] for row in rows} == {published.PUBLISHED_STEPS}


@pytest.mark.parametrize(("method", "ratio"), [("masking", 1.0), ("dgc", 0.001)])
def test_rows_behind_the_verdict_have_three_seeds(method, ratio):
    found = [row for seed in (0, 1, 2) for row in published.two_node_rows(method, seed) if row["ratio"] == ratio]
    assert [row["seed"] for row in found] == [0, 1, 2]
    for row in found:
        assert row_matches(row, published.two_node_settings(method, seed=row["seed"]).to_dict())


def on_digits(settings):
    return dataclasses.replace(settings, dataset="digits", batch=32)


@pytest.mark.nightly
def test_threshold_scope_is_irrelevant_at_ratio_1(digits):
    """Per-tensor thresholds need no row at ratio 1: it would equal the first tensor's bit for bit."""
    one = [Trainer(on_digits(published.single_node_settings(20, scope)), digits) for scope in ("first", "tensor")]
    two = [
        DistributedTrainer(on_digits(published.two_node_settings(method, 20)), SimulatedWorkers(2), digits)
        for method in ("masking", "masking_per_tensor")
    ]
    for trainers in (one, two):
        events = [list(trainer.run(ratio=1.0)) for trainer in trainers]
        losses = [[event.loss for event in found] for found in events]
        assert len(losses[0]) >= 10
        assert losses[0] == losses[1]


def test_rows_of_an_unknown_scope_are_rejected():
    with pytest.raises(ValueError, match="scope must be one of first, tensor, got 'global'"):
        published.single_node_rows("global")


def test_wheel_includes_the_rows(tmp_path):
    """On Colab, the lesson reads the rows from the installed package."""
    root = str(Path(__file__).resolve().parents[2])
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), root],
        check=True,
    )
    (wheel,) = tmp_path.glob("dgc_lab-*.whl")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(tmp_path / "site")], check=True)
    assert {path.name.partition("-")[0] for path in (tmp_path / "site").iterdir()} == {"dgc_lab"}, "unexpected package"
    code = "from dgc_lab.training import published_tables as t; print(t.__file__, len(t.single_node_rows()))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    file = tmp_path / "site" / "dgc_lab" / "training" / "published_tables.py"
    assert done.stdout.split() == [str(file), str(len(published.SINGLE_NODE))], done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"method": "topk"},
            "method must be one of masking, masking_per_tensor, dgc, dgc_without_factor_masking, got 'topk'",
        ),
        ({"method": "dgc", "steps": 5}, "steps must be a multiple of 2"),
    ],
)
def test_invalid_two_node_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        published.two_node_settings(**arguments)
