"""Lesson 9's widget, driven through its controls, matches the arithmetic in table, picture and message."""

import math
import re

import numpy as np
import pytest
from PIL import Image

from dgc_lab.scaling import KNOWN_LINKS, KNOWN_MODELS, compare_methods
from dgc_lab.scaling.memory_widget import MemoryExplorer
from widgets import assert_rejected, picture_of, said, set_and_wait

FIRST = {"model": "Llama 3 8B", "ranks": 8, "precision": "bfloat16 with float32 copy", "optimizer": "Adam"}
FIRST |= {"link": "400G InfiniBand", "memory": 80.0}


@pytest.fixture(scope="module")
def explorer():
    explorer = MemoryExplorer()
    yield explorer
    assert explorer.wait(60)


@pytest.fixture(autouse=True)
def restore_values(explorer):
    yield
    explorer.controls["parameters"].value = round(KNOWN_MODELS["Llama 3 8B"] / 1e6, 3)
    set_and_wait(explorer, **FIRST)


def shown(explorer):
    """Parse the widget's HTML table: {method: {column: number}}."""
    names, *rows = re.findall(r"<tr.*?>(.*?)</tr>", explorer.table.value, re.DOTALL)
    names = re.findall(r"<th>(.*?)</th>", names)
    cells = [dict(zip(names, re.findall(r"<td>(.*?)</td>", row), strict=True)) for row in rows]
    return {row.pop("method"): {name: float(text.replace(",", "")) for name, text in row.items()} for row in cells}


def test_table_matches_the_arithmetic(explorer):
    set_and_wait(explorer, model="GPT-2 XL", ranks=64, precision="float32", optimizer="SGD with momentum")
    set_and_wait(explorer, link="10G Ethernet")
    link = KNOWN_LINKS["10G Ethernet"]
    expected = compare_methods(KNOWN_MODELS["GPT-2 XL"], 64, "float32", "SGD with momentum", link)
    table = shown(explorer)
    assert list(table) == expected.index.tolist()
    for method, row in expected.iterrows():
        for column, value in row.items():
            assert table[method][column] == pytest.approx(value, rel=1e-3), (method, column)
    assert f'alt="{explorer.picture.alt}"' in explorer.image.value


def test_message_names_the_methods_that_fit(explorer):
    message = said(explorer)
    assert message.startswith("Llama 3 8B with 8.03 billion parameters on 8 ranks of 80 GB fits with ")
    assert "fits with ZeRO 1 or ZeRO 2 or ZeRO 3, FSDP, before activations" in message
    set_and_wait(explorer, memory=20.0)
    assert "of 20 GB fits with ZeRO 3, FSDP, before activations" in said(explorer)
    assert "ZeRO 2: 30.1 GB, does not fit" in explorer.picture.alt
    set_and_wait(explorer, model="Llama 3 70B")
    assert "on 8 ranks of 20 GB fits with no method" in said(explorer)


def test_a_model_of_ones_own_is_computed_from_its_parameters(explorer):
    set_and_wait(explorer, parameters=7500.0, ranks=64)
    assert said(explorer).startswith("A model of your own with 7.5 billion parameters on 64 ranks")
    assert shown(explorer)["ZeRO 1"]["GB per rank"] == pytest.approx(31.4, abs=0.02)
    set_and_wait(explorer, model="GPT-2 small")
    assert explorer.controls["parameters"].value == 124.44
    assert said(explorer).startswith("GPT-2 small with 0.1244 billion parameters")


def test_every_control_changes_the_figure(explorer):
    moves = {"model": "Llama 2 7B", "parameters": 500.0, "ranks": 2, "precision": "float32", "optimizer": "SGD"}
    moves |= {"link": "1G Ethernet", "memory": 16.0}
    assert set(moves) == set(explorer.controls)
    for name, value in moves.items():
        before = image(explorer)
        set_and_wait(explorer, **{name: value})
        assert np.any(image(explorer) != before), name
        assert 'role="status"' in explorer.message.value


def image(explorer):
    """Return the figure at a fixed size."""
    return np.asarray(Image.fromarray(picture_of(explorer)).resize((900, 260)))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("parameters", 0.0, "parameters must be from 0.000001 to 1e.09 millions, got 0"),
        ("parameters", math.nan, "parameters must be from .* got nan"),
        ("parameters", 1e30, "parameters must be from .* got 1e.30"),
        ("memory", -1.0, "memory must be above 0 GB, got -1"),
        ("memory", math.inf, "memory must be above 0 GB, got inf"),
    ],
)
def test_invalid_values_are_reported_and_keep_the_figure(explorer, name, value, message):
    assert_rejected(explorer, name, value, message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranks": 3}, r"ranks must be .*1, 2, 4.*, got 3"),
        ({"model": "GPT-5"}, r"model must be .*GPT-2 small.*, got 'GPT-5'"),
        ({"speed": 1}, r"settings must be among model, parameters, .*, got 'speed'"),
    ],
)
def test_invalid_initial_values_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        MemoryExplorer(**settings)


def test_every_control_has_a_label(explorer):
    labels = [control.description for control in explorer.controls.values()]
    assert all(labels)
    assert len(set(labels)) == len(labels)
