"""The published MNIST figures that the lessons put to the test, and the recipe that goes with them.

One worker, masking: the share of the gradient that is sent, test accuracy and test loss after 20 000 steps.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dgc_lab.sweep import read_rows, table

SINGLE_NODE_STEPS = 20_000
# ratio: (accuracy, loss)
SINGLE_NODE = {
    1.0: (0.9908, 0.0285),
    0.1: (0.9887, 0.0331),
    0.05: (0.9873, 0.0381),
    0.03: (0.9868, 0.0396),
    0.02: (0.9852, 0.0446),
    0.01: (0.9828, 0.0543),
    0.009: (0.9835, 0.0519),
    0.005: (0.9832, 0.0468),
    0.003: (0.9752, 0.0800),
    0.002: (0.9452, 0.1918),
    0.001: (0.4099, 2.2113),
    0.0: (0.2211, 2.2470),
}


def single_node_settings(steps: int = SINGLE_NODE_STEPS, scope: str = "first", seed: int = 0):
    """The published recipe: MNIST, momentum 0.9, learning rate 0.001, batch 100, the first tensor's threshold for all.

    Args:
        steps: updates per row; the published rows had 20 000.
        scope: whose threshold (`dgc_lab.compression.thresholds`); the published code's is ``"first"``.
        seed: integer for first weights, batches and dropout.
    """
    from dgc_lab.training import Settings

    return Settings(
        dataset="mnist",
        steps=steps,
        batch=100,
        learning_rate=0.001,
        momentum=0.9,
        rule="exact" if scope == "first" else "sampled",
        scope=scope,
        seed=seed,
    )


def beside_published(rows: list[dict]) -> pd.DataFrame:
    """The rows' table (`dgc_lab.sweep.table`) with the published accuracy and loss behind those on MNIST.

    A row on other data, or at a ratio that was not published, stays empty there.
    """
    frame = table(rows)
    # Where all rows are of one data set, the table has no column for it.
    datasets = frame["dataset"] if "dataset" in frame else [row["dataset"] for row in rows]
    figures = [
        SINGLE_NODE.get(ratio, (None, None)) if dataset == "mnist" else (None, None)
        for ratio, dataset in zip(frame["ratio"], datasets, strict=True)
    ]
    frame["published accuracy"] = [accuracy for accuracy, _ in figures]
    frame["published loss"] = [loss for _, loss in figures]
    return frame


def single_node_rows(scope: str = "first") -> list[dict]:
    """The 12 rows of the single-node table as they were made for this lab, from ``results/``.

    Args:
        scope: ``"first"``, the published code's threshold, or ``"tensor"``, each tensor its own.

    Raises:
        ValueError: no rows were made for that scope.
    """
    here = Path(__file__).parent
    name = f"single_node_{scope}.jsonl"
    # Beside the package in a clone, inside it where it was installed from a wheel.
    for folder in (here.parent / "results", here / "results"):
        if (folder / name).exists():
            return read_rows(folder / name, {"scope": scope})
    raise ValueError(f"scope must be 'first' or 'tensor', there is no results/{name} for {scope!r}")
