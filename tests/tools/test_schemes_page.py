"""docs/schemes.md matches the schemes' docstrings and the stored rows."""

from dgc_lab.compression import SCHEMES
from write_schemes_page import PAGE, page


def test_page_matches_the_docstrings_and_rows():
    text = page()
    assert PAGE.read_text(encoding="utf-8") == text, "run make docs"
    assert all(f"`{name}(" in text for name in SCHEMES)
