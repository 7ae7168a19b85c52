"""docs/reliability.md is what the list of promises and the stored rows say, and every test that it names is there."""

import ast
from pathlib import Path

import pandas as pd
import pytest

import write_reliability_page
from write_reliability_page import PAGE, ROOT, SECTIONS, markdown, page, promises


def test_the_page_is_made_from_the_promises_and_rows():
    assert PAGE.read_text(encoding="utf-8") == page(), "run make docs"


HERE = [about for about in SECTIONS if about != "fence" or (ROOT / "tests" / "marking").exists()]  # not for students


@pytest.mark.parametrize("about", HERE)
def test_every_section_has_promises_and_each_its_test(about):
    rows = promises()[lambda every: every["about"] == about]
    assert len(rows)
    for row in rows.itertuples():
        file, _, name = row.test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in found, row.test
        marks = {ast.unparse(decorator) for decorator in found[name].decorator_list}
        target = "test-long" if "pytest.mark.long" in marks else "test"
        assert row.command == f"make {target} ROOM={Path(file).parts[1]}", "the command runs it"


def test_no_promise_is_without_a_section_and_none_is_there_twice():
    every = promises()
    assert set(every["about"]) == set(HERE)
    assert not every["promise"].duplicated().any()
    assert not every.isna().any(axis=None)


def test_what_was_not_measured_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(write_reliability_page, "RESULTS", tmp_path)
    assert "Again:" not in page()
    assert page().count("\n## ") == len(HERE)


def test_a_table_has_its_numbers_at_the_right():
    frame = pd.DataFrame({"kind": ["kill | stop"], "times": [1200], "share": [0.123456]})
    assert markdown(frame) == "| kind | times | share |\n|---|---:|---:|\n| kill \\| stop | 1,200 | 0.1235 |"
