"""Write docs/library.md from the docstrings of the library's subpackages and modules.

python tools/write_library_page.py
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "library.md"
HEAD = """# The library, subpackage by subpackage

`make docs` generates this page from the docstrings. The text on each subpackage is that of its `__init__.py`: what it
contains, and which lesson uses it. *Public* lists the names that a subpackage exports, as in
`from dgc_lab.compression import DGCConfig`. [A test](../tests/house/test_house.py) checks which subpackage may import
which. [CONTRIBUTING.md](../CONTRIBUTING.md) explains how a gradient travels through the library, and where new code
belongs.
"""


def words_of(file: Path) -> list[str]:
    """Return the paragraphs of a file's docstring, as Markdown.

    Example:
        >>> words_of(Path(__file__))[0]
        "Write docs/library.md from the docstrings of the library's subpackages and modules."
    """
    words = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return [paragraph.replace("``", "`") for paragraph in words.split("\n\n")]


def table(files: list[Path]) -> str:
    """Return a table with a row for each file: its name with a link, and the first paragraph of its docstring."""
    lines = ["| file | contents |", "|---|---|"]
    for file in files:
        what = re.sub(r"\s+", " ", words_of(file)[0]).replace("|", r"\|")
        lines.append(f"| [{file.stem}](../{file.relative_to(ROOT).as_posix()}) | {what} |")
    return "\n".join(lines)


def section(package: Path) -> str:
    """Return the section on a subpackage: its docstring, its public names, its files."""
    public = getattr(importlib.import_module(f"dgc_lab.{package.name}"), "__all__", [])
    files = sorted(file for file in package.rglob("*.py") if file.name != "__init__.py")
    parts = [f"## {package.name}", *words_of(package / "__init__.py")]
    parts += ["Public: " + ", ".join(f"`{name}`" for name in sorted(public)) + "."] if public else []
    return "\n\n".join([*parts, table(files)])


def page() -> str:
    """Return the page: the subpackages in alphabetical order, then the modules at the root."""
    library = ROOT / "dgc_lab"
    packages = sorted(file.parent for file in library.glob("*/__init__.py"))
    files = sorted(file for file in library.glob("*.py") if file.name != "__init__.py")
    root = ["## At the root", *words_of(library / "__init__.py")[:1], table(files)]
    return "\n\n".join([HEAD.strip(), *map(section, packages), *root]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
