"""The README is one page, and its pictures and figures are those of the code."""

import re
from pathlib import Path

from dgc_lab.compression import SCHEMES
from draw_published import picture

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_one_page():
    assert len(README.splitlines()) < 130


def test_the_picture_of_the_tables_is_told_in_words():
    assert f"![{picture().alt}](docs/published.png)" in README


def test_it_counts_the_schemes():
    others = set(SCHEMES) - {"dgc", "dense"}  # dense sends whole gradients
    assert re.search(r"beside (\d+) other compressors", README)[1] == str(len(others))
