"""Makes a static site of the lessons and the texts beside them, to read without running anything, and checks its links.

python tools/build_site.py [FOLDER]        the folder is ``site`` if none is given
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
from bs4 import BeautifulSoup
from nbconvert import HTMLExporter

ROOT = Path(__file__).resolve().parent.parent
MARK = ".made_by_build_site"  # in a folder that may be emptied
TEXTS = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md"]


def sources() -> list[Path]:
    """What becomes a page: the texts, and every lesson as it was stored, with its pictures and tables."""
    texts = [*map(ROOT.joinpath, TEXTS), *sorted((ROOT / "docs").glob("*.md"))]
    return [*texts, *sorted((ROOT / "notebooks").glob("*.ipynb"))]


def place(source: Path) -> Path:
    """Where a source's page stands in the site; a folder's README is its index."""
    path = source.relative_to(ROOT)
    return path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html")


def html_of(source: Path) -> str:
    """A page: the notebook, or the text as a notebook of one cell."""
    if source.suffix == ".ipynb":
        notebook, title = nbformat.read(source, as_version=4), source.stem
    else:
        cell = nbformat.v4.new_markdown_cell(source.read_text(encoding="utf-8"))
        notebook, title = nbformat.v4.new_notebook(cells=[cell]), source.relative_to(ROOT).as_posix()
    html, _ = HTMLExporter().from_notebook_node(notebook, {"metadata": {"name": title}})
    return html


def target_of(link: str, page: Path) -> tuple[Path, str] | None:
    """The file of the project that a link of a page leads to, and its anchor; None for links to elsewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = page if not parts.path else (page.parent / unquote(parts.path))
    return Path(os.path.normpath(path)), parts.fragment


def build(site: Path) -> list[str]:
    """Write the site; returns what is wrong with its links, one line each.

    Raises:
        ValueError: the folder holds something else than an earlier site.
    """
    if site.exists():
        if not site.is_dir() or (any(site.iterdir()) and not (site / MARK).exists()):
            raise ValueError(f"folder must be new, empty or an earlier site, got {site}, which holds something else")
        shutil.rmtree(site)
    site.mkdir(parents=True)
    (site / MARK).touch()
    pages = {source: BeautifulSoup(html_of(source), "html.parser") for source in sources()}
    wrong = []
    for source, soup in pages.items():
        for tag in soup.find_all(["a", "img"]):
            name = "href" if tag.name == "a" else "src"
            found = target_of(tag.get(name, "#"), source)
            if found is None or not tag.get(name):
                continue
            target, anchor = found
            if (target / "README.md") in pages:
                target /= "README.md"
            if target in pages:
                # GitHub writes anchors in lower case, nbconvert as the heading is.
                ids = {tag["id"].lower(): tag["id"] for tag in pages[target].find_all(id=True)}
                if anchor and unquote(anchor).lower() not in ids:
                    wrong.append(f"{source.relative_to(ROOT)}: no place {anchor!r} in {target.relative_to(ROOT)}")
                end = os.path.relpath(site / place(target), (site / place(source)).parent)
                tag[name] = f"{end}#{ids.get(unquote(anchor).lower(), anchor)}" if anchor else end
            elif target.is_file():
                copy = site / target.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(target, copy)
            elif not target.is_dir():
                wrong.append(f"{source.relative_to(ROOT)}: {tag[name]} leads nowhere")
    for source, soup in pages.items():
        file = site / place(source)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(soup), encoding="utf-8")
    return wrong


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site")
    try:
        problems = build(folder)
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(f"{len(sources())} pages in {folder}: open {folder / 'index.html'}")
    print("\n".join(problems) or "every link leads somewhere", file=sys.stderr if problems else sys.stdout)
    sys.exit(bool(problems))
