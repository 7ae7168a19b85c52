"""Tables of lesson 6: steps measured over slow and fast links, and their prediction by the cost model.

The rows are in ``results/link.jsonl``; ``benchmarks/bench_link.py`` measures them again.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dgc_lab.common import check_choice, check_list, check_number, check_some, check_whole, rows_of_results
from dgc_lab.scaling.calibration import Measured, fit
from dgc_lab.scaling.cost_model import Estimate, bytes_against_dense, gain, step
from dgc_lab.scaling.network import GBIT, Link
from dgc_lab.scaling.timing import StepTimes, workload

if TYPE_CHECKING:
    import pandas as pd

RANKS = 2
FITTED = ("dense", "masking", "DGC")
METHOD_OF = {"no exchange": "no exchange", "dense": "dense", "float16": "float16", "DGC": "sparse"}
FASTEST_DRAWN = 10 * GBIT  # bandwidth at which figures show an unlimited link


def link_rows() -> list[dict]:
    """Return the measured rows: one for each link and method of sending the gradients.

    A row's ``bandwidth`` is in bytes per second, or None for an unlimited link. ``ms`` is the median of its ``steps``.
    It includes ``selection_ms`` for accumulating, selecting, packing and unpacking: the same step without the network,
    minus a step without exchange. ``wire_bytes`` are the bytes that a rank sent over the link per step, by the link's
    own counter, with control traffic and all headers. ``payload_bytes`` is the rank's payload.

    Example:
        >>> sorted({row["link"] for row in link_rows()})
        ['1 Gbit/s', '10 Mbit/s', '100 Mbit/s', 'unlimited']
    """
    return rows_of_results("link.jsonl")


def measured_links(rows: Sequence[dict]) -> pd.DataFrame:
    """Return measured rows as a table with the slowest link first.

    ``rows`` are like those of `link_rows`. Columns are link, method, ratio, formats of values and indices, ms per step,
    a rank's payload in kB, kB per step on the link, and the factors by which a step is faster and sends fewer bytes
    than dense on the same link.

    Example:
        >>> table = measured_links(link_rows())
        >>> slow = table[(table["link"] == "10 Mbit/s") & (table["ratio"] == 0.001)]
        >>> bool((slow["times as fast as dense"] > 1).all())
        True
    """
    import pandas as pd

    rows = sorted(rows, key=lambda row: row["bandwidth"] or math.inf)
    dense = {row["link"]: row for row in rows if row["method"] == "dense"}
    return pd.DataFrame(
        {
            **{name: row[name] for name in ("link", "method", "ratio", "values")},
            "indices": row["indices"] if row["collective"] == "allgather" else "",
            "ms": row["ms"],
            "times as fast as dense": dense[row["link"]]["ms"] / row["ms"],
            "kB per step": row["payload_bytes"] / 1000,
            "kB on the link": row["wire_bytes"] / 1000,
            "times fewer bytes": dense[row["link"]]["wire_bytes"] / row["wire_bytes"] if row["collective"] else None,
        }
        for row in rows
    )


def exchanges(rows: Sequence[dict]) -> dict[str, list[Measured]]:
    """Return each row's exchange by link: its step, minus a step without exchange, minus the selection.

    Two kinds of rows are omitted: Horovod's float16, whose sums take longer on CPUs than a fast link needs, and rows
    whose step took no measurable time beyond its other parts.
    """
    found = {}
    no_exchange = {row["link"]: row["ms"] for row in rows if row["method"] == "no exchange"}
    for row in rows:
        other_ms = no_exchange[row["link"]] + row["selection_ms"]
        if row["method"] in FITTED and row["ms"] > other_ms:
            times = {"seconds": (row["ms"] - other_ms) / 1000, "other_seconds": other_ms / 1000}
            measured = Measured(row["collective"], RANKS, row["payload_bytes"], row["bandwidth"] or math.inf, **times)
            found.setdefault(row["link"], []).append(measured)
    return found


def fit_links(rows: Sequence[dict], left_out: str | None = None) -> Link:
    """Fit the cost model's link parameters to measured rows, which are like those of `link_rows`.

    The latency of a hop is the time that two ranks need to start an exchange: Horovod's cycle and its other work, and
    the wait for the slower rank. Little of it is the link's. The rows of the link named ``left_out`` are ignored.
    Raises ValueError if there are no rows, or none of that link.

    Example:
        >>> fitted = fit_links(link_rows(), left_out="unlimited")
        >>> 0.5 < fitted.efficiency < 1  # the share of the bandwidth that gradients get
        True
    """
    measured = exchanges(check_some("rows", rows))
    if left_out is not None:
        check_choice("left_out", left_out, measured)
    return fit([exchange for link, every in measured.items() if link != left_out for exchange in every])


def timed_steps(rows: Sequence[dict], values: str = "float32", indices: str = "int32") -> list[Estimate]:
    """Return steps measured over real links as `Estimate` objects, with the link's own count as ``passed``.

    Rows of complete DGC with other ``values`` or ``indices`` are omitted, and so is masking.
    """
    alone = {row["link"]: row["ms"] for row in rows if row["method"] == "no exchange"}
    return [
        Estimate(
            method=METHOD_OF[row["method"]],
            workers=RANKS,
            ratio=row["ratio"] if row["method"] == "DGC" else 1.0,
            bandwidth=row["bandwidth"] or math.inf,
            seconds=row["ms"] / 1e3,
            payload_bytes=row["payload_bytes"],
            passed=row["wire_bytes"],
            speed_up=RANKS * alone[row["link"]] / row["ms"],
            source="measured",
        )
        for row in rows
        if row["method"] in METHOD_OF
        and (row["method"] != "DGC" or (row["values"], row["indices"]) == (values, indices))
    ]


def times_over_links(rows: Sequence[dict], ratio: float = 0.001) -> StepTimes:
    """Return the times of a step without the network and of selection at ``ratio``: medians over the links.

    Raises ValueError if ``rows`` have no step without exchange, or none of complete DGC at this ratio with float32
    values and int32 indices.

    Example:
        >>> row = {"method": "no exchange", "ratio": 1.0, "ms": 50.0, "selection_ms": 0.0}
        >>> dgc = {"method": "DGC", "ratio": 0.001, "values": "float32", "indices": "int32", "selection_ms": 9.0}
        >>> times_over_links([row, dgc]).selection
        0.009
    """
    check_number("ratio", ratio, "in [0, 1]")
    alone = [row["ms"] for row in rows if row["method"] == "no exchange"]
    dgc = [row for row in rows if row["method"] == "DGC" and row["ratio"] == ratio]
    selection = [row["selection_ms"] for row in dgc if (row["values"], row["indices"]) == ("float32", "int32")]
    if not alone or not selection:
        raise ValueError(f"rows must include no-exchange and DGC steps at ratio {ratio:g}, got {len(rows)} rows")
    compute, selection = statistics.median(alone) / 1e3, statistics.median(selection) / 1e3
    # The times of these steps include adding up the received entries.
    return StepTimes(compute, selection, 0.0, "measured over links", "measured over links")


def steps_over_links(rows: Sequence[dict], fitted: Link | None = None) -> pd.DataFrame:
    """Return measured and modelled step times over each link, for `dgc_lab.scaling.figures.lines_and_marks`.

    ``rows`` are like those of `link_rows`. ``fitted`` has the model's parameters for all links; if None, each link is
    predicted from a fit to the other links only. The table has a row for each step and source: link, curve (the
    method), source, x (Mbit/s; 10 000 for an unlimited link) and y (ms).

    Example:
        >>> frame = steps_over_links(link_rows())
        >>> slow = frame[(frame["link"] == "10 Mbit/s") & (frame["curve"] == "dense")].set_index("source")["y"]
        >>> 0.8 < float(slow["modelled"] / slow["measured"]) < 1.25
        True
    """
    import pandas as pd

    lines = []
    for link in dict.fromkeys(row["link"] for row in rows):
        used = fitted or fit_links(rows, left_out=link)
        for timed in timed_steps([row for row in rows if row["link"] == link]):
            sparse = timed.method == "sparse"
            times = times_over_links(rows, timed.ratio) if sparse else times_over_links(rows)
            work = workload("mnist_cnn", times)
            here = dataclasses.replace(used, bandwidth=timed.bandwidth)
            modelled = step(work, here, RANKS, timed.method, timed.ratio)
            curve = f"DGC {timed.ratio:.1%}" if sparse else timed.method
            x = min(timed.bandwidth, FASTEST_DRAWN) / GBIT * 1000
            lines += [(link, curve, each.source, x, 1e3 * each.seconds) for each in (timed, modelled)]
    return pd.DataFrame(lines, columns=["link", "curve", "source", "x", "y"])


def errors_over_links(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the relative errors of modelled steps: a row for each method, a column for each link.

    ``frame`` is a result of `steps_over_links`. Steps without exchange are omitted, because the model uses their time.

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


def break_even_table(ratios: Sequence[float], workers: Sequence[int]) -> pd.DataFrame:
    """Return the bytes per link in an allgather, relative to a ring allreduce.

    The table has a row for each of the ``ratios`` and a column for each number of ``workers``. Raises ValueError if a
    ratio is not in [0, 1] or a number of workers is below 1.

    Example:
        >>> break_even_table([0.25, 0.001], [2, 4, 1024]).loc[0.25].tolist()
        [0.5, 1.0, 256.0]
    """
    import pandas as pd

    ratios, workers = check_list("ratios", ratios), check_list("workers", workers)
    for ratio in ratios:
        check_number("ratios", ratio, "in [0, 1]")
    for number in workers:
        check_whole("workers", number, 1)
    shares = [[bytes_against_dense(number, ratio) for number in workers] for ratio in ratios]
    return pd.DataFrame(shares, index=pd.Index(ratios, name="ratio"), columns=pd.Index(workers, name="workers"))


def gains_by_bandwidth(
    workloads: dict, bandwidths: Sequence[float], workers: int, ratio: float, link: Link
) -> pd.DataFrame:
    """Return the modelled speed-up of a switching step over a dense one by bandwidth: a curve for each workload.

    ``workloads`` are `dgc_lab.scaling.cost_model.Workload` objects by name; ``bandwidths`` are in bytes per second and
    replace that of ``link``; ``workers`` and ``ratio`` are those of a step. The table is for
    `dgc_lab.scaling.figures.lines_and_marks`, with x in Gbit/s. Raises ValueError if a bandwidth is not above 0.

    Example:
        >>> from dgc_lab.scaling.cost_model import Workload
        >>> frame = gains_by_bandwidth({"small": Workload(10**6, 0.1)}, [GBIT], 8, 0.001, Link(GBIT))
        >>> frame[["curve", "source", "x"]].values.tolist()
        [['small', 'modelled', 1.0]]
    """
    import pandas as pd

    bandwidths = [check_number("bandwidths", each, "above 0") for each in check_list("bandwidths", bandwidths)]
    links = [dataclasses.replace(link, bandwidth=bandwidth) for bandwidth in bandwidths]
    lines = [
        (name, "modelled", link.bandwidth / GBIT, gain(work, link, workers, ratio))
        for name, work in workloads.items()
        for link in links
    ]
    return pd.DataFrame(lines, columns=["curve", "source", "x", "y"])
