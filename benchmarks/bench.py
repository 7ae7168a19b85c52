"""Shared code of the benchmarks: interleaved timing, and a report with the machine's specification."""

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
    """Return the median seconds of each function. The functions take turns, so that load on the machine affects all.

    If a function returns a tensor, its time ends when the tensor has been computed.
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
    """Wait until a tensor has been computed."""
    if hasattr(result, "numpy"):
        result.numpy()


def machine() -> dict:
    """Return the specification of this machine."""
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
    """Print the rows as a table, and the goals with the results, and store both under ``benchmarks/results``.

    Args:
        name: name of the benchmark and of its file.
        rows: one dictionary per row of the table.
        goals: ``(result, goal)`` by description; the result should be at least the goal.
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
