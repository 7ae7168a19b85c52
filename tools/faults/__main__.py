"""Strike until so many faults of a seed have been struck, those of earlier calls counted, and print the table."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from dgc_lab.common import check_whole
from faults.plan import fault
from faults.table import FILE, add, by_kind, read
from faults.verdict import strike


def main(arguments: list[str] | None = None) -> int:
    """Run; returns 0 where every promise was kept, 1 where one was broken, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("faults", type=int, help="how many, from number 0 on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FILE, help="file of the rows")
    options = parser.parse_args(arguments)
    check_whole("faults", options.faults, 1)
    # A shell starts what is to run in the background deaf to Ctrl-C, and what it starts would be so, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    there = {row["number"] for row in read(options.out) if row["seed"] == options.seed}
    try:
        for number in sorted(set(range(options.faults)) - there):
            drawn = fault(options.seed, number)
            print(f"{number}: {drawn.kind}, {drawn.work} ...", end=" ", flush=True)
            row = strike(drawn)
            add(row, options.out)
            print(f"{row['verdict']} after {row['seconds']} s {row['message']}", flush=True)
    except KeyboardInterrupt:
        print(f"Stopped; the same call goes on from {options.out}.", file=sys.stderr)
        return 130
    table = by_kind(options.out)
    print(table.to_string(index=False, float_format="%.0f"))
    return int(table["failures"].iloc[-1] > 0)


if __name__ == "__main__":
    sys.exit(main())
