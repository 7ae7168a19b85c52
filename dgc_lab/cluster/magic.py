"""``%%px`` and ``%%rank``: a notebook's cell on all ranks, or on some; ``%px`` is for one line.

Each rank keeps what its cells define. The notebook's own variables are not there: `HorovodRanks.run` takes them along.
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

# Held while a process sends a message to the notebook: an interrupt must not tear it apart.
TELLING = threading.Lock()


class CellFailed(RankFailed):
    """A cell raised on a rank. The notebook shows the ranks' tracebacks, not that of the lab, and what came of it."""

    def _render_traceback_(self) -> list[str]:  # IPython asks for it
        ranks = {}
        for rank, problem in self.problems.items():
            ranks.setdefault(problem.trace, []).append(f"rank {rank}")
        shown = [f"[{', '.join(who)}] {trace}" for trace, who in ranks.items()] + [self.after] * bool(self.after)
        return shown or [str(self)]


def register(shell, ranks) -> None:
    """Make the magics of IPython's shell run cells on these ranks, for as long as somebody else holds them."""
    known = weakref.ref(ranks)

    def run(source, numbers=None):
        if (there := known()) is None:
            raise LabError("the ranks are gone. HorovodRanks(2).start() starts new ones")
        there.run_cell(source, numbers)

    def px(line, cell=None):
        """A cell on all ranks; ``%%px --rank 1`` on one, ``%%px --rank 0,2`` on several."""
        if cell is None:
            return run(line)
        if not line.strip():
            return run(cell)
        option, _, numbers = line.strip().replace("=", " ").partition(" ")
        if option not in ("--rank", "--ranks"):
            raise ValueError(f"%%px takes --rank and numbers, as %%px --rank 1 or %%px --rank 0,2, got {line!r}")
        return rank(numbers, cell)

    def rank(line, cell):
        """A cell on one rank, ``%%rank 1``, or on several, ``%%rank 0,2``."""
        if not re.fullmatch(r"\[?\s*\d+([\s,]+\d+)*\s*\]?", line.strip()):
            raise ValueError(f"%%rank takes numbers of ranks, as %%rank 1 or %%rank 0,2, got {line!r}")
        run(cell, sorted({int(number) for number in re.findall(r"\d+", line)}))

    shell.register_magic_function(px, "line_cell")
    shell.register_magic_function(rank, "cell")


def run_cell(source: str, name: str) -> None:
    """Run a cell in this process's ``__main__``, and print its last value; runs in the ranks."""
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name  # for tracebacks and AutoGraph
    tree, last = ast.parse(source, name), None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    variables = vars(sys.modules["__main__"])
    signal.signal(STOP_SIGNAL, _interrupt)
    try:
        with contextlib.redirect_stderr(sys.stdout):
            exec(compile(tree, name, "exec", dont_inherit=True), variables)  # else with this file's __future__
            value = eval(compile(last, name, "eval", dont_inherit=True), variables) if last else None
            if value is not None:
                print(repr(value))
    finally:
        listen_for_stop()


def _interrupt(*_):
    request_stop()
    if not TELLING.locked():
        raise_if_interrupted()


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt, once, in a cell that was interrupted; also after a message that it must not tear."""
    of_a_cell = threading.current_thread() is threading.main_thread() and signal.getsignal(STOP_SIGNAL) is _interrupt
    if of_a_cell and stop_requested():
        listen_for_stop()
        raise KeyboardInterrupt
