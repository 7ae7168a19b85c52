"""Time of a step of two Horovod ranks whose exchanges overlap the backward pass, by bucket size, over limited links.

python benchmarks/bench_overlap.py

It needs Linux, but no root: the kernel limits the ranks' own connections (``dgc_lab.distributed.limited_bandwidth``).
The rows are also written to ``results/overlap.jsonl``, from which lesson 9 reads them. Steps of all plans over a link
take turns in one run. The network has 48 equal gradients, 12 MiB in all; ``dgc_lab/scaling/overlap.py`` describes it.

In the study *buckets* the training step joins gradients itself, so Horovod's own fusion is off
(``HOROVOD_FUSION_THRESHOLD=0``). The study *fusion* leaves it to Horovod: the step exchanges gradients one by one, and
Horovod joins those that are ready whenever a cycle of ``HOROVOD_CYCLE_TIME`` ends.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from bench import machine, report
from dgc_lab.cluster import HorovodRanks
from dgc_lab.scaling.network import GBIT
from dgc_lab.scaling.overlap import MIB, PLANS, ExchangePlan, measure_overlap

ROWS = Path(__file__).resolve().parent.parent / "results" / "overlap.jsonl"
LINKS = (GBIT, GBIT / 10)
ONE_BY_ONE = (ExchangePlan(ratio=0), ExchangePlan(0))
SETTINGS = [(fusion, cycle) for fusion in (0, MIB, 64 * MIB) for cycle in (1, 10)]  # Horovod's default: 64 MiB, 1 ms
ROUNDS = 9


def measure(study: str, plans, links, fusion: int, cycle: int, rounds: int) -> list[dict]:
    """Return the rows of all plans over each link, from two ranks that start with these settings of Horovod."""
    os.environ |= {"HOROVOD_FUSION_THRESHOLD": str(fusion), "HOROVOD_CYCLE_TIME": str(cycle)}
    rows = []
    with HorovodRanks(2) as ranks:
        for bandwidth in links:
            for row in ranks.run(measure_overlap, plans, bandwidth, rounds)[0]:
                rows.append({"study": study, "fusion": fusion, "cycle": cycle, **row})
                print(f"{bandwidth / GBIT:g} Gbit/s, fusion {fusion}, cycle {cycle}: {row['plan']}: {row['ms']:.0f} ms")
    return rows


def goals(rows: list[dict]) -> dict:
    """Return results and goals by description."""

    def ms(plan, link):
        return next(row["ms"] for row in rows if (row["plan"], row["bandwidth"]) == (plan, link))

    end, buckets, dgc = "uncompressed, all at the end", "uncompressed, buckets of 3 MiB", "DGC 1 %, all at the end"
    fast, slow = LINKS
    return {
        "1 Gbit/s: buckets of 3 MiB, times as fast as all at the end": (ms(end, fast) / ms(buckets, fast), 1.2),
        "1 Gbit/s: buckets of 3 MiB, times as fast as one by one": (
            ms("uncompressed, one by one", fast) / ms(buckets, fast),
            1.05,
        ),
        "100 Mbit/s: DGC 1 %, times as fast as buckets of 3 MiB": (ms(buckets, slow) / ms(dgc, slow), 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="steps of each plan over each link")
    rounds = parser.parse_args().rounds
    rows = measure("buckets", PLANS, LINKS, 0, 1, rounds)
    reached = goals(rows)
    for fusion, cycle in SETTINGS:
        rows += measure("fusion", ONE_BY_ONE, LINKS[:1], fusion, cycle, rounds)
    shown = [{name: value for name, value in row.items() if name != "timeline"} for row in rows]
    report("overlap", shown, reached)
    here = machine()
    date = here.pop("date")
    ROWS.write_text("\n".join(json.dumps(row | {"machine": here, "date": date}) for row in rows) + "\n")


if __name__ == "__main__":
    main()
