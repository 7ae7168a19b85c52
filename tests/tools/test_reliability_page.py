"""Every promise on docs/reliability.md has its test."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMISES = re.findall(
    r"\[(test_\w+)\]\(\.\./(tests/\w+/\w+\.py)\)", (ROOT / "docs" / "reliability.md").read_text("utf-8")
)


def test_the_page_lists_promises():
    assert len(PROMISES) > 20


@pytest.mark.parametrize(("name", "file"), PROMISES)
def test_the_test_of_a_promise_is_there(name, file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
