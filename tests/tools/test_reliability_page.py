"""Every guarantee on docs/reliability.md has a test."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUARANTEES = re.findall(
    r"\[(test_\w+)\]\(\.\./(tests/\w+/\w+\.py)\)", (ROOT / "docs" / "reliability.md").read_text("utf-8")
)


def test_page_lists_guarantees():
    assert len(GUARANTEES) > 20


@pytest.mark.parametrize(("name", "file"), GUARANTEES)
def test_linked_tests_exist(name, file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
