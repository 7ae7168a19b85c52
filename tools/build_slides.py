"""Build slides from the lessons: ``make slides``, and part of ``make site``.

``docs/slides/NN_name.toml`` selects the content for each lesson: sentences of its text, word for word, and cells
whose stored output is shown. A sentence or a cell that the lesson no longer has is an error. The first two slides are
the lesson's introduction and its objectives, the last one is its first question. Every slide has speaker notes.

reveal.js comes from the package sphinx-revealjs, so neither this program nor the slides need a network.
"""

from __future__ import annotations

import html
import importlib.util
import itertools
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import nbformat
from markdown_it import MarkdownIt

from dgc_lab.exercises.questions import questions_of

ROOT = Path(__file__).resolve().parent.parent
LESSONS, SELECTIONS = ROOT / "notebooks", ROOT / "docs" / "slides"
STYLE = ROOT / "docs" / "site" / "slides.css"
WIDTH, HEIGHT, LARGEST = 1150, 430, 32  # pixels: width and height of a table on a slide, font size
REVEAL_FILES = ("dist/reset.css", "dist/reveal.css", "dist/reveal.js", "plugin/notes/notes.js")
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="reveal/dist/reset.css">
<link rel="stylesheet" href="reveal/dist/reveal.css">
<link rel="stylesheet" href="slides.css">
</head>
<body>
<div class="reveal"><div class="slides">
{sections}
</div></div>
<script src="reveal/dist/reveal.js"></script>
<script src="reveal/plugin/notes/notes.js"></script>
<script>
Reveal.initialize({{
  width: 1280, height: 720, margin: 0, center: false, display: "flex", hash: true, slideNumber: "c/t", controls: false,
  transition: "none", pdfMaxPagesPerSlide: 1, plugins: [RevealNotes]
}});
</script>
</body>
</html>
"""
INDEX = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Slides of DGC Lab</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="slides.css">
</head>
<body class="index">
<main>
<h1>Slides of DGC Lab</h1>
<p>Ten slides for each lesson. Press <kbd>S</kbd> for the speaker notes, which have a question to ask on every slide,
<kbd>F</kbd> for full screen, and <kbd>Esc</kbd> for an overview. The slides are light or dark like your system. To
print them, open the printable version and print it in landscape.</p>
<ol start="0">
{lessons}
</ol>
</main>
</body>
</html>
"""


class SlidesError(ValueError):
    """A selection does not fit its lesson."""


class Lesson(NamedTuple):
    """A lesson's name, title, texts in one line, and code cells."""

    name: str
    title: str
    text: str
    cells: list


def read_lesson(name: str) -> Lesson:
    """Read a stored lesson."""
    notebook = nbformat.read(LESSONS / f"{name}.ipynb", as_version=4)
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    title = re.search(r"^# (.+)$", text, re.MULTILINE)[1]
    return Lesson(name, title, text, [cell for cell in notebook.cells if cell.cell_type == "code"])


