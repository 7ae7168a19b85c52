"""The rows of the published tables in results/: whole, of one recipe each, and there where the lab is installed."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dgc_lab.common import results_file
from dgc_lab.distributed import SimulatedWorkers
from dgc_lab.scaling.worker_sweep import LEARNING_RATE, STEPS, table_runs
from dgc_lab.training import published_tables as published
from dgc_lab.training.distributed_trainer import DistributedTrainer
from dgc_lab.training.masking_trainer import Trainer
from dgc_lab.training.sweeps import configuration, read_rows, row_matches

RATIOS = [1.0, 0.1, 0.01, 0.005, 0.002, 0.001]
RATIOS_OF_TWO = [ratio for ratio in RATIOS if ratio != 0.1]  # the published rows of two workers have none


def of_one_recipe(rows: list[dict], wanted: dict, borrowed: bool) -> bool:
    """Whether the rows are of these settings and of the same data; the first, of ratio 1, may be another rule's."""
    return all(row_matches(row, wanted) for row in rows[borrowed:]) and len({row["data"] for row in rows}) == 1


@pytest.mark.parametrize("scope", ["first", "tensor"])
def test_rows_of_one_worker_are_there_and_of_the_published_length(scope):
    rows = published.single_node_rows(scope)
    assert [row["ratio"] for row in rows] == RATIOS
    assert of_one_recipe(rows, dataclasses.asdict(published.single_node_settings(scope=scope)), scope == "tensor")
    assert {row["steps"] for row in rows} == {published.PUBLISHED_STEPS}


@pytest.mark.parametrize("method", published.METHODS)
def test_rows_of_two_workers_are_there_and_of_the_published_length(method):
    rows = published.two_node_rows(method)
    assert [row["ratio"] for row in rows] == RATIOS_OF_TWO
    assert of_one_recipe(rows, published.two_node_settings(method).facts(), method == "masking_per_tensor")
    assert {row["steps"] * row["workers"] for row in rows} == {published.PUBLISHED_STEPS}


@pytest.mark.parametrize(("method", "ratio"), [("masking", 1.0), ("dgc", 0.001)])
def test_three_seeds_where_the_verdict_is(method, ratio):
    found = [row for seed in (0, 1, 2) for row in published.two_node_rows(method, seed) if row["ratio"] == ratio]
    assert [row["seed"] for row in found] == [0, 1, 2]
    for row in found:
        assert row_matches(row, published.two_node_settings(method, seed=row["seed"]).facts())


def on_digits(settings):
    return dataclasses.replace(settings, dataset="digits", batch=32)


@pytest.mark.nightly
def test_where_all_is_sent_the_threshold_makes_no_difference(digits):
    """So a threshold per tensor has no row of its own there: it would be the first tensor's, to the bit."""
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


def test_rows_of_a_scope_that_was_not_run():
    with pytest.raises(ValueError, match="scope must be one of first, tensor, got 'global'"):
        published.single_node_rows("global")


def test_installed_from_a_wheel_the_rows_come_along(tmp_path):
    """Colab installs the lab as a package: its lesson reads the rows from there."""
    root = str(Path(__file__).resolve().parents[2])
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), root],
        check=True,
    )
    (wheel,) = tmp_path.glob("dgc_lab-*.whl")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(tmp_path / "site")], check=True)
    assert {path.name.partition("-")[0] for path in (tmp_path / "site").iterdir()} == {"dgc_lab"}, "no grader"
    code = "from dgc_lab.training import published_tables as t; print(t.__file__, len(t.single_node_rows()))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    file = tmp_path / "site" / "dgc_lab" / "training" / "published_tables.py"
    assert done.stdout.split() == [str(file), "6"], done.stderr


def test_rows_on_disk_are_found_by_todays_settings(digits):
    """A setting that is new, renamed or has another default would make all rows that are on users' disks anew."""
    for run in table_runs():
        same = configuration(run.settings(STEPS, LEARNING_RATE), digits)
        rows = read_rows(results_file("workers.jsonl"), {**same, "ratio": run.ratio})
        assert len(rows) == 1, run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "topk"}, "method must be one of masking, masking_per_tensor, dgc, got 'topk'"),
        ({"method": "dgc", "steps": 5}, "steps must be a multiple of 2"),
    ],
)
def test_two_node_settings_name_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        published.two_node_settings(**arguments)
