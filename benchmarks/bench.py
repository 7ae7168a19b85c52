"""What the benchmarks share: times taken side by side, and a report that says what machine it was."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
RESULTS = Path(__file__).resolve().parent / "results"


def side_by_side(functions: dict, rounds: int = 20) -> dict:
    """Median seconds of each function; they take turns, so that a slow moment of the machine meets them all.

    A function returns what must be finished when its time ends (a tensor is fetched).
    """
    for function in functions.values():
        for _ in range(2):
            finish(function())
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            finish(function())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def finish(result) -> None:
    """Wait for a tensor."""
    if hasattr(result, "numpy"):
        result.numpy()


def machine() -> dict:
    """What the figures were measured on."""
    import psutil
    import tensorflow as tf

    return {
        "cores": os.cpu_count(),
        "memory GiB": round(psutil.virtual_memory().total / 2**30, 1),
        "GPUs": len(tf.config.list_physical_devices("GPU")),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def report(name: str, rows: list[dict], goals: dict) -> None:
    """Print the rows as a table and the goals with what was reached, and keep both under ``benchmarks/results``.

    Args:
        name: of the benchmark; also the file's.
        rows: one dictionary per line of the table.
        goals: by what was asked for, ``(reached, goal)``; at least the goal is wanted.
    """
    import pandas as pd

    here = machine()
    print(f"\n{name}: " + ", ".join(f"{what} {value}" for what, value in here.items()))
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    for what, (reached, goal) in goals.items():
        print(f"{what}: {reached:.3g} (goal: at least {goal:g}) {'reached' if reached >= goal else 'MISSED'}")
    RESULTS.mkdir(exist_ok=True)
    whole = {"machine": here, "rows": rows, "goals": {what: list(pair) for what, pair in goals.items()}}
    (RESULTS / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n")
