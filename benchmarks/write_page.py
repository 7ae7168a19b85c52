"""Makes benchmarks/README.md from the benchmarks' own words and the results that they kept.

python benchmarks/write_page.py
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEAD = """# Benchmarks

Every claim about speed is a ratio of times that were taken side by side, in one run, on the machine named with it.
`make bench` repeats them all and writes this page anew from `results/`; it takes half an hour and wants the machine for
itself. Where a figure is a time, it is that machine's and says little about another one. Set `DGC_LAB_DATA` to
`mnist.npz` for those that train on MNIST. `make bench-gpu` repeats what a GPU can do.
"""


def number(value) -> str:
    """A figure with four digits, a word as it is, nothing for nothing.

    Example:
        >>> number(0.123456), number(1234567), number(None), number("dense"), number(True)
        ('0.1235', '1,234,567', '', 'dense', 'yes')
    """
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: list[dict]) -> str:
    """Rows as a table in Markdown; columns in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns), *([number(row.get(name)) for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def section(script: Path) -> str:
    """What a benchmark says of itself, and what it found; a note where it has not run yet."""
    name, parts = script.stem.removeprefix("bench_"), ast.get_docstring(ast.parse(script.read_text())).split("\n\n")
    # One paragraph is the command.
    parts = [f"```\n{part}\n```" if part.endswith(f"python benchmarks/{script.name}") else part for part in parts]
    parts = [f"## {name}", *(part.replace("``", "`") if "```" not in part else part for part in parts)]
    file = HERE / "results" / f"{name}.json"
    if not file.exists():
        return "\n\n".join([*parts, "Not measured yet."])
    found = json.loads(file.read_text())
    goals = [
        {"goal": what, "reached": reached, "at least": goal, "": "reached" if reached >= goal else "missed"}
        for what, (reached, goal) in found["goals"].items()
    ]
    machine = ", ".join(f"{what} {value}" for what, value in found["machine"].items())
    return "\n\n".join([*parts, *([table(goals)] if goals else []), table(found["rows"]), f"Measured on: {machine}."])


def page() -> str:
    """The whole page."""
    return "\n\n".join([HEAD.strip(), *map(section, sorted(HERE.glob("bench_*.py")))]) + "\n"


if __name__ == "__main__":
    (HERE / "README.md").write_text(page())
