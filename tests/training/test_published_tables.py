"""The rows of the published tables in results/: whole, of one recipe each, and there where the lab is installed."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dgc_lab.common import results_file
from dgc_lab.scaling.worker_sweep import LEARNING_RATE, STEPS, table_runs
from dgc_lab.training import published_tables as published
from dgc_lab.training.sweeps import configuration, is_of, read_rows


@pytest.mark.parametrize("scope", ["first", "tensor"])
def test_committed_rows_are_whole(scope):
    rows = published.single_node_rows(scope)
    assert [row["ratio"] for row in rows] == list(published.SINGLE_NODE)
    settings = published.single_node_settings(published.SHORT_STEPS, scope)
    assert all(row.items() >= dataclasses.asdict(settings).items() for row in rows)
    assert len({row["data"] for row in rows}) == 1


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
    code = "from dgc_lab.training import published_tables as t; print(t.__file__, len(t.single_node_rows()))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    file = tmp_path / "site" / "dgc_lab" / "training" / "published_tables.py"
    assert done.stdout.split() == [str(file), "12"], done.stderr


MADE = ("masking", "dgc")  # the methods whose rows are in results/


def test_two_node_rows_are_complete_and_of_one_recipe():
    for method in MADE:
        rows = published.two_node_rows(method)
        assert set(published.TWO_NODE) <= {row["ratio"] for row in rows}
        wanted = published.two_node_settings(method, published.SHORT_STEPS).facts()
        for row in rows:
            assert is_of(row, wanted), (method, row["ratio"])


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


def test_rows_at_full_length_are_of_the_same_recipe():
    """They come one by one, over hours: what there is of them is by the settings of the command that makes them."""
    for scope in ("first", "tensor"):
        wanted = published.single_node_settings(scope=scope).facts()
        assert all(is_of(row, wanted) for row in published.single_node_rows(scope, published.PUBLISHED_STEPS))
    for method in published.METHODS:
        for seed in (0, 1, 2):
            wanted = published.two_node_settings(method, seed=seed).facts()
            assert all(is_of(row, wanted) for row in published.two_node_rows(method, published.PUBLISHED_STEPS, seed))
