"""Write benchmarks/README.md from the benchmarks' docstrings and stored results.

python benchmarks/write_page.py
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEAD = """# Benchmarks

Every claim about speed is a ratio of times measured side by side, in one run, on the machine named below the table.
Absolute times are those of that machine and say little about others. `make bench` repeats all benchmarks and updates
this page from `results/`; it takes half an hour, during which nothing else should run on the machine. For benchmarks
that train on MNIST, set `DGC_LAB_DATA` to `mnist.npz`. `make bench-gpu` repeats the GPU benchmarks.
"""


def number(value) -> str:
    """Format a number with four digits; keep text as it is; return an empty string for None and NaN.

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
    """Return a table in Markdown, with columns in the order in which they first appear in the rows."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns), *([number(row.get(name)) for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def section(script: Path) -> str:
    """Return the section on a benchmark: its docstring, and its results or a note that there are none yet."""
    name, parts = script.stem.removeprefix("bench_"), ast.get_docstring(ast.parse(script.read_text())).split("\n\n")
    # The command is a paragraph of its own.
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
    """Return the page."""
    return "\n\n".join([HEAD.strip(), *map(section, sorted(HERE.glob("bench_*.py")))]) + "\n"


if __name__ == "__main__":
    (HERE / "README.md").write_text(page())
