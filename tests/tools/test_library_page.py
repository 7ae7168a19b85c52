"""docs/library.md matches the library's current docstrings."""

import re
from pathlib import Path

from write_library_page import PAGE, ROOT, page


def test_page_matches_the_docstrings():
    assert PAGE.read_text(encoding="utf-8") == page(), "run make docs"


def test_page_lists_every_subpackage_and_file():
    text = page()
    subpackages = {file.parent.name for file in (ROOT / "dgc_lab").glob("*/__init__.py")}
    assert set(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == subpackages
    linked = {(PAGE.parent / target).resolve() for target in re.findall(r"\]\((\.\./dgc_lab/[^)]+)\)", text)}
    assert linked == {f for f in Path(ROOT / "dgc_lab").rglob("*.py") if f.name != "__init__.py"}
    assert "\n|---|---|\n| [break_even](../dgc_lab/compression/break_even.py) | " in text
