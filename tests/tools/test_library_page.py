"""docs/library.md is what the library says of itself now."""

import re
from pathlib import Path

from write_library_page import PAGE, ROOT, page


def test_the_page_is_made_from_the_rooms_words():
    assert PAGE.read_text(encoding="utf-8") == page(), "run make docs"


def test_every_room_and_every_file_is_on_it():
    text = page()
    rooms = {file.parent.name for file in (ROOT / "dgc_lab").glob("*/__init__.py")}
    assert set(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == rooms
    linked = {(PAGE.parent / target).resolve() for target in re.findall(r"\]\((\.\./dgc_lab/[^)]+)\)", text)}
    assert linked == {f for f in Path(ROOT / "dgc_lab").rglob("*.py") if f.name != "__init__.py"}
    assert "\n|---|---|\n| [break_even](../dgc_lab/compression/break_even.py) | " in text
