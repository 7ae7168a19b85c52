"""Time of a step of two Horovod ranks over slow and fast links, and the number of bytes that actually pass the link.

DGC_LAB_DATA=/path/to/mnist.npz python benchmarks/bench_link.py

This needs root. Without it, if the kernel allows user namespaces, run ``unshare --user --map-root-user python
benchmarks/bench_link.py``. The rows are also written to ``results/link.jsonl``, from which the lessons read them.

Here, Horovod's cycle time is 5 ms (``HOROVOD_CYCLE_TIME=5``). In consecutive runs with 1 ms (the default), 3, 5, 7 and
10 ms, a step of DGC at 0.1 % in float16 over 1 Gbit/s took 63, 59, 54, 56 and 60 ms and sent 37.7, 30.4, 27.0, 26.0 and
25.4 kB: with 10 ms it would send 540 times fewer bytes than dense training, but be slower. Disabling the response cache
made no difference. At 1 Gbit/s, negotiation and collective take 0.3 ms of a step; the remaining difference from a step
without exchange is selection and waiting for the slower rank. With a burst of 256 kB, the token bucket would let a
whole compressed gradient pass without limit, so the burst is 250 us of the line rate. With a queue of 50 ms, packets
are lost at 10 Mbit/s, so the queue is 400 ms.

Unpatched, Gloo's allgather sends data before it posts its own receive request, which then arrives after all these
bytes. In about half of all steps, the two directions of the link were therefore used one after the other: DGC at 1 %
over 10 Mbit/s took either 280 to 300 ms or 500 to 550 ms. The lab's Horovod posts the request first
(`dgc_lab.install.horovod_source`): 303 ms on average instead of 419 ms, in consecutive runs on one machine. Neither
slow start after idle times nor tail loss probes contributed to this.

In interleaved runs over 1 Gbit/s, DGC at 0.1 % takes 48.7 ms per step if the received entries update the weights
directly, and 51.3 ms with an update as long as the model (34.0 ms without exchange): 0.70 and 0.66 of the speed without
exchange. The rows below use the second way.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from pathlib import Path

from bench import machine, report
from dgc_lab.install.launch_env import cores, rank_variables, thread_variables
from two_hosts import NAMES, TwoHosts, why_not

ROWS = Path(__file__).resolve().parent.parent / "results" / "link.jsonl"
LINKS = {"unlimited": None, "1 Gbit/s": 1e9, "100 Mbit/s": 100e6, "10 Mbit/s": 10e6}
PLAIN, SHORT = ("float32", "int32"), ("float16", "run_lengths")
# Method, ratio, and format of the entries, which is (float32, int32) for methods that send no entries.
RUNS = (
    ("no exchange", 1.0, PLAIN),
    ("dense", 1.0, PLAIN),
    ("float16", 1.0, PLAIN),
    ("masking", 0.01, PLAIN),
    ("masking", 0.001, PLAIN),
    *(("DGC", ratio, way) for ratio in (0.01, 0.001) for way in (PLAIN, SHORT)),
)
SPARSE = ("masking", "DGC")
ROUNDS, SECONDS, LEAST_STEPS, MOST_STEPS = 3, 2.5, 3, 40  # a run takes about SECONDS in each round
WARM_UP = 5
# Milliseconds between two negotiations. More frequent ones save waiting time, but take time of the CPU and the link.
CYCLE_TIME = "5"


def environments() -> list[dict[str, str]]:
    """Return the environment variables of both ranks; an existing HOROVOD_CYCLE_TIME is kept."""
    here = {
        **thread_variables(cores()),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "HOROVOD_CYCLE_TIME": os.environ.get("HOROVOD_CYCLE_TIME", CYCLE_TIME),
    }
    return [here | place for place in rank_variables(NAMES)]


def commands() -> list[list[str]]:
    """Return both ranks' command lines, each on its own core if there are two."""
    allowed = sorted(os.sched_getaffinity(0))
    program = [sys.executable, str(Path(__file__).with_name("link_rank.py"))]
    return [["taskset", "--cpu-list", str(allowed[number % len(allowed)]), *program] for number in range(2)]


def meet(hosts: TwoHosts, dataset: str, batch: int) -> None:
    """Send both ranks the port of the first one's rendezvous server, the data set and the batch size."""
    port = json.loads(hosts.programs[0].stdout.readline() or "{}").get("port")
    hosts.programs[1].stdout.readline()
    hosts.ask(*[{"port": port, "dataset": dataset, "batch": batch}] * 2)


def train(hosts: TwoHosts, run, steps: int, warm_up: int = 1, alone: bool = False) -> list[dict]:
    """Train both ranks for some steps of one of `RUNS`, and return their answers; if ``alone``, without exchange."""
    method, ratio, (values, indices) = run
    order = {"method": method, "ratio": ratio, "values": values, "indices": indices}
    order["alone"] = alone or method == "no exchange"
    return hosts.ask(*[order | {"steps": steps, "warm_up": warm_up}] * 2)