def in_line(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


def as_html(sentence: str) -> str:
    """Render a sentence's Markdown, without its links."""
    return MarkdownIt().renderInline(re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", sentence))


def sentence_of(lesson: Lesson, sentence: str) -> str:
    """Return a sentence of the lesson as HTML; raise SlidesError if it is not in the lesson's text."""
    if sentence not in in_line(lesson.text):
        raise SlidesError(f"{lesson.name}: the lesson has no sentence {sentence!r}")
    return f"<p>{as_html(sentence)}</p>"


def output_of(lesson: Lesson, line: str) -> str:
    """Return the first picture of the cells with this line of code as HTML, or else their first table."""
    outputs = [output for cell in lesson.cells if line in cell.source for output in cell.outputs]
    shown = list(filter(None, map(picture_as_html, outputs))) or list(filter(None, map(table_as_html, outputs)))
    if not shown:
        raise SlidesError(f"{lesson.name}: no cell with the line {line!r} has a picture or a table")
    return shown[0]


def picture_as_html(output) -> str:
    """Return a stored picture as HTML, and an empty text if there is none."""
    picture = output.get("data", {}).get("image/png")
    if picture is None:
        return ""
    alt = html.escape(output.metadata["image/png"]["alt"])
    return f'<figure><img alt="{alt}" src="data:image/png;base64,{picture.strip()}"></figure>'


def table_as_html(output) -> str:
    """Return a stored table as HTML, as large as fits below three lines of text, and an empty text if there is none."""
    found = re.search(r"<table.*</table>", output.get("data", {}).get("text/html", ""), re.DOTALL)
    if not found:
        return ""
    table = re.sub(r" (border|class|id|style)=.[^>]*?(?=[ >])", "", found[0])
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table.split("</tr>")[:-1]]
    widths = [max(map(len, column)) + 2 for column in itertools.zip_longest(*rows, fillvalue="")]
    size = min(WIDTH / (0.52 * sum(widths)), HEIGHT / (1.75 * len(rows)), LARGEST)
    return f'<div class="table" style="font-size: {size:.0f}px">{table}</div>'


def section(title: str, content: str, notes: str, kind: str = "") -> str:
    """Return a slide."""
    heading = "h1" if kind == "title" else "h2"
    return (
        f'<section class="{kind}"><{heading}>{html.escape(title)}</{heading}>{content}'
        f'<aside class="notes">{notes}</aside></section>'
    )


def ask(question: str) -> str:
    """Return a speaker note with a question to the audience."""
    return f"<p><b>Ask:</b> {html.escape(question)}</p>"


def question_slide(lesson: Lesson) -> str:
    """Return the last slide: the lesson's first question, with the explanations in the notes."""
    question = questions_of(lesson.name)[0]
    answers = "".join(f"<li>{html.escape(answer.text)}</li>" for answer in question.answers)
    reasons = [("<b>Right.</b> " if answer.is_right else "") + html.escape(answer.why) for answer in question.answers]
    reasons = "".join(f"<li>{reason}</li>" for reason in reasons)
    content = f'<p>{html.escape(question.text)}</p><ol type="A">{answers}</ol>'
    notes = f'<p>Let everybody vote before you discuss the answers.</p><ol type="A">{reasons}</ol>'
    return section("Which answer is right?", content, notes, "words")


def slides_of(name: str) -> str:
    """Return the page with a lesson's slides."""
    lesson = read_lesson(name)
    chosen = tomllib.loads((SELECTIONS / f"{name}.toml").read_text(encoding="utf-8"))
    introduction = re.search(r"^# .+\n\n(.+?)( Afterwards you can)?$", lesson.text, re.MULTILINE)[1]
    objectives = re.search(r"^(?:.* )?Afterwards you can\n\n((?:- .+\n)+)", lesson.text, re.MULTILINE)[1]
    items = "".join(f"<li>{as_html(line[2:])}</li>" for line in objectives.splitlines())
    time = as_html(re.search(r"^\*\*Time:\*\*.+$", lesson.text, re.MULTILINE)[0])
    sections = [
        section(lesson.title, f"<p>{as_html(introduction)}</p>", ask(chosen["ask"]), "title"),
        section("Afterwards you can", f"<ul>{items}</ul>", f"<p>{time}</p>" + ask(chosen["ask_for_experience"])),
    ]
    for slide in chosen["slide"]:
        content = "".join(sentence_of(lesson, sentence) for sentence in slide["text"])
        content += output_of(lesson, slide["show"]) if "show" in slide else ""
        sections.append(section(slide["title"], content, ask(slide["ask"]), "" if "show" in slide else "words"))
    sections.append(question_slide(lesson))
    return PAGE.format(title=html.escape(f"{lesson.title}: slides"), sections="\n".join(sections))


def build(target: Path) -> list[Path]:
    """Write the slides of all lessons, their index, and the files of reveal.js to a folder; return the pages."""
    reveal = Path(importlib.util.find_spec("sphinx_revealjs").origin).parent / "_static" / "revealjs"
    for file in REVEAL_FILES:
        (target / "reveal" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(reveal / file, target / "reveal" / file)
    shutil.copy(STYLE, target / "slides.css")
    pages, lines = [], []
    for file in sorted(SELECTIONS.glob("*.toml")):
        page = target / f"{file.stem}.html"
        page.write_text(slides_of(file.stem), encoding="utf-8")
        pages.append(page)
        links = f'<a href="{page.name}">{html.escape(read_lesson(file.stem).title)}</a>'
        lines.append(f'<li>{links} (<a href="{page.name}?print-pdf">printable</a>)</li>')
    (target / "index.html").write_text(INDEX.format(lessons="\n".join(lines)), encoding="utf-8")
    return pages


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "slides"
    print(f"{len(build(folder))} lessons in {folder / 'index.html'}")
