"""What the site has beside the texts that are there: an extension for Sphinx, used by docs/conf.py.

Lessons get words for their pictures and folded checks, formulas become MathML, and every room of the library a page
with all its public names.
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

import moving_picture
from dgc_lab.ui.charts import image_tag

ROOT = Path(__file__).resolve().parent.parent
logger = logging.getLogger(__name__)
REFERENCE = ROOT / "docs" / "reference"
BADGE = re.compile(r"\[!\[([^\]]+)\]\([^)]+\)\]")  # a button whose picture another site would send
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
SOLUTION = re.compile(r"\[([^\]]+)\]\([^)]*source/[^)]+\)")  # which students are not to read
ROOM = """# dgc_lab.{room}

```{{eval-rst}}
.. automodule:: dgc_lab.{room}
   :members:
{constants}```
"""
CONSTANT = """
.. py:data:: dgc_lab.{room}.{name}
   :value: {value}

   {words}
"""
ALL_ROOMS = """# Every public name

| room | what lives there | names |
|---|---|---|
{table}
"""


def read_lesson(text: str) -> nbformat.NotebookNode:
    """A notebook as the site shows it: buttons as plain links, pictures with their words, checks folded.

    A cell with ``jupyter.source_hidden`` only checks what the text says; its first line says what, and stays in sight.
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
    """A text as the site shows it: no way to the exercises' solutions, and files that are no pages are on GitHub."""
    file = app.env.doc2path(docname)
    if file.suffix != ".md":
        return
    source[0] = SOLUTION.sub(r"\1", source[0])

    def lead(link: re.Match) -> str:
        target = Path(os.path.normpath(file.parent / link[1]))
        if not target.exists():
            logger.warning("%s leads nowhere", link[1], location=docname)
        is_page = app.env.path2doc(target) in app.env.found_docs
        if is_page or target.suffix == ".png":
            return link[0]
        return f"](https://github.com/{copy_on_github()}/blob/main/{target.relative_to(ROOT).as_posix()})"

    source[0] = LINK.sub(lead, source[0])


@functools.cache
def copy_on_github() -> str:
    """``OWNER/NAME`` of this copy, as its first lesson's button for Colab has it."""
    lesson = (ROOT / "notebooks" / "text" / "00_start_here.md").read_text(encoding="utf-8")
    return re.search(r"colab\.research\.google\.com/github/([^/]+/[^/]+)/", lesson)[1]


def write_reference(app) -> None:
    """A page for each room in docs/reference, whose names Sphinx takes from the docstrings, and one that lists them."""
    REFERENCE.mkdir(exist_ok=True)
    lines = []
    for file in sorted((ROOT / "dgc_lab").glob("*/__init__.py")):
        package = importlib.import_module(f"dgc_lab.{file.parent.name}")
        if names := sorted(getattr(package, "__all__", [])):
            room, words = file.parent.name, package.__doc__.partition("\n")[0].replace("``", "`")
            page = ROOM.format(room=room, constants=constants(room, package, names))
            (REFERENCE / f"{room}.md").write_text(page, encoding="utf-8")
            links = ", ".join(f"[{name}](#dgc_lab.{room}.{name})" for name in names)
            lines.append(f"| [{room}]({room}.md) | {words} | {links} |")
    (REFERENCE / "index.md").write_text(ALL_ROOMS.format(table="\n".join(lines)), encoding="utf-8")


def constants(room: str, package, names: list[str]) -> str:
    """What a room hands on beside functions and classes; the words are the ``#:`` comment where it is defined."""
    words = {}
    for file in (ROOT / "dgc_lab" / room).glob("*.py"):
        said = ModuleAnalyzer.for_module(f"dgc_lab.{room}.{file.stem}").find_attr_docs()
        words |= {name: " ".join(lines).strip() for (scope, name), lines in said.items() if not scope}
    parts = []
    for name in names:
        value = getattr(package, name)
        if not callable(value) and not isinstance(value, types.ModuleType):
            shown = ", ".join(map(repr, value)) if isinstance(value, dict) else repr(value)
            parts.append(CONSTANT.format(room=room, name=name, value=shown, words=words.get(name, "")))
    return "".join(parts)


class RecordedRuns(SphinxDirective):
    """The moving picture, where a page says so."""

    def run(self):
        return [nodes.raw("", moving_picture.picture(), format="html")]


def write_script(app, error) -> None:
    """Vega beside the site's other scripts."""
    if error is None:
        (Path(app.outdir) / "_static" / "vega.js").write_text(moving_picture.script(), encoding="utf-8")


def name_folded_cells(app, page: str, template: str, context: dict, doctree) -> None:
    """What a screen reader says of a folded cell is the line that is in sight."""
    if "body" in context:
        context["body"] = context["body"].replace(' aria-label="Toggle hidden content"', "")


def formula(translator, node, block=False) -> None:
    """A formula as MathML, which browsers show and read aloud without a script."""
    translator.body.append(convert(node.astext(), display="block" if block else "inline"))
    raise nodes.SkipNode


def keep_bars(app, what, name, thing, options, lines: list[str]) -> None:
    """A bar in a docstring's words is that of |x|, and names no text to be put in its place."""
    words = next((number for number, line in enumerate(lines) if ">>>" in line), len(lines))
    lines[:words] = [line.replace("|", r"\|") for line in lines[:words]]


def setup(app) -> dict:
    """Tell Sphinx of all this."""
    app.connect("autodoc-process-docstring", keep_bars)
    app.connect("builder-inited", write_reference)
    app.connect("source-read", read_text)
    app.connect("html-page-context", name_folded_cells)
    app.connect("build-finished", write_script)
    app.add_directive("recorded-runs", RecordedRuns)
    app.add_html_math_renderer(
        "mathml", (formula, None), (lambda translator, node: formula(translator, node, block=True), None)
    )
    return {"parallel_read_safe": True}