def measure(hosts: TwoHosts, links: dict, runs, rounds: int) -> list[dict]:
    """Return a row for each link and run; at each link, the runs take turns."""
    hosts.limit(None)
    known = {run: train(hosts, run, 5) for run in runs}  # traces, and measures time and bytes
    # The same steps without the network measure the other costs, above all selection.
    alone = [(run, True) for run in runs if run[0] in SPARSE]
    for run, _ in alone:
        train(hosts, run, 5, alone=True)
    rows, selection = [], None
    for link, bits in links.items():
        hosts.limit(bits)
        found = {}
        for turn in range(rounds):
            for run, by_itself in [*((run, False) for run in runs), *(alone if selection is None else [])]:
                first = known[run][0]
                expected = statistics.median(first["ms"]) / 1000 + (8 * first["wire_bytes"] / bits if bits else 0)
                steps = min(MOST_STEPS, max(LEAST_STEPS, round(SECONDS / expected)))
                if turn == 0 or expected < SECONDS:
                    warm_up = WARM_UP if expected < 0.5 else 1
                    found.setdefault((run, by_itself), []).extend(train(hosts, run, steps, warm_up, by_itself))
        if selection is None:
            nothing = median(found[RUNS[0], False])
            # The native step can be as fast as uncompressed momentum, and a measurement can put it slightly ahead.
            selection = {run: max(0.0, median(found[run, True]) - nothing) for run, _ in alone}
        for run in runs:
            rows.append(row(link, bits, run, found[run, False], selection.get(run, 0.0)))
            print(f"{link}: {run}: {rows[-1]['ms']:.1f} ms, {rows[-1]['wire_bytes']} bytes", flush=True)
    return rows


def median(answers) -> float:
    """Return the median milliseconds of all ranks' steps."""
    return statistics.median(ms for answer in answers for ms in answer["ms"])


def row(link, bits, run, answers, selection) -> dict:
    """Return a row from all answers for one run at one link."""
    method, ratio, (values, indices) = run
    return {
        "link": link,
        "bandwidth": bits and bits / 8,
        "method": method,
        "ratio": ratio,
        "values": "float16" if method == "float16" else values,
        "indices": indices,
        "ms": round(median(answers), 3),
        "selection_ms": round(selection, 3),
        "wire_bytes": round(statistics.mean(answer["wire_bytes"] for answer in answers)),
        # Horovod's float16 compression sends 2 of the 4 bytes per element; a single rank sends nothing.
        "payload_bytes": round(answers[0]["payload_bytes"] * {"float16": 0.5, "no exchange": 0}.get(method, 1)),
        "steps": sum(len(answer["ms"]) for answer in answers) // 2,
        "collective": {"no exchange": None, "dense": "ring", "float16": "ring"}.get(method, "allgather"),
    }


def goals(rows) -> dict:
    """Return results and goals by description."""

    def value(what, link, method, ratio=1.0, values="float32"):
        [found] = [
            row[what]
            for row in rows
            if (row["link"], row["method"], row["ratio"]) == (link, method, ratio)
            and (method != "DGC" or row["values"] == values)
        ]
        return found

    found, ratio = {}, 0.001
    for values in ("float32", "float16"):
        at = f"DGC at 0.1 %, {values}"

        def gain(link, over, values=values):
            return value("ms", link, over) / value("ms", link, "DGC", ratio, values)

        found[f"100 Mbit/s, {at}: times as fast as dense"] = (gain("100 Mbit/s", "dense"), 20)
        found[f"100 Mbit/s, {at}: times as fast as float16"] = (gain("100 Mbit/s", "float16"), 9)
        found[f"1 Gbit/s, {at}: speed divided by that without exchange"] = (gain("1 Gbit/s", "no exchange"), 0.85)
        found[f"unlimited, {at}: times as fast as dense"] = (gain("unlimited", "dense"), 0.9)
    for link in LINKS:
        fewer = value("wire_bytes", link, "dense") / value("wire_bytes", link, "DGC", ratio, "float16")
        found[f"{link}, DGC at 0.1 %, float16: times fewer bytes on the link than dense"] = (fewer, 500)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of all runs at each link")
    text = "measure only these links, without goals and file"
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS), help=text)
    arguments = parser.parse_args()
    links = arguments.links
    reason = why_not()
    if reason:
        print(f"link: skipped, this machine allows no network namespaces: {reason}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the hosts are stopped
    with TwoHosts(commands(), environments()) as hosts:
        meet(hosts, "mnist", 50)
        rows = measure(hosts, {link: LINKS[link] for link in links}, RUNS, arguments.rounds)
    if len(links) < len(LINKS):
        return
    report("link", rows, goals(rows))
    here = machine()
    date = here.pop("date")
    here["HOROVOD_CYCLE_TIME"] = environments()[0]["HOROVOD_CYCLE_TIME"]
    lines = [json.dumps(row | {"machine": here, "date": date}) for row in rows]
    ROWS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
