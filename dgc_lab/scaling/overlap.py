"""Lesson 9: do exchanges overlap the backward pass? Steps of real Horovod ranks over a link of limited bandwidth.

The ranks train a stack of equal dense layers. Its gradients are exchanged in *buckets*: consecutive gradients in the
order of the backward pass, joined to one vector. A bucket is exchanged as soon as its last gradient is computed, while
the backward pass continues. One bucket for each gradient, or one for all of them, are the two extremes.

The ranks, Horovod's exchanges, the computation and the times are real. The link is emulated: the kernel limits the
ranks' own connections on this machine (`dgc_lab.distributed.sockets`), which adds no latency.

References:
    arXiv:2006.15704 (PyTorch's DistributedDataParallel: buckets, 25 MB by default)
    https://horovod.readthedocs.io/en/stable/tensor-fusion.html (``HOROVOD_FUSION_THRESHOLD``, ``HOROVOD_CYCLE_TIME``)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dgc_lab.common import LabError, check_instance, check_list, check_number, check_some, check_whole, rows_of_results

if TYPE_CHECKING:
    import pandas as pd

MIB = 2**20
TOO_FAST = 1.5  # an exchange this many times as fast as the link shows that nothing limits it


@dataclass(frozen=True)
class ExchangePlan:
    """When and how the ranks exchange a step's gradients.

    Attributes:
        bucket_bytes: largest size of a bucket, at least 0; a gradient that is larger has a bucket of its own. 0
            exchanges them one by one, infinity all together at the end.
        ratio: share of the elements that Deep Gradient Compression sends, in [0, 1]; 1 sends the gradients
            uncompressed, 0 nothing.

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> str(ExchangePlan(3 * MIB, ratio=0.01)), str(ExchangePlan(0)), str(ExchangePlan(ratio=0))
        ('DGC 1 %, buckets of 3 MiB', 'uncompressed, one by one', 'no exchange')
    """

    bucket_bytes: float = math.inf
    ratio: float = 1.0

    def __post_init__(self):
        check_number("bucket_bytes", self.bucket_bytes, "at least 0")
        check_number("ratio", self.ratio, "in [0, 1]")

    def __str__(self):
        if self.ratio == 0:
            return "no exchange"
        return f"{'uncompressed' if self.ratio == 1 else f'DGC {100 * self.ratio:g} %'}, {self.when}"

    @property
    def when(self) -> str:
        """The size of the buckets in words."""
        if self.bucket_bytes == 0:
            return "one by one"
        return "all at the end" if self.bucket_bytes == math.inf else f"buckets of {self.bucket_bytes / MIB:.3g} MiB"


#: Plans that the lesson compares, without and with Deep Gradient Compression.
PLANS = (
    ExchangePlan(ratio=0),
    *(ExchangePlan(size) for size in (math.inf, 6 * MIB, 3 * MIB, MIB, 0)),
    *(ExchangePlan(size, ratio=0.01) for size in (math.inf, 3 * MIB)),
)


def fill_buckets(sizes: Sequence[int], largest: float) -> list[list[int]]:
    """Return the numbers of the gradients in each bucket, in the order in which they are computed.

    Args:
        sizes: bytes of each gradient, in this order.
        largest: bytes of the largest bucket, at least 0.

    Raises:
        ValueError: there are no sizes, or a number is negative.

    Example:
        >>> fill_buckets([4, 4, 4, 9, 1], largest=8)
        [[0, 1], [2], [3], [4]]

    References:
        arXiv:2006.15704, section 3.2.3.
    """
    check_number("largest", largest, "at least 0")
    buckets, filled = [], 0
    for number, size in enumerate(check_some("sizes", check_list("sizes", sizes))):
        check_whole("sizes", size, 0)
        if not buckets or filled + size > largest:
            buckets.append([])
            filled = 0
        buckets[-1].append(number)
        filled += size
    return buckets


def measure_overlap(
    plans: Sequence[ExchangePlan] = PLANS, bandwidth: float = 125e6, rounds: int = 5, batch: int = 128
) -> list[dict]:
    """Time steps of all plans, in turns, over a link; call it on all ranks: ``ranks.run(measure_overlap)[0]``.

    Args:
        plans: the plans to compare.
        bandwidth: bytes per second that a rank can send, above 0; infinity for no limit.
        rounds: timed steps of each plan, at least 3; two more warm up.
        batch: examples per step, which set the time of the computation.

    Returns:
        A row for each plan, the same on all ranks: ``plan``, ``when``, ``ratio``, ``bandwidth``, ``buckets`` (their
        number), ``ms`` (the median over steps of the slower rank), ``min ms``, ``max ms``, ``kB sent`` by a rank per
        step, and ``timeline``, the moments in ms of a median step on rank 0, for
        `dgc_lab.scaling.overlap_figure.step_timelines`. The last row is an exchange of all gradients without a step.

    Raises:
        ValueError: an argument is out of range.
        LabError: Horovod is not initialized; TensorFlow has already started with one thread for operations; or
            nothing limits the ranks' connections here.

    Example:
        >>> from dgc_lab.cluster import HorovodRanks
        >>> with HorovodRanks(2) as ranks:  # doctest: +SKIP
        ...     rows = ranks.run(measure_overlap, bandwidth=12.5e6)[0]

    References:
        arXiv:2006.15704, section 3.2; Horovod's tensor fusion.
    """
    plans = [check_instance("plans", plan, ExchangePlan) for plan in check_some("plans", check_list("plans", plans))]
    check_number("bandwidth", bandwidth, "above 0")
    check_whole("rounds", rounds, 3, 1000)
    check_whole("batch", batch, 1, 100_000)
    from dgc_lab.distributed.communicators import HorovodWorkers
    from dgc_lab.distributed.sockets import limited_bandwidth
    from dgc_lab.scaling.overlap_steps import SIZES, exchange_alone, run_in_turns, step_of, use_two_threads

    workers = HorovodWorkers()
    use_two_threads()
    buckets = [fill_buckets(SIZES, plan.bucket_bytes) if plan.ratio else [] for plan in plans]
    with limited_bandwidth(bandwidth):
        steps = [step_of(plan, own, batch, workers) for plan, own in zip(plans, buckets, strict=True)]
        times, moments, sent = run_in_turns([*steps, exchange_alone(workers)], rounds, workers)
    whats = [
        {"plan": str(plan), "when": plan.when if plan.ratio else "", "ratio": plan.ratio, "buckets": len(own)}
        for plan, own in zip(plans, buckets, strict=True)
    ]
    whats.append({"plan": "exchange alone", "when": "", "ratio": 1.0, "buckets": 1})
    rows = [
        what | {"bandwidth": bandwidth} | summary(*own) for what, *own in zip(whats, times, moments, sent, strict=True)
    ]
    check_limited(rows[-1]["ms"], 1000 * sum(SIZES) / bandwidth)
    return rows


def check_limited(measured: float, least: float) -> None:
    """Raise LabError if an exchange was much faster than the link allows; both times are in ms."""
    if measured < least / TOO_FAST:
        raise LabError(
            f"this system does not limit the ranks' connections: an exchange took {measured:.0f} ms instead of "
            f"{least:.0f} ms. Pass bandwidth=math.inf, or use the stored rows"
        )


def summary(times: list[float], moments: list[dict], sent: float) -> dict:
    """Return the measured part of a row."""
    middle = statistics.median(times)
    nearest = min(range(len(times)), key=lambda number: abs(times[number] - middle))
    spread = {"ms": round(middle, 2), "min ms": round(min(times), 2), "max ms": round(max(times), 2)}
    return spread | {"kB sent": round(sent / 1000, 1), "timeline": moments[nearest]}


def overlap_rows() -> list[dict]:
    """Return stored rows of `measure_overlap` from this lab's machine.

    Each row also has ``study``, ``"buckets"`` for all plans over two links, or ``"fusion"`` for settings of Horovod's
    own fusion; ``fusion``, its ``HOROVOD_FUSION_THRESHOLD`` in bytes; and ``cycle``, its ``HOROVOD_CYCLE_TIME`` in ms.
    ``benchmarks/bench_overlap.py`` measures them again; they are in ``results/overlap.jsonl``.

    Example:
        >>> sorted({row["bandwidth"] / 125e6 for row in overlap_rows()})
        [0.1, 1.0]
    """
    return rows_of_results("overlap.jsonl")


def overlap_table(rows: Sequence[dict]) -> pd.DataFrame:
    """Return rows of `measure_overlap` as a table: a row for each plan, with the ms of a step over each link.

    Args:
        rows: the rows, of one link or more.

    Raises:
        ValueError: there are no rows.

    Example:
        >>> row = {"plan": "no exchange", "bandwidth": 125e6, "ms": 80.0, "kB sent": 0.2}
        >>> float(overlap_table([row]).loc["no exchange", "ms at 1 Gbit/s"])
        80.0

    References:
        Lesson 9, section 2.
    """
    import pandas as pd

    from dgc_lab.scaling.network import GBIT

    columns = {}
    for row in check_some("rows", rows):
        link = f"{row['bandwidth'] / GBIT:g} Gbit/s"
        columns.setdefault(f"ms at {link}", {})[row["plan"]] = row["ms"]
        columns.setdefault("kB sent per step", {})[row["plan"]] = row["kB sent"]
    order = list(dict.fromkeys(row["plan"] for row in rows))
    return pd.DataFrame(columns).loc[order].rename_axis("plan")
