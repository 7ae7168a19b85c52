"""Makes docs/reliability.md: what the lab promises, the test that holds each promise, and what was measured.

python tools/write_reliability_page.py
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pandas as pd

import soak

ROOT = Path(__file__).resolve().parent.parent
PAGE, PROMISES = ROOT / "docs" / "reliability.md", ROOT / "tools" / "promises.csv"
HEAD = """# What you can rely on

Each promise here has a test that breaks when the promise does; the last column runs it among its neighbours. Where many
hours or very many inputs were tried, the table of them stands below. This page is made by `make docs` from
[the list of promises](../tools/promises.csv) and from the rows in `results/`.
"""
SECTIONS = {
    "faults": (
        "When something breaks",
        "Processes that are killed or stopped, a full disk, a garbled file, a lost link, a restarted kernel.",
    ),
    "hours": ("After hours", "A class works all day in one kernel, and nobody restarts it."),
    "inputs": (
        "When the input is wrong",
        "An error names the argument, the value and what is allowed, and comes first.",
    ),
    "who gets in": (
        "Who gets in",
        "Another user of the machine, and a network beside it, try all ports, sockets and files while everything runs. "
        "[SECURITY.md](../SECURITY.md) says what listens where.",
    ),
    "determinism": (
        "The same seed, the same bits",
        "On one machine's processor, with one number of threads. A GPU adds in any order: the last bits of another run "
        "differ there. Another number of threads, another processor or another "
        "TensorFlow may round otherwise. Asynchronous training on real parameter servers (the modes asynchronous, "
        "bounded staleness and backup workers) differs from run to run: the order of the gradients is that of real "
        "time. Its records say which order it was. Times differ always.",
    ),
    "fence": ("What is handed in", "Grading runs code of others behind a fence."),
    "tests": ("The tests themselves", "How much of the library they run, and whether they notice a fault in it."),
}
RESULTS = ROOT / "results"


def promises() -> pd.DataFrame:
    """Every promise: what it is about, the test that holds it, and the command that runs the test."""
    return pd.read_csv(PROMISES)


def markdown(frame: pd.DataFrame) -> str:
    """A table as Markdown: texts at the left, numbers at the right."""
    numbers = [pd.api.types.is_numeric_dtype(frame[name]) for name in frame]
    lines = ["| " + " | ".join(map(str, frame)) + " |", "|" + "".join("---:|" if n else "---|" for n in numbers)]
    for row in frame.itertuples(index=False):
        cells = (f"{v:,.4g}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else str(v) for v in row)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)


def held(about: str) -> str:
    """The promises of a section, each with its test."""
    lines = ["| promise | test | run it |", "|---|---|---|"]
    for row in promises()[lambda every: every["about"] == about].itertuples(index=False):
        file, _, name = row.test.partition("::")
        lines.append(f"| {row.promise} | [{name}](../{file}) | `{row.command}` |")
    return "\n".join(lines)


def hours() -> list[str]:
    """The soak's table and picture."""
    rows = soak.read()
    last = rows[-1]
    return [
        f"{last['round']} rounds in {last['hours']:.1f} hours: sweeps, ranks, parameter servers, widgets, one of them "
        "in a browser, a graded hand-in. *MB* is memory that a process shares with nobody; *more each hour* is a "
        "line through these hours alone. Again: `make soak HOURS=2`. "
        "For each page that is opened, JupyterLab's kernel keeps a thread and seven descriptors: a subshell that "
        "JupyterLab asks for and does not give back. And whenever a cell is run that has TensorFlow trace a function, "
        "TensorFlow keeps that cell's code and half a megabyte with it; sweeps run in a thread here, as widgets' do. "
        "Neither is the lab's.",
        f"![{soak.picture(rows).alt}](soak.png)",
        markdown(soak.table(rows)),
    ]


def measured(module: str, function: str, words: str) -> list[str]:
    """What another tool has measured, as its function says it: a table as it is, or as a frame."""
    table = getattr(importlib.import_module(module), function)()
    return [words, table if isinstance(table, str) else markdown(table)]


COVERAGE = (
    "Lines and branches that were run, in the processes of ranks, kernels and grading too; what runs behind the fence "
    "alone, or as AutoGraph has rewritten it, counts as not run. Again: `make coverage`."
)
MUTANTS = (
    "Small faults inserted into `dgc_lab/compression`, one at a time (a sample of cosmic-ray's): *killed* if a test "
    "failed, *equivalent* if the fault changes nothing. Again: `make mutants`."
)
FULL_RUNS = (
    "All tests, run after run, each in a fresh clone with an environment of its own; the cause of a failure is mended, "
    "and the count begins again. Left out are 28 examples in docstrings that only show a call, the test of a hub where "
    "`make hub` was not run, and that of real MNIST where its file is not beside the clone. "
    "Again: `make full-runs RUNS=10`."
)
VERSIONS = (
    "The quick tests with the oldest and the newest version allowed of every dependency. Again: `make test-versions`."
)
MEASURED = {  # by section: files of results, and what is shown of each
    "faults": {
        "faults.jsonl": lambda: measured("faults.table", "by_kind", "Faults at random moments. Again: `make faults`."),
    },
    "hours": {"soak.jsonl": hours},
    "inputs": {
        "fuzz.jsonl": lambda: measured("fuzz", "table", "Random and mutated inputs of decoders. Again: `make fuzz`."),
    },
    "tests": {
        "full_runs.jsonl": lambda: measured("full_runs", "full_runs_table", FULL_RUNS),
        "coverage.json": lambda: measured("measure_coverage", "coverage_table", COVERAGE),
        "mutants.json": lambda: measured("mutants", "mutants_table", MUTANTS),
        "versions.json": lambda: measured("versions", "versions_table", VERSIONS),
    },
}


def section(about: str) -> str:
    """A heading, its promises, and what was measured, where that is there."""
    title, words = SECTIONS[about]
    found = [shown for name, shown in MEASURED.get(about, {}).items() if (RESULTS / name).exists()]
    return "\n\n".join([f"## {title}", words, held(about), *(part for shown in found for part in shown())])


def page() -> str:
    """The whole page."""
    held_here = set(promises()["about"])  # the students' copy has no tests of the fence
    return "\n\n".join([HEAD.strip(), *(section(about) for about in SECTIONS if about in held_here)]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
