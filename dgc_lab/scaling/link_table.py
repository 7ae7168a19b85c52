"""Steps of two ranks over slow and fast links as they were measured for this lab, and the cost model fitted to them.

``benchmarks/bench_link.py`` makes the rows again. What a link's figures come to for other numbers of workers, other
models and other bandwidths is `dgc_lab.scaling.cost_model`'s business.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pandas as pd

from dgc_lab.scaling.calibration import Fit, Measured, fit
from dgc_lab.training.published_tables import results_file

RANKS = 2
NO_EXCHANGE, FITTED = "no exchange", ("dense", "masking", "DGC")


def link_rows() -> list[dict]:
    """The measured rows, from ``results/link.jsonl``: one for each link and way to send the gradients.

    A row's ``bandwidth`` is in bytes a second, None where nothing limited the link; ``ms`` is the median of its
    ``steps``. ``selection_ms`` is what of it goes to accumulating, selecting, packing and unpacking: the same step on
    the same data without the network, less a step that exchanges nothing. ``wire_bytes`` is what a rank sent over the
    link in a step, by the link's own counter, with Horovod's control traffic and all headers; ``handed_bytes`` what
    it handed to the collective.

    Example:
        >>> sorted({row["link"] for row in link_rows()})
        ['1 Gbit/s', '10 Mbit/s', '100 Mbit/s', 'unlimited']
    """
    return [json.loads(line) for line in results_file("link.jsonl").read_text(encoding="utf-8").splitlines()]


def measured_links(rows: Sequence[dict] | None = None) -> pd.DataFrame:
    """The rows as a table, the slowest link first, with how many times as fast as dense each step is.

    Args:
        rows: as `link_rows` gives them; those if None.

    Returns:
        One line a row: link, method, ratio, how values and places travel, ms a step, times as fast as dense over the
        same link, kB a step on the link, and times fewer bytes there than dense.

    Example:
        >>> table = measured_links()
        >>> slow = table[(table["link"] == "10 Mbit/s") & (table["ratio"] == 0.001)]
        >>> bool((slow["times as fast as dense"] > 1).all())
        True
    """
    rows = sorted(link_rows() if rows is None else rows, key=lambda row: row["bandwidth"] or math.inf)
    dense = {row["link"]: row for row in rows if row["method"] == "dense"}
    return pd.DataFrame(
        [
            {
                "link": row["link"],
                "method": row["method"],
                "ratio": row["ratio"],
                "values": row["values"],
                "indices": row["indices"] if row["collective"] == "allgather" else "",
                "ms": row["ms"],
                "times as fast as dense": dense[row["link"]]["ms"] / row["ms"],
                "kB on the link": row["wire_bytes"] / 1000,
                "times fewer bytes": dense[row["link"]]["wire_bytes"] / row["wire_bytes"]
                if row["collective"]
                else None,
            }
            for row in rows
        ]
    )


def exchanges(rows: Sequence[dict] | None = None) -> dict[str, list[Measured]]:
    """What the exchange alone took in each row: its step, less one that exchanges nothing, less the selection.

    Horovod's float16 is left out: on processors its sums take longer than a fast link does, which is no property of
    the link. So is a row whose step took no longer than the rest of it, as far as a clock can tell.

    Returns:
        By link, the rows as the cost model takes them.
    """
    rows, found = link_rows() if rows is None else rows, {}
    nothing = {row["link"]: row["ms"] for row in rows if row["method"] == NO_EXCHANGE}
    for row in rows:
        beside = nothing[row["link"]] + row["selection_ms"]
        if row["method"] in FITTED and row["ms"] > beside:
            times = {"seconds": (row["ms"] - beside) / 1000, "beside": beside / 1000}
            measured = Measured(row["collective"], RANKS, row["handed_bytes"], row["bandwidth"] or math.inf, **times)
            found.setdefault(row["link"], []).append(measured)
    return found


def fit_links(rows: Sequence[dict] | None = None) -> Fit:
    """The cost model's figures by all rows, and its errors on each link when it was fitted on the other links alone.

    Args:
        rows: as `link_rows` gives them, of at least three links; those if None.

    Returns:
        A `dgc_lab.scaling.calibration.Fit`; its errors are shares of whole steps. The latency of a hop is what two ranks take to
        begin an exchange: most of it is Horovod's cycle and the wait for the slower rank, little of it the link's.
    """
    links = exchanges(rows)
    errors = []
    for left_out in links:
        others = [row for link, measured in links.items() if link != left_out for row in measured]
        errors += fit(others, links[left_out]).errors
    whole = fit([row for measured in links.values() for row in measured])
    return Fit(whole.latency, whole.efficiency, whole.per_byte, tuple(errors), whole.rows)
