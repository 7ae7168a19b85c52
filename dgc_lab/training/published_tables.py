"""The published MNIST results that the lessons put to the test, and their settings.

Masking on one worker and on two: share of the gradient sent, test accuracy and test loss after 20 000 steps in total.
"""

from __future__ import annotations

import pandas as pd

from dgc_lab.common import check_choice, check_whole, results_file
from dgc_lab.training.sweeps import read_rows, table

#: Number of updates for each published row, summed over the workers.
PUBLISHED_STEPS = 20_000
#: Published test accuracy and test loss of masking on one worker, by ratio.
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
#: Published test accuracy and test loss of masking on two workers, by ratio.
TWO_NODE = {
    1.0: (0.9908, 0.0210),
    0.95: (0.9905, 0.0266),
    0.8: (0.9905, 0.0292),
    0.7: (0.9898, 0.0306),
    0.5: (0.9893, 0.0304),
    0.3: (0.9882, 0.0345),
    0.01: (0.9753, 0.0788),
    0.005: (0.9765, 0.0772),
    0.002: (0.9452, 0.1918),
    0.001: (0.2385, 2.2694),
    0.0: (0.1386, 2.2822),
}
METHODS = ("masking", "masking_per_tensor", "dgc", "dgc_without_factor_masking")


def single_node_settings(steps: int = PUBLISHED_STEPS, scope: str = "first", seed: int = 0):
    """Return the published settings; ``scope``, published as "first", is as in `dgc_lab.compression.thresholds`."""
    from dgc_lab.training.masking_trainer import MaskingConfig

    own = {"dataset": "mnist", "steps": steps, "batch": 100, "learning_rate": 0.001, "momentum": 0.9, "seed": seed}
    return MaskingConfig(**own, rule="exact" if scope == "first" else "sampled", scope=scope)


def two_node_settings(method: str, steps: int = PUBLISHED_STEPS, seed: int = 0):
    """Return the published settings for two workers: twice the learning rate, and half of ``steps`` each.

    ``"masking"`` is as published: the first tensor's threshold applies to all tensors, and the elements below it are
    dropped. ``"dgc"`` is the complete algorithm: a threshold per tensor, small tensors and vectors uncompressed, and
    the paper's warm-up, whose stages each take 4 % of the steps: four stages below ratio 0.004, three at 0.005 and
    0.01; one at 0.1, and none at 0.3. ``"dgc_without_factor_masking"`` is ``"dgc"`` without factor masking, and
    ``"masking_per_tensor"`` is ``"dgc"`` without accumulation. Raises ValueError if ``method`` is unknown or ``steps``
    is odd.
    """
    from dgc_lab.compression.config import MASKING
    from dgc_lab.training.distributed_trainer import DistributedConfig

    check_choice("method", method, METHODS)
    if steps % 2:
        raise ValueError(f"steps must be a multiple of 2, the number of workers, got {steps}")
    if method == "masking":
        switches = {"rule": "exact", "scope": "first", **MASKING}
    else:
        switches = {
            "warm_up": "paper",
            "warm_up_steps": max(1, steps // 50),
            "accumulate": method != "masking_per_tensor",
            "factor_masking": method != "dgc_without_factor_masking",
        }
    own = {"dataset": "mnist", "steps": steps // 2, "batch": 100, "learning_rate": 0.002, "momentum": 0.9, "seed": seed}
    return DistributedConfig(**own, evaluations=2, **switches)  # one takes as long as 30 steps; the other rank waits


def beside_published(rows: list[dict], published: dict = SINGLE_NODE) -> pd.DataFrame:
    """Return the table of ``rows``, with columns for published accuracy and loss if there are rows on MNIST."""
    frame = table(rows)
    if not any(row["dataset"] == "mnist" for row in rows):
        return frame
    # The table has no column for the data set if all rows have the same.
    on_mnist = frame["dataset"] == "mnist" if "dataset" in frame else [row["dataset"] == "mnist" for row in rows]
    for number, name in enumerate(("accuracy", "loss")):
        figures = {ratio: pair[number] for ratio, pair in published.items()}
        frame[f"published {name}"] = frame["ratio"].map(figures).where(on_mnist)
    return frame


def single_node_rows(scope: str = "first") -> list[dict]:
    """Return this lab's rows of the single-node table from ``results/``: 20 000 steps each.

    ``scope`` is ``"first"``, as in the published code, or ``"tensor"``, a threshold per tensor. Raises ValueError if
    it is neither.

    Example:
        >>> [row["ratio"] for row in single_node_rows("tensor")]
        [1.0, 0.1, 0.05, 0.03, 0.02, 0.01, 0.009, 0.005, 0.003, 0.002, 0.001, 0.0]
    """
    check_choice("scope", scope, ("first", "tensor"))
    return _stored_rows("single_node_first", f"single_node_{scope}", seed=0)


def two_node_rows(method: str, seed: int = 0) -> list[dict]:
    """Return this lab's rows of the two-node table from ``results/``: 10 000 steps on each rank.

    ``method`` is one of those of `two_node_settings`. Seeds 1 and 2 have one row each of ``"masking"`` and ``"dgc"``,
    and all other seeds none. Raises ValueError if ``method`` is unknown or ``seed`` is negative.

    Example:
        >>> [row["ratio"] for row in two_node_rows("masking")]
        [1.0, 0.95, 0.8, 0.7, 0.5, 0.3, 0.01, 0.005, 0.002, 0.001, 0.0]
    """
    check_choice("method", method, METHODS)
    check_whole("seed", seed, 0)
    dense = "two_node_dgc" if method.startswith("dgc") else "two_node_masking"
    return _stored_rows(dense, f"two_node_{method}", seed=seed)


def _stored_rows(dense: str, name: str, seed: int) -> list[dict]:
    """Return a file's rows of a seed; the row of ratio 1, where thresholds have no effect, comes from ``dense``."""
    rows = read_rows(results_file(f"{name}.jsonl"), {"seed": seed})
    return rows if dense == name else read_rows(results_file(f"{dense}.jsonl"), {"ratio": 1.0, "seed": seed}) + rows
