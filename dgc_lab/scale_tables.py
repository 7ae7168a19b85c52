"""The tables of lesson 6 from the cost model, beside what was measured where something was."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dgc_lab.cost_model import Estimate, Workload, bytes_against_dense, gain, step
from dgc_lab.network import GBIT, Link
from dgc_lab.step_times import StepTimes

if TYPE_CHECKING:
    import pandas as pd

METHOD_OF = {"no exchange": "no exchange", "dense": "dense", "float16": "float16", "dgc": "sparse"}
RANKS = 2
FASTEST_DRAWN = 10 * GBIT  # where a link that nothing limits is drawn


def break_even_table(ratios: Sequence[float], workers: Sequence[int], entry_bytes: int = 8) -> pd.DataFrame:
    """Bytes past a link by allgather over those by ring allreduce: a row for each ratio, a column for each N.

    Example:
        >>> break_even_table([0.25, 0.001], [2, 4, 1024]).loc[0.25].tolist()
        [0.5, 1.0, 256.0]
    """
    import pandas as pd

    shares = [[bytes_against_dense(number, ratio, entry_bytes) for number in workers] for ratio in ratios]
    index = pd.Index(ratios, name="ratio")
    return pd.DataFrame(shares, index=index, columns=pd.Index(workers, name="workers"))


def timed_steps(
    rows: Sequence[dict], values: str = "float32", indices: str = "int32", ranks: int = 2
) -> list[Estimate]:
    """Steps that were timed over real links, as the cost model's estimates look, with ``source="measured"``.

    Args:
        rows: of `dgc_lab.link_table.link_rows`.
        values, indices: what entries travelled as; rows of complete DGC with others are left out, as is masking.

    Returns:
        One for each row, its ``source`` ``"measured"``. A link that nothing limited has infinite bandwidth; bytes
        passed are those that the link counted.

    Example:
        >>> row = {"link": "slow", "bandwidth": 1e6, "ratio": 1.0, "values": "float32", "indices": "int32"}
        >>> nothing = {**row, "method": "no exchange", "ms": 50, "handed_bytes": 0, "wire_bytes": 0}
        >>> dense = {**row, "method": "dense", "ms": 200, "handed_bytes": 100, "wire_bytes": 120}
        >>> [(each.method, each.source, each.speed_up) for each in timed_steps([nothing, dense])]
        [('no exchange', 'measured', 2.0), ('dense', 'measured', 0.5)]
    """
    alone = {row["link"]: row["ms"] for row in rows if row["method"] == "no exchange"}
    found = []
    for row in rows:
        dgc = row["method"] == "dgc"
        if row["method"] not in METHOD_OF or (dgc and (row["values"], row["indices"]) != (values, indices)):
            continue
        found.append(
            Estimate(
                method=METHOD_OF[row["method"]],
                workers=RANKS,
                ratio=row["ratio"] if dgc else 1.0,
                bandwidth=row["bandwidth"] or math.inf,
                seconds=row["ms"] / 1e3,
                handed=row["handed_bytes"],
                passed=row["wire_bytes"],
                speed_up=RANKS * alone[row["link"]] / row["ms"],
                source="measured",
            )
        )
    return found


def times_over_links(rows: Sequence[dict], ratio: float = 0.001) -> StepTimes:
    """What a step of those rows takes without the network: medians over the links.

    Args:
        rows: of `dgc_lab.link_table.link_rows`.
        ratio: whose selection counts; with float32 values and int32 indices.

    Raises:
        ValueError: there is no step without exchange, or none of complete DGC at that ratio.

    Example:
        >>> row = {"method": "no exchange", "ratio": 1.0, "ms": 50.0, "selection_ms": 0.0}
        >>> dgc = {"method": "dgc", "ratio": 0.001, "values": "float32", "indices": "int32", "selection_ms": 9.0}
        >>> times_over_links([row, dgc]).selection
        0.009
    """
    alone = [row["ms"] for row in rows if row["method"] == "no exchange"]
    dgc = [row for row in rows if row["method"] == "dgc" and row["ratio"] == ratio]
    selection = [row["selection_ms"] for row in dgc if (row["values"], row["indices"]) == ("float32", "int32")]
    if not alone or not selection:
        raise ValueError(f"rows must hold steps without exchange and of DGC at ratio {ratio:g}, got {len(rows)} rows")
    compute, selection = statistics.median(alone) / 1e3, statistics.median(selection) / 1e3
    # What is received is added up in these steps already.
    return StepTimes(compute, selection, 0.0, "measured over links", "measured over links")


def steps_over_links(timed: Sequence[Estimate], workload: Workload, fit) -> pd.DataFrame:
    """Time of a step by bandwidth, measured and by the fitted model, for `dgc_lab.scale_pictures.lines_and_marks`.

    Args:
        timed: of `timed_steps`.
        workload: what each worker computes and sends.
        fit: `dgc_lab.cost_fit.Fit`.

    Returns:
        Columns curve, source, x in Mbit/s (an unlimited link at 10 000), y in ms; a row for each step and source.
    """
    import pandas as pd

    lines = []
    for one in timed:
        curve = f"{one.method}, {one.ratio:.2%}" if one.method == "sparse" else one.method
        modelled = step(workload, fit.link(one.bandwidth), one.workers, one.method, one.ratio)
        x = min(one.bandwidth, FASTEST_DRAWN) / GBIT * 1000
        lines += [(curve, each.source, x, 1e3 * each.seconds) for each in (one, modelled)]
    return pd.DataFrame(lines, columns=["curve", "source", "x", "y"])


def largest_error(frame: pd.DataFrame) -> float:
    """The largest distance of a modelled step from the measured one, as a share of it, in a table like the one above.

    Example:
        >>> import pandas as pd
        >>> rows = [("dense", "measured", 1, 10.0), ("dense", "modelled", 1, 12.0)]
        >>> round(largest_error(pd.DataFrame(rows, columns=["curve", "source", "x", "y"])), 3)
        0.2
    """
    sides = frame.pivot_table(index=["curve", "x"], columns="source", values="y")
    return float((sides["modelled"] / sides["measured"] - 1).abs().max())


def gains_by_bandwidth(workloads: dict, bandwidths: Sequence[float], workers: int, ratio: float, link: Link):
    """How many times as fast as dense a switching step is, by bandwidth, modelled: a curve for each workload.

    Args:
        workloads: `dgc_lab.cost_model.Workload` by name.
        bandwidths: bytes a second.
        workers, ratio: of the steps.
        link: gives all but the bandwidth.

    Returns:
        ``pandas.DataFrame`` for `dgc_lab.scale_pictures.lines_and_marks`, x in Gbit/s.

    Example:
        >>> frame = gains_by_bandwidth({"small": Workload(10**6, 0.1)}, [GBIT], 8, 0.001, Link(GBIT))
        >>> frame[["curve", "source", "x"]].values.tolist()
        [['small', 'modelled', 1.0]]
    """
    import dataclasses

    import pandas as pd

    lines = [
        (name, "modelled", bandwidth / GBIT, gain(work, dataclasses.replace(link, bandwidth=bandwidth), workers, ratio))
        for name, work in workloads.items()
        for bandwidth in bandwidths
    ]
    return pd.DataFrame(lines, columns=["curve", "source", "x", "y"])
