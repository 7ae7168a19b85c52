"""The static site: a page for each lesson and text, pictures with words, and links that lead somewhere."""

import importlib.util
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def builder():
    specification = importlib.util.spec_from_file_location("build_site", ROOT / "tools" / "build_site.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_every_lesson_is_a_page_and_every_link_leads_somewhere(builder, tmp_path):
    assert builder.build(tmp_path / "site") == []
    index = BeautifulSoup((tmp_path / "site" / "index.html").read_text(), "html.parser")
    linked = {tag["href"] for tag in index.find_all("a", href=True)}
    for lesson in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"notebooks/{lesson.stem}.html" in linked
        page = BeautifulSoup((tmp_path / "site" / "notebooks" / f"{lesson.stem}.html").read_text(), "html.parser")
        pictures = page.find_all("img")
        assert pictures
        assert all(picture.get("alt") for picture in pictures), lesson.stem


def test_links_that_lead_nowhere_are_told(builder, tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("# Title\n[a](gone.md) [b](#title) [c](#elsewhere) [d](https://example.org/x)")
    monkeypatch.setattr(builder, "ROOT", tmp_path)
    monkeypatch.setattr(builder, "sources", lambda: [tmp_path / "README.md"])
    wrong = builder.build(tmp_path / "site")
    assert wrong == ["README.md: gone.md leads nowhere", "README.md: no place 'elsewhere' in README.md"]


def test_a_folder_with_something_else_in_it_is_left_alone(builder, tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("# Title")
    monkeypatch.setattr(builder, "ROOT", tmp_path)
    monkeypatch.setattr(builder, "sources", lambda: [tmp_path / "README.md"])
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "mine.html").write_text("mine")
    for folder in ("pages", "", "README.md"):
        with pytest.raises(ValueError, match="folder must be new, empty or an earlier site"):
            builder.build(tmp_path / folder)
    assert (tmp_path / "pages" / "mine.html").read_text() == "mine"
    assert builder.build(tmp_path / "site") == builder.build(tmp_path / "site") == []
