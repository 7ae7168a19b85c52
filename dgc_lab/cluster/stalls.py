"""Detection of processes that wait for others, and of waits that can never end.

While a collective lacks some ranks, Horovod writes a report to its log every few seconds, with the collective's name
and the missing ranks. These may only be slow. But if one of them has returned, or if every rank waits in a collective
that lacks some other, the wait never ends.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

CHECK_TIME, CHECK_SECONDS = "HOROVOD_STALL_CHECK_TIME_SECONDS", 5  # Horovod's default is 60
SECONDS_BETWEEN_LOOKS = 1
SECONDS_BEFORE_NOTICE = 10  # while some processes run after others have returned or died
SECONDS_TO_EXPIRE = 3 * CHECK_SECONDS  # of a report; Horovod repeats it as long as the wait lasts
SECONDS_HOPELESS = 4 * CHECK_SECONDS  # until the call ends: at least two reports must confirm it


def stall_variables() -> dict[str, str]:
    """Return the variable that makes Horovod report waiting ranks after 5 to 15 seconds, or its value if it is set."""
    return {CHECK_TIME: os.environ.get(CHECK_TIME, str(CHECK_SECONDS))}


def last_report(log: str) -> dict[str, list[str]] | None:
    r"""Return the missing ranks of each collective in the last report of Horovod's log; None without a report.

    Example:
        >>> last_report("... will cause deadlock.\nMissing ranks:\n0: [cond/mean, gather]\n2: [gather]\n")
        {'cond/mean': ['rank 0'], 'gather': ['rank 0', 'rank 2']}
    """
    _, found, report = log.rpartition("Missing ranks:")
    if not found:
        return None
    missing = {}
    for rank, names in re.findall(r"^(\d+)!?: \[(.*)\]$", report, re.MULTILINE):
        for name in names.removesuffix(" ...").split(", "):
            missing.setdefault(name, []).append(f"rank {rank}")
    return missing


def never_ends(missing: Mapping[str, Sequence[str]], running: Sequence[str]) -> bool:
    """Return whether a collective lacks a rank that no longer runs, or whether all that run wait in collectives.

    Example:
        >>> never_ends({"mean": ["rank 0"]}, ["rank 0", "rank 1"]), never_ends({"mean": ["rank 0"]}, ["rank 1"])
        (False, True)
        >>> never_ends({"mean": ["rank 0"], "gather": ["rank 1"]}, ["rank 0", "rank 1"])
        True
    """
    lacks_one_that_ended = any(set(ranks) - set(running) for ranks in missing.values())
    all_wait = all(any(name not in ranks for ranks in missing.values()) for name in running)
    return lacks_one_that_ended or all_wait


def described(missing: Mapping[str, Sequence[str]], names: Sequence[str], running: Sequence[str]) -> list[str]:
    """Return sentences that say who waits for whom; ``names`` are all processes of the call, ``running`` some of them.

    They contain the last parts of the collectives' names, or the full names if several have the same last part.

    Example:
        >>> names = ["rank 0", "rank 1", "rank 2"]
        >>> described({"cond/mean": ["rank 0"], "gather": ["rank 0"]}, names, names[1:])
        ['rank 0 has returned, but rank 1 and rank 2 still wait for it in mean, gather']
    """
    groups, last_parts = {}, Counter(collective.rpartition("/")[2] for collective in missing)
    for collective, ranks in missing.items():
        ended = [name for name in ranks if name not in running]
        waiting = [name for name in running if name not in ranks]
        last_part = collective.rpartition("/")[2]
        shown = last_part if last_parts[last_part] == 1 else collective
        groups.setdefault((tuple(waiting), tuple(ended), tuple(ranks)), []).append(shown)
    sentences = []
    for (waiting, ended, ranks), collectives in groups.items():
        where = f"in {', '.join(collectives)}"
        who = f"{' and '.join(waiting)} {{}}{'waits' if len(waiting) == 1 else 'wait'} for"
        if ended:
            gone = " and ".join(f"{name} {'has returned' if name in names else 'does not take part'}" for name in ended)
            sentences.append(f"{gone}, but {who.format('still ')} {'it' if len(ended) == 1 else 'them'} {where}")
        else:
            sentences.append(f"{who.format('')} {' and '.join(ranks)} {where}")
    return sentences


class Waits:
    """Waits of the processes ``names`` of a call.

    ``read_log`` returns the new part of their log, and ``lost`` the names of dead processes that may be restarted.
    """

    def __init__(self, names: Sequence[str], read_log: Callable[[], str], lost: Callable[[], list[str]]):
        self.names, self._read_log, self._lost = names, read_log, lost
        self._looked = self._reported = 0.0
        self._said, self._running = set(), set(names)
        self.skip()

    def skip(self) -> None:
        """Start again after a pause in which the processes may have waited for this one."""
        self._read_log()
        self._missing, self._returned_since, self._lost_since, self._hopeless_since = {}, None, None, None

    def look(self, running: Sequence[str]) -> str | None:
        """Print new waits; return a description once they have waited too long for something that cannot happen."""
        now = time.monotonic()
        if now < self._looked + SECONDS_BETWEEN_LOOKS:
            return None
        self._looked = now
        report = last_report(self._read_log())
        if report is not None:
            self._missing, self._reported = report, now
        elif now > self._reported + SECONDS_TO_EXPIRE:
            self._missing = {}
        # A rank may have returned after the report, from this very collective. If others wait for it, a report follows.
        ended, self._running = self._running - set(running), set(running)
        self._missing = {name: ranks for name, ranks in self._missing.items() if not ended & set(ranks)}
        waits = described(self._missing, self.names, running)
        returned = [name for name in self.names if name not in running]
        self._returned_since = (self._returned_since or now) if returned else None
        if returned and now > self._returned_since + SECONDS_BEFORE_NOTICE and not waits:
            self._say(f"returned: {', '.join(returned)}; still running: {', '.join(running)}")
        lost = self._lost()
        self._lost_since = (self._lost_since or now) if lost else None
        if lost and now > self._lost_since + SECONDS_BEFORE_NOTICE:
            who = f"{', '.join(lost)} died; still running: {', '.join(running)}"
            self._say(f"{who}. restart_worker() starts a worker again")
        for wait in waits:
            self._say(wait)
        hopeless = bool(waits) and never_ends(self._missing, running)
        self._hopeless_since = (self._hopeless_since or now) if hopeless else None
        return "; ".join(waits) if hopeless and now > self._hopeless_since + SECONDS_HOPELESS else None

    def _say(self, text):
        if text not in self._said:
            self._said.add(text)
            print(text, flush=True)
