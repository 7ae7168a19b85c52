"""The tables of lesson 6 from the cost model, beside what was measured where something was."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dgc_lab.scaling.cost_model import Estimate, bytes_against_dense, gain, step
from dgc_lab.scaling.link_table import RANKS
from dgc_lab.scaling.network import GBIT, Link
from dgc_lab.scaling.timing import StepTimes

if TYPE_CHECKING:
    import pandas as pd

METHOD_OF = {"no exchange": "no exchange", "dense": "dense", "float16": "float16", "DGC": "sparse"}
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


def timed_steps(rows: Sequence[dict], values: str = "float32", indices: str = "int32") -> list[Estimate]:
    """Steps that were timed over real links, as the cost model's estimates look, with ``source="measured"``.

    Args:
        rows: of `dgc_lab.scaling.link_table.link_rows`.
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
        dgc = row["method"] == "DGC"
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
        rows: of `dgc_lab.scaling.link_table.link_rows`.
        ratio: whose selection counts; with float32 values and int32 indices.

    Raises:
        ValueError: there is no step without exchange, or none of complete DGC at that ratio.

    Example:
        >>> row = {"method": "no exchange", "ratio": 1.0, "ms": 50.0, "selection_ms": 0.0}
        >>> dgc = {"method": "DGC", "ratio": 0.001, "values": "float32", "indices": "int32", "selection_ms": 9.0}
        >>> times_over_links([row, dgc]).selection
        0.009
    """
    alone = [row["ms"] for row in rows if row["method"] == "no exchange"]
    dgc = [row for row in rows if row["method"] == "DGC" and row["ratio"] == ratio]
    selection = [row["selection_ms"] for row in dgc if (row["values"], row["indices"]) == ("float32", "int32")]
    if not alone or not selection:
        raise ValueError(f"rows must hold steps without exchange and of DGC at ratio {ratio:g}, got {len(rows)} rows")
    compute, selection = statistics.median(alone) / 1e3, statistics.median(selection) / 1e3
    # What is received is added up in these steps already.
    return StepTimes(compute, selection, 0.0, "measured over links", "measured over links")


def steps_over_links(rows: Sequence[dict], fit=None) -> pd.DataFrame:
    """Time of a step over each link, measured and by the cost model.

    Args:
        rows: of `dgc_lab.scaling.link_table.link_rows`.
        fit: what the model takes for all links, a `dgc_lab.scaling.calibration.Fit`; if None, each link is predicted by what is
            fitted to the other links alone.

    Returns:
        For each step and source a row: link, curve (what was sent), source, x (Mbit/s; an unlimited link at 10 000) and
        y (ms), for `dgc_lab.scaling.figures.lines_and_marks`.
    """
    import pandas as pd

    from dgc_lab.scaling.calibration import fit as fitted
    from dgc_lab.scaling.link_table import exchanges
    from dgc_lab.scaling.timing import workload

    known, lines = exchanges(rows), []
    for link in dict.fromkeys(row["link"] for row in rows):
        others = [communicator for other, every in known.items() if other != link for communicator in every]
        used = fit or fitted(others)
        for timed in timed_steps([row for row in rows if row["link"] == link]):
            ratios = [timed.ratio] if timed.method == "sparse" else []
            work = workload("mnist_cnn", times_over_links(rows, *ratios))
            modelled = step(work, used.link(timed.bandwidth), RANKS, timed.method, timed.ratio)
            curve = f"DGC {timed.ratio:.1%}" if ratios else timed.method
            x = min(timed.bandwidth, FASTEST_DRAWN) / GBIT * 1000
            lines += [(link, curve, each.source, x, 1e3 * each.seconds) for each in (timed, modelled)]
    return pd.DataFrame(lines, columns=["link", "curve", "source", "x", "y"])


def errors_over_links(frame: pd.DataFrame) -> pd.DataFrame:
    """How far modelled steps are from measured ones, as a share: a row for what was sent, a column for each link.

    Steps without exchange are left out: the model is given their time.

    Args:
        frame: of `steps_over_links`.

    Example:
        >>> import pandas as pd
        >>> rows = [("slow", "dense", "measured", 1, 10.0), ("slow", "dense", "modelled", 1, 12.0)]
        >>> frame = pd.DataFrame(rows, columns=["link", "curve", "source", "x", "y"])
        >>> round(float(errors_over_links(frame).loc["dense", "slow"]), 3)
        0.2
    """
    sides = frame[frame["curve"] != "no exchange"].pivot(index=["curve", "link"], columns="source", values="y")
    links = frame.sort_values("x")["link"].unique()
    return (sides["modelled"] / sides["measured"] - 1).unstack()[links]


def gains_by_bandwidth(workloads: dict, bandwidths: Sequence[float], workers: int, ratio: float, link: Link):
    """How many times as fast as dense a switching step is, by bandwidth, modelled: a curve for each workload.

    Args:
        workloads: `dgc_lab.scaling.cost_model.Workload` by name.
        bandwidths: bytes a second.
        workers, ratio: of the steps.
        link: gives all but the bandwidth.

    Returns:
        ``pandas.DataFrame`` for `dgc_lab.scaling.figures.lines_and_marks`, x in Gbit/s.

    Example:
        >>> from dgc_lab.scaling.cost_model import Workload
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
