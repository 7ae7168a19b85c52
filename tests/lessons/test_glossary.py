"""Every term of the glossary links to the section that teaches it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"^- \*\*(.+?):\*\* (.+?\.) \((.+)\)$")
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)#([^)]+)\)")
ENTRIES = [ENTRY.match(line) for line in PAGE.splitlines() if line.startswith("- ")]
LINKS = sorted({link for entry in ENTRIES for link in LINK.findall(entry[3])})


def sections(path):
    """Return for each heading's anchor the number of its section, or None above the first one."""
    number, found = None, {}
    for level, title in re.findall(r"^(##+) (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE):
        if level == "##":
            number = re.match(r"\d+", title)
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found[slug] = number and int(number[0])
    return found


def test_glossary_is_sorted_and_defines_each_term_once():
    terms = [entry[1].lower() for entry in ENTRIES]
    assert len(terms) >= 60
    assert terms == sorted(set(terms))


def test_every_term_has_a_link():
    assert [entry[1] for entry in ENTRIES if not LINK.search(entry[3])] == []


@pytest.mark.parametrize(("words", "file", "anchor"), LINKS, ids=[" ".join(link[::2]) for link in LINKS])
def test_glossary_links_lead_to_the_named_section(words, file, anchor):
    path = (ROOT / "docs" / file).resolve()
    assert path.exists()
    if path.suffix == ".ipynb":
        path = path.parent / "text" / f"{path.stem}.md"
        lesson, section = map(int, re.fullmatch(r"lesson (\d+), section (\d+)", words).groups())
        assert path.name.startswith(f"{lesson:02d}")
        assert sections(path)[anchor] == section
    else:
        assert anchor in sections(path)


@pytest.mark.parametrize("page", ["README.md", "index.md", "notebooks/text/00_start_here.md"])
def test_glossary_is_linked_from_the_first_pages(page):
    assert "docs/glossary.md)" in (ROOT / page).read_text(encoding="utf-8")
