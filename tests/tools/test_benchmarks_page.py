"""benchmarks/README.md shows the stored results, and every benchmark documents its command."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest
import tensorflow as tf

from dgc_lab.workloads.data import load

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("bench_*.py"))


@pytest.fixture(scope="module")
def maker():
    specification = importlib.util.spec_from_file_location("write_page", BENCHMARKS / "write_page.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_page_matches_the_results(maker):
    assert (BENCHMARKS / "README.md").read_text() == maker.page(), "run python benchmarks/write_page.py"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_benchmark_has_a_command_and_results(script):
    paragraphs = ast.get_docstring(ast.parse(script.read_text())).split("\n\n")
    assert len([text for text in paragraphs if text.endswith(f"python benchmarks/{script.name}")]) == 1
    assert (BENCHMARKS / "results" / f"{script.stem.removeprefix('bench_')}.json").exists()


@pytest.mark.nightly
def test_gpu_benchmark_compares_devices_or_needs_a_gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    bench_gpu = importlib.import_module("bench_gpu")
    monkeypatch.setattr(bench_gpu, "SWEEP_STEPS", 2)
    models = {"two tensors": [(20, 30), (40_000,)]}
    rows = [row for group in bench_gpu.measure("/CPU:0", (10_000,), models, load("digits")) for row in group]
    assert {row["part"] for row in rows} == {"selection", "step", "sweep"}
    assert all(row["CPU"] > 0 for row in rows)
    assert [row["what"] for row in rows if row["GPU"] is None] == ["step, native"]
    if not tf.config.list_physical_devices("GPU"):
        with pytest.raises(SystemExit, match="TensorFlow sees no GPU here: nothing was measured"):
            bench_gpu.main()


def test_numbers_and_tables_are_formatted(maker):
    shown = [maker.number(value) for value in (0.123456, 1234567, 12.0, None, float("nan"), "dense", True)]
    assert shown == ["0.1235", "1,234,567", "12", "", "", "dense", "yes"]
    assert maker.table([{"a": 1}, {"b": 2.5}]) == "| a | b |\n| --- | --- |\n| 1 |  |\n|  | 2.5 |"


def test_readme_states_the_memory_use_of_each_lesson():
    readme = (ROOT / "README.md").read_text()
    rows = json.loads((BENCHMARKS / "results" / "memory.json").read_text())["rows"]
    assert [row["lesson"] for row in rows] == sorted(file.stem for file in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
    for row in rows:
        assert re.search(rf"\(notebooks/{row['lesson']}\.ipynb\) \| \d+ min \| {row['peak GB']:.1f} GB \|", readme)
