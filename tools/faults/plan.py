"""Which faults there are: each follows from the seed and its number alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

SWEEPS = ("sweep", "workers table")  # one process, rows in a file
RANKS = ("two ranks", "four ranks", "scheme on ranks")  # HorovodRanks, rows in a file
LAUNCHED = ("horovodrun", "scheme under horovodrun")  # checkpoints
SERVERS = ("synchronous servers", "asynchronous servers")
ROWS = (*SWEEPS, *RANKS)
SAVED = ("train", *LAUNCHED, *SERVERS)
SEVERAL = (*RANKS, *LAUNCHED, *SERVERS)
ALL = (*ROWS, *SAVED)
KINDS = {  # which works each kind strikes
    "kill": ALL,
    "kill a part": SEVERAL,
    "stop": ALL,
    "stop a part": SEVERAL,
    "terminate": ALL,
    "interrupt": ALL,
    "full disk": ALL,
    "read-only disk": ALL,
    "folder in its place": ROWS,
    "truncated file": ALL,
    "garbled file": ALL,
    "link lost": ("two hosts",),
    "slow link": ("two hosts",),
    "clock jumps": (*SWEEPS, "train"),  # one process: libfaketime breaks the limits of what waits for a child
    "memory short": ("sweep", "two ranks", "horovodrun", "asynchronous servers"),
    "kernel restarted": ("kernel", "kernel with ranks"),
    "tab closed": ("browser",),
}


@dataclass(frozen=True)
class Fault:
    """One fault: ``work`` is struck by ``kind``.

    Attributes:
        after: how much of the work is done and kept by then, as a share of what it keeps.
        wait: the moment between that and the next that is kept, as a share of the time between.
        lasts: seconds until it ends, where it has an end (1 to 20).
        pick: which process, byte or limit is struck, in [0, 1).
    """

    seed: int
    number: int
    kind: str
    work: str
    after: float
    wait: float
    lasts: float
    pick: float


def fault(seed: int, number: int) -> Fault:
    """The fault of that number: the same at every call and on every machine.

    >>> fault(0, 3) == fault(0, 3) != fault(0, 4)
    True
    """
    draw = random.Random(f"{seed} {number}")
    kind = draw.choice(list(KINDS))
    work = draw.choice(KINDS[kind])
    longest = 10 if "link" in kind else 20
    return Fault(seed, number, kind, work, draw.random(), draw.random(), draw.uniform(1, longest), draw.random())
