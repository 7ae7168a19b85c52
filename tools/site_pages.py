"""Sphinx extension for the site, used by docs/conf.py.

It adds alternative texts to the lessons' pictures and folds their checks, renders formulas as MathML, and generates a
page with all public names for every subpackage of the library. The lessons' slides become part of the site.
"""

from __future__ import annotations

import base64
import functools
import importlib
import os
import re
import types
from pathlib import Path

import nbformat
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import build_slides
import explorers
import moving_picture
import step_pictures
from dgc_lab.ui.charts import image_tag

ROOT = Path(__file__).resolve().parent.parent
logger = logging.getLogger(__name__)
REFERENCE = ROOT / "docs" / "reference"
BADGE = re.compile(r"\[!\[([^\]]+)\]\([^)]+\)\]")  # a badge whose picture comes from another site
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
SOLUTION = re.compile(r"\[([^\]]+)\]\([^)]*source/[^)]+\)")  # links that students must not see
PAGE = """# dgc_lab.{subpackage}

```{{eval-rst}}
.. automodule:: dgc_lab.{subpackage}
   :members:
{constants}```
"""
CONSTANT = """
.. py:data:: dgc_lab.{subpackage}.{name}
   :value: {value}

   {words}
"""
INDEX = """# Every public name

| subpackage | contents | names |
|---|---|---|
{table}
"""


def read_lesson(text: str) -> nbformat.NotebookNode:
    """Return a lesson as the site shows it: badges as plain links, pictures with alternative texts, folded checks.

    A cell with ``jupyter.source_hidden`` only checks claims in the text. Its first line describes the check and stays
    visible.
    """
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = BADGE.sub(r"[\1]", cell.source)
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                picture = base64.b64decode(output.data["image/png"])
                output.data = {"text/html": image_tag(picture, output.metadata["image/png"]["alt"])}
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata.setdefault("tags", []).append("hide-input")
            said = cell.source.partition("\n")[0].removeprefix("# ")
            cell.metadata["mystnb"] = {"code_prompt_show": said, "code_prompt_hide": said}
    return notebook


def read_text(app, docname: str, source: list[str]) -> None:
    """Adapt a page's links: remove those to solutions, and point those to files that are not pages to GitHub."""
    file = app.env.doc2path(docname)
    if file.suffix != ".md":
        return
    source[0] = SOLUTION.sub(r"\1", source[0])

    def lead(link: re.Match) -> str:
        target = Path(os.path.normpath(file.parent / link[1]))
        if not target.exists():
            logger.warning("%s does not exist", link[1], location=docname)
        is_page = app.env.path2doc(target) in app.env.found_docs
        if is_page or target.suffix == ".png":
            return link[0]
        return f"](https://github.com/{copy_on_github()}/blob/main/{target.relative_to(ROOT).as_posix()})"

    source[0] = LINK.sub(lead, source[0])


@functools.cache
def copy_on_github() -> str:
    """Return ``OWNER/NAME`` of this copy, from the Colab badge of the first lesson."""
    lesson = (ROOT / "notebooks" / "text" / "00_start_here.md").read_text(encoding="utf-8")
    return re.search(r"colab\.research\.google\.com/github/([^/]+/[^/]+)/", lesson)[1]


def write_reference(app) -> None:
    """Write a page for each subpackage to docs/reference, which Sphinx fills from the docstrings, and an index page."""
    REFERENCE.mkdir(exist_ok=True)
    lines = []
    for file in sorted((ROOT / "dgc_lab").glob("*/__init__.py")):
        package = importlib.import_module(f"dgc_lab.{file.parent.name}")
        if names := sorted(getattr(package, "__all__", [])):
            subpackage, words = file.parent.name, package.__doc__.partition("\n")[0].replace("``", "`")
            page = PAGE.format(subpackage=subpackage, constants=constants(subpackage, package, names))
            (REFERENCE / f"{subpackage}.md").write_text(page, encoding="utf-8")
            links = ", ".join(f"[{name}](#dgc_lab.{subpackage}.{name})" for name in names)
            lines.append(f"| [{subpackage}]({subpackage}.md) | {words} | {links} |")
    (REFERENCE / "index.md").write_text(INDEX.format(table="\n".join(lines)), encoding="utf-8")


def constants(subpackage: str, package, names: list[str]) -> str:
    """Return entries for a subpackage's public constants, described by the ``#:`` comments at their definitions."""
    words = {}
    for file in (ROOT / "dgc_lab" / subpackage).glob("*.py"):
        said = ModuleAnalyzer.for_module(f"dgc_lab.{subpackage}.{file.stem}").find_attr_docs()
        words |= {name: " ".join(lines).strip() for (scope, name), lines in said.items() if not scope}
    parts = []
    for name in names:
        value = getattr(package, name)
        if not callable(value) and not isinstance(value, types.ModuleType):
            shown = ", ".join(map(repr, value)) if isinstance(value, dict) else repr(value)
            parts.append(CONSTANT.format(subpackage=subpackage, name=name, value=shown, words=words.get(name, "")))
    return "".join(parts)


class RecordedRuns(SphinxDirective):
    """Directive that inserts the interactive figure of recorded runs."""

    def run(self):
        return [nodes.raw("", moving_picture.picture(), format="html")]


class Explorer(SphinxDirective):
    """Directive that inserts an explorer: ``schemes``, ``cost``, or a series of `step_pictures`."""

    required_arguments = 1
    site = Path()  # where the site is built

    def run(self):
        [name] = self.arguments
        make = {"schemes": explorers.schemes, "cost": explorers.cost}.get(name)
        html = make() if make else step_pictures.explorer(name, self.site)
        return [nodes.raw("", html, format="html")]


def write_script(app, error) -> None:
    """Write Vega next to the site's other scripts."""
    if error is None:
        (Path(app.outdir) / "_static" / "vega.js").write_text(moving_picture.script(), encoding="utf-8")


def write_slides(app, error) -> None:
    """Build the lessons' slides into the site."""
    if error is None:
        build_slides.build(Path(app.outdir) / "slides")


def name_folded_cells(app, page: str, template: str, context: dict, doctree) -> None:
    """Let screen readers announce the visible line of a folded cell instead of Sphinx's generic label."""
    if "body" in context:
        context["body"] = context["body"].replace(' aria-label="Toggle hidden content"', "")


def formula(translator, node, block=False) -> None:
    """Render a formula as MathML, which browsers display and read aloud without a script."""
    translator.body.append(convert(node.astext(), display="block" if block else "inline"))
    raise nodes.SkipNode


def keep_bars(app, what, name, thing, options, lines: list[str]) -> None:
    """Escape bars in docstrings: they are those of |x|, not reStructuredText substitutions."""
    words = next((number for number, line in enumerate(lines) if ">>>" in line), len(lines))
    lines[:words] = [line.replace("|", r"\|") for line in lines[:words]]


def setup(app) -> dict:
    """Register the extension with Sphinx."""
    app.connect("autodoc-process-docstring", keep_bars)
    app.connect("builder-inited", write_reference)
    app.connect("source-read", read_text)
    app.connect("html-page-context", name_folded_cells)
    app.connect("build-finished", write_script)
    app.connect("build-finished", write_slides)
    app.add_directive("recorded-runs", RecordedRuns)
    Explorer.site = Path(app.outdir)
    app.add_directive("explorer", Explorer)
    app.add_html_math_renderer(
        "mathml", (formula, None), (lambda translator, node: formula(translator, node, block=True), None)
    )
    return {"parallel_read_safe": True}
