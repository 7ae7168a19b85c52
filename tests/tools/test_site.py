"""The documentation site: links resolve, search finds every public name, and pages fit a phone.

The tests build the site with warnings as errors and open it in a browser if one is installed.
"""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import expect

from browser import ROOT, axe_complaints, opened_folder, screenshot

pytestmark = pytest.mark.nightly

LESSON = "notebooks/04_dgc_masking.html"
PAGES = (
    "index.html",
    LESSON,
    "docs/explorers.html",
    "docs/reference/compression.html",
    "docs/library.html",
    "notebooks/exercises/README.html",
)
PHONE = {"width": 390, "height": 844}
PACKAGES = {f.parent.name: import_module(f"dgc_lab.{f.parent.name}") for f in ROOT.glob("dgc_lab/*/__init__.py")}
NAMES = [(folder, name) for folder, package in PACKAGES.items() for name in getattr(package, "__all__", [])]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site from this checkout, offline and without warnings; return its folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-c", "docs", "--fail-on-warning", "--keep-going", "--quiet"]
    command += ["--doctree-dir", str(folder / "doctrees"), ".", str(folder / "html")]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site):
    """Parsed pages by path, except the source pages that Sphinx generates."""
    files = [file for file in site.rglob("*.html") if not {"_modules", "_static"} & {*file.parts}]
    return {file.relative_to(site).as_posix(): BeautifulSoup(file.read_text(), "html.parser") for file in files}


@pytest.fixture(scope="module")
def page(site):
    with opened_folder(site) as page:
        yield page


def test_home_page_links_all_lessons_and_references(pages):
    linked = {urlsplit(tag["href"]).path for tag in pages["index.html"].find_all("a", href=True)}
    for notebook in [*ROOT.glob("notebooks/0*.ipynb"), *ROOT.glob("notebooks/exercises/release/*/*.ipynb")]:
        assert notebook.relative_to(ROOT).with_suffix(".html").as_posix() in linked
    assert {f"docs/reference/{folder}.html" for folder, _ in NAMES} <= linked
    assert {"docs/clusters.html", "docs/explorers.html", "docs/keras.html", "docs/published_tables.html"} <= linked
    assert "slides/index.html" in linked


def test_links_resolve_and_nothing_external_is_loaded(site, pages):
    ids = {name: {tag["id"] for tag in page.find_all(id=True)} for name, page in pages.items()}
    wrong = []
    for name, page in pages.items():
        for tag in page.find_all(["a", "img", "script", "link"]):
            loaded = tag.name != "a"
            address = tag.get("src") or tag.get("href") or ""
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                wrong += [f"{name} loads {address[:80]}"] * (loaded and parts.scheme != "data")
                continue
            path = os.path.normpath(Path(name).parent / unquote(parts.path)) if parts.path else name
            if not (site / path).is_file():
                wrong.append(f"{name}: {address}")
            elif parts.fragment and path in ids and unquote(parts.fragment) not in ids[path]:
                wrong.append(f"{name}: no anchor {address}")
    assert wrong == []


def test_figures_have_alternative_text(pages):
    for lesson in ROOT.glob("notebooks/0*.ipynb"):
        pictures = pages[f"notebooks/{lesson.stem}.html"].find("article").find_all("img")
        assert pictures
        assert all(picture.get("alt") for picture in pictures), lesson.stem


def test_site_contains_no_solutions(site):
    """Searches for the longest line of every solution."""
    text = "".join(file.read_text(errors="ignore") for file in site.rglob("*.*") if file.suffix != ".js")
    for source in ROOT.glob("notebooks/exercises/source/*/*.ipynb"):
        cells = "\n".join(cell.source for cell in nbformat.read(source, as_version=4).cells)
        solutions = re.findall(r"### BEGIN SOLUTION\n(.+?)### END SOLUTION", cells, re.DOTALL)
        lines = {max(solution.splitlines(), key=len).strip() for solution in solutions}
        assert lines
        assert [line for line in lines if len(line) > 40 and BeautifulSoup(line, "html.parser").text in text] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_accessible(page, name, scheme):
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{page.home}/{name}")
    page.locator("article").wait_for()
    assert axe_complaints(page, of=["html"]) == []
    screenshot(page, f"site_{Path(name).stem}_{scheme}")


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_a_phone(page, name):
    before = page.viewport_size
    page.set_viewport_size(PHONE)
    try:
        page.goto(f"{page.home}/{name}")
        page.locator("article").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        screenshot(page, f"site_{Path(name).stem}_phone")
    finally:
        page.set_viewport_size(before)


def test_home_page_is_interactive_without_a_kernel(page):
    page.goto(page.home)
    slider, line = (
        page.get_by_label("Share of each gradient that is sent"),
        page.locator("#loss path[aria-label]").first,
    )
    line.wait_for()
    assert page.locator("#said-ratio").inner_text() == "0.1 %"
    drawn, said = line.get_attribute("d"), page.locator("#said-result").inner_text()
    slider.press("Home")
    expect(page.locator("#said-ratio")).to_have_text("100 %")
    expect(page.locator("#loss path[aria-label]").first).not_to_have_attribute("d", drawn)
    assert page.locator("#said-result").inner_text() != said
    rows = page.locator(".recorded-runs tbody tr")
    assert rows.count() == int(slider.get_attribute("max")) + 1 == 12


def test_search_finds_every_public_name(page):
    page.goto(f"{page.home}/search.html?q=DGCConfig")
    page.locator("#search-results li").first.wait_for()
    found = page.evaluate(
        """names => Object.fromEntries(names.map(name =>
            [name, Search._performSearch(...Search._parseQuery(name)).map(result => result[0])]))""",
        sorted({name for _, name in NAMES}),
    )
    assert [(folder, name) for folder, name in NAMES if f"docs/reference/{folder}" not in found[name]] == []


def test_printed_lessons_are_complete_without_navigation(page):
    page.goto(f"{page.home}/{LESSON}")
    page.emulate_media(media="print")
    try:
        expect(page.locator(".bd-sidebar-primary")).to_be_hidden()
        folded = page.locator("details.hide .highlight")
        assert folded.count()
        assert all(folded.nth(place).is_visible() for place in range(folded.count()))
    finally:
        page.emulate_media(media="screen")
