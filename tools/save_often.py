"""A plugin of coverage.py's: what was measured is saved twice a second, for the lab ends its processes by SIGKILL.

Nothing can be saved then; ranks, servers and workers would seem to have run nothing. ``pyproject.toml`` names it.
"""

from __future__ import annotations

import os
import threading
import time

SECONDS_BETWEEN_SAVES = 0.5
leave = os._exit


def coverage_init(registry, options) -> None:
    """What coverage.py calls in each process that it measures; after a fork, which has no threads, once more."""
    os._exit = save_and_leave
    threading.Thread(target=save, args=(os.getpid(),), name="coverage", daemon=True).start()


def save_and_leave(status: int) -> None:
    """`os._exit`, after a save.

    Coverage.py's own patch also saves, in a fork, what was its parent's: a thread may have held the lock of that, and
    in the fork nobody is left to give it back.
    """
    import coverage

    try:
        if measured := coverage.Coverage.current():
            measured.save()
    finally:
        leave(status)


def save(process: int) -> None:
    """Save what this process has run whenever that has grown, for as long as it lives."""
    import coverage

    known = 0
    while os.getpid() == process:
        time.sleep(SECONDS_BETWEEN_SAVES)
        measured = coverage.Coverage.current()
        if measured is None or (collector := measured._collector) is None:
            continue
        # It forgets what it has saved, and with it what other threads have run since it began to: it shall keep all.
        collector._clear_data = lambda: None
        run = sum(map(len, list(collector.data.values())))
        if run > known:
            measured.save()
            known = run
