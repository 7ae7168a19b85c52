"""``tools/make_table.py`` reproduces the lessons' tables and resumes from stored rows."""

import shutil

import pytest

from dgc_lab.common import results_file
from dgc_lab.comparison import STUDIES
from dgc_lab.training import published_tables as published
from dgc_lab.training.sweeps import read_rows
from make_table import TABLES, main


@pytest.mark.nightly
def test_single_node_table_uses_the_published_recipe(small_mnist, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert main(["single-node", "--steps", "1", "--data", str(small_mnist[0]), "--out", str(out)]) == 0
    rows = read_rows(out, {})
    assert [row["ratio"] for row in rows] == list(published.SINGLE_NODE)
    config = {"batch": 100, "learning_rate": 0.001, "momentum": 0.9, "scope": "first", "model": "mnist_cnn"}
    assert all(row.items() >= config.items() for row in rows)
    printed = capsys.readouterr().out
    assert "published accuracy" in printed
    assert "0.4099" in printed


def test_table_command_reproduces_the_stored_rows(tmp_path, capsys):
    """It resumes from the rows, so it adds none as long as the settings match."""
    stored, out = results_file("studies.jsonl"), tmp_path / "rows.jsonl"
    shutil.copy(stored, out)
    assert main(["rules", "--out", str(out)]) == 0
    assert out.read_bytes() == stored.read_bytes()
    printed = capsys.readouterr().out
    assert all(method in printed for method in STUDIES["rules"].methods)


def test_modes_command_reproduces_the_stored_rows(tmp_path, capsys):
    stored, out = results_file("modes.jsonl"), tmp_path / "rows.jsonl"
    shutil.copy(stored, out)
    assert main(["modes", "--out", str(out)]) == 0
    assert out.read_bytes() == stored.read_bytes()
    assert len(capsys.readouterr().out.splitlines()) == len(stored.read_text().splitlines())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["modes", "--seed", "3"], "--seed must not be set here: each study has seeds of its own, got 3"),
        (["modes", "--data", "x"], "--data is for the single-node or two-node table, got 'x'"),
        (["schemes", "--scope", "tensor"], "--scope is for the single-node table, got 'tensor'"),
        (["schemes", "--seed", "3"], "--seed must not be set here: seeds are (100, 101, 102) and"),
        (["single-node", "--steps", "0"], "steps must be a whole number of at least 1, got 0"),
    ],
)
def test_invalid_options_are_reported(options, message, capsys):
    assert main(options) == 1
    assert f"error: {message}" in capsys.readouterr().err


def test_option_errors_list_all_supported_tables(capsys):
    assert main(["schemes", "--steps", "5"]) == 1
    assert "error: --steps is for the single-node or two-node table, got 5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["single-node", "--data", "/nowhere"], "no MNIST file /nowhere"),
        (["two-node", "--method", "all", "--steps", "5"], "steps must be a multiple of 2"),
        (["two-node", "--method", "both"], "masking, masking_per_tensor, dgc, dgc_without_factor_masking, got 'both'"),
    ],
)
def test_invalid_values_are_reported_before_training(options, message, capsys):
    assert main(options) == 1
    assert message in capsys.readouterr().err


def test_every_study_has_a_command():
    assert {*TABLES} == {"single-node", "two-node", "modes", *(name.replace(" ", "-") for name in STUDIES)}
