"""The README fits on one page, and its figure and numbers match the code."""

import re
from pathlib import Path

from dgc_lab.compression import SCHEMES
from draw_published import picture

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_is_short():
    assert len(README.splitlines()) < 130


def test_figure_has_the_generated_alt_text():
    assert f"![{picture().alt}](docs/published.png)" in README


def test_readme_counts_the_schemes():
    others = set(SCHEMES) - {"dgc", "dense"}  # dense does not compress
    assert re.search(r"beside (\d+) other compressors", README)[1] == str(len(others))
