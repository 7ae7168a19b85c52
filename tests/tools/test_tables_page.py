"""docs/published_tables.md and the README's table match the rows in results/."""

from pathlib import Path

from write_tables_page import PAGE, page, summary


def test_page_matches_the_rows():
    assert PAGE.read_text(encoding="utf-8") == page(), "run make docs"


def test_readme_shows_the_rows():
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    assert all(line in readme for line in summary())
