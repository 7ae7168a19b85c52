"""docs/schemes.md is what the schemes say of themselves and what the stored rows are."""

from dgc_lab.comparison import scheme_rows
from dgc_lab.comparison.table import SCHEMES as TABLE
from dgc_lab.comparison.table import SEEDS
from dgc_lab.compression import SCHEMES
from write_schemes_page import PAGE, page


def test_the_page_is_made_from_the_schemes_words_and_rows():
    text = page()
    assert PAGE.read_text(encoding="utf-8") == text, "run make docs"
    assert all(f"`{name}(" in text for name in SCHEMES)


def test_the_rows_are_whole():
    for dataset, schemes in TABLE.items():
        made = {(row["scheme"], row["seed"]) for row in scheme_rows(dataset)}
        assert {(scheme, seed) for scheme in schemes for seed in SEEDS} <= made
