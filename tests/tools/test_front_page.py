"""The README fits on one page, and its figure and numbers match the code."""

import re
from pathlib import Path

from PIL import Image

from dgc_lab.compression import SCHEMES
from draw_published import picture

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_figure_has_the_generated_alt_text():
    assert f"![{picture().alt}](docs/published.png)" in README


def test_readme_counts_the_schemes():
    others = set(SCHEMES) - {"dgc", "dense"}  # dense does not compress
    assert re.search(r"next to (\d+) other compressors", README)[1] == str(len(others))


def test_film_of_the_widget_is_short_and_ends():
    [(still, film, alt)] = re.findall(r'<source .*srcset="(.*)"><img src="(.*)" alt="(.*)">', README)
    assert len(alt) > 100
    assert (ROOT / film).stat().st_size <= 1_000_000
    with Image.open(ROOT / film) as frames, Image.open(ROOT / still) as last:
        assert frames.size == last.size, "the still picture takes the film's place"
        assert frames.info["loop"] == 1, "plays twice"
        milliseconds = 0
        for number in range(frames.n_frames):
            frames.seek(number)
            milliseconds += frames.info["duration"]
    assert 4_000 < milliseconds <= 12_000
