"""Makes docs/library.md from the library's own words: what each room says of itself, and each of its files.

python tools/write_library_page.py
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "library.md"
HEAD = """# The library, room by room

`ls dgc_lab` shows the rooms. Each says here, in the words of its own `__init__.py`, what lives in it and which lesson
it serves. *Public* are the names that a subpackage exports, as in `from dgc_lab.compression import DGCConfig`.
[A test](../tests/house/test_house.py) checks which subpackage imports which. [CONTRIBUTING.md](../CONTRIBUTING.md) says
how a gradient travels through the library, and where new code belongs. `make docs` writes this page.
"""


def words_of(file: Path) -> list[str]:
    """The paragraphs of a file's docstring, as Markdown.

    Example:
        >>> words_of(Path(__file__))[0]
        "Makes docs/library.md from the library's own words: what each room says of itself, and each of its files."
    """
    words = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return [paragraph.replace("``", "`") for paragraph in words.split("\n\n")]


def table(files: list[Path]) -> str:
    """A line for each file: its name with a link, and the first sentence that it says."""
    lines = ["| file | what |", "|---|---|"]
    for file in files:
        what = re.sub(r"\s+", " ", words_of(file)[0]).replace("|", r"\|")
        lines.append(f"| [{file.stem}](../{file.relative_to(ROOT).as_posix()}) | {what} |")
    return "\n".join(lines)


def section(room: Path) -> str:
    """A room: its words, its public names, its files."""
    public = getattr(importlib.import_module(f"dgc_lab.{room.name}"), "__all__", [])
    files = sorted(file for file in room.glob("*.py") if file.name != "__init__.py")
    parts = [f"## {room.name}", *words_of(room / "__init__.py")]
    parts += ["Public: " + ", ".join(f"`{name}`" for name in sorted(public)) + "."] if public else []
    return "\n\n".join([*parts, table(files)])


def page() -> str:
    """The whole page: the rooms by the alphabet, and what lies at the root."""
    library = ROOT / "dgc_lab"
    rooms = sorted(file.parent for file in library.glob("*/__init__.py"))
    files = sorted(file for file in library.glob("*.py") if file.name != "__init__.py")
    root = ["## At the root", *words_of(library / "__init__.py")[:1], table(files)]
    return "\n\n".join([HEAD.strip(), *map(section, rooms), *root]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
