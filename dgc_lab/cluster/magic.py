"""Magics ``%%px`` and ``%%rank``, which run a notebook cell on all ranks or on some; ``%px`` runs one line.

Each rank keeps the variables of its cells. It does not have the notebook's own variables; `HorovodRanks.run` sends them
along.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import re
import signal
import sys
import threading
import weakref

from dgc_lab.cluster.calls import RankFailed
from dgc_lab.cluster.rank import STOP_SIGNAL, listen_for_stop, request_stop, stop_requested
from dgc_lab.common import LabError

# Held while a process sends a message to the notebook, so that an interrupt cannot cut it off.
SEND_LOCK = threading.Lock()


class CellFailed(RankFailed):
    """Error raised if a cell failed on a rank; the notebook shows the ranks' tracebacks and ``after``, not its own."""

    def _render_traceback_(self) -> list[str]:  # called by IPython
        ranks = {}
        for rank, problem in self.problems.items():
            ranks.setdefault(problem.trace, []).append(f"rank {rank}")
        shown = [f"[{', '.join(who)}] {trace}" for trace, who in ranks.items()] + [self.after] * bool(self.after)
        return shown or [str(self)]


def register(shell, ranks) -> None:
    """Register magics that run cells on these ranks; they hold only a weak reference to the ranks."""
    known = weakref.ref(ranks)

    def run(source, numbers=None):
        if (there := known()) is None:
            raise LabError("the ranks are gone. HorovodRanks(2).start() starts new ones")
        there.run_cell(source, numbers)

    def px(line, cell=None):
        """Run a cell on all ranks; on one with ``%%px --rank 1``, on several with ``%%px --rank 0,2``."""
        if cell is None:
            return run(line)
        if not line.strip():
            return run(cell)
        option, _, numbers = line.strip().replace("=", " ").partition(" ")
        if option not in ("--rank", "--ranks"):
            raise ValueError(f"%%px takes --rank and numbers, as in %%px --rank 1 or %%px --rank 0,2, got {line!r}")
        return rank(numbers, cell)

    def rank(line, cell):
        """Run a cell on one rank, as in ``%%rank 1``, or on several, as in ``%%rank 0,2``."""
        if not re.fullmatch(r"\[?\s*\d+([\s,]+\d+)*\s*\]?", line.strip()):
            raise ValueError(f"%%rank takes rank numbers, as in %%rank 1 or %%rank 0,2, got {line!r}")
        run(cell, sorted({int(number) for number in re.findall(r"\d+", line)}))

    shell.register_magic_function(px, "line_cell")
    shell.register_magic_function(rank, "cell")


def run_cell(source: str, name: str) -> None:
    """Run a cell in this process's ``__main__`` and print its last value; called on the ranks."""
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name  # for tracebacks and AutoGraph
    tree, last = ast.parse(source, name), None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    variables = vars(sys.modules["__main__"])
    signal.signal(STOP_SIGNAL, _interrupt)
    try:
        with contextlib.redirect_stderr(sys.stdout):
            exec(compile(tree, name, "exec", dont_inherit=True), variables)  # without this file's __future__
            value = eval(compile(last, name, "eval", dont_inherit=True), variables) if last else None
            if value is not None:
                print(repr(value))
    finally:
        listen_for_stop()


def _interrupt(*_):
    request_stop()
    if not SEND_LOCK.locked():
        raise_if_interrupted()


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt, once, in an interrupted cell; also called after a message, which must not be cut off."""
    of_a_cell = threading.current_thread() is threading.main_thread() and signal.getsignal(STOP_SIGNAL) is _interrupt
    if of_a_cell and stop_requested():
        listen_for_stop()
        raise KeyboardInterrupt
