"""Horovod ranks alongside the notebook, joined into one Horovod job and kept warm.

They are forked from one process on this machine. `dgc_lab.cluster.rank` runs inside them.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Callable, Iterable

from dgc_lab.cluster import magic, private_network
from dgc_lab.cluster import rank as rank_side
from dgc_lab.cluster.base import Cluster, show_line
from dgc_lab.cluster.calls import RankDied, RankFailed
from dgc_lab.cluster.process_group import ProcessGroup
from dgc_lab.cluster.stalls import stall_variables
from dgc_lab.common import LabError, check_list, check_whole
from dgc_lab.install.build_horovod import require_horovod
from dgc_lab.install.launch_env import (
    LOOPBACK,
    cores,
    gloo_variables,
    rank_variables,
    rendezvous_variables,
    thread_variables,
)

MODULES = ("horovod.tensorflow", "horovod.runner.http.http_server", "keras")  # imported once, for all ranks


class HorovodRanks(Cluster):
    """Horovod ranks that stay warm alongside the notebook.

    Args:
        size: number of ranks, from 1 to 4 096; more ranks than cores cause a warning.
        timeout: time limit for a start in seconds, above 0.
        grace: seconds for ranks to stop on request, or to return after another one has raised; at least 0.
        progress: function that receives a line of text at each stage of the start; None for no output.

    Raises:
        ValueError: an argument does not meet the requirements above.

    Example:
        >>> with HorovodRanks(2) as ranks:  # doctest: +SKIP
        ...     ranks.run(lambda x: x + hvd.rank(), 10)
        [10, 11]
    """

    what = "ranks"
    _yielding = ("rank 0",)

    def __init__(
        self,
        size: int = 2,
        *,
        timeout: float = 180,
        grace: float = 5,
        progress: Callable[[str], None] | None = show_line,
    ):
        super().__init__(timeout, grace, progress)
        self.size, self._cells = check_whole("size", size, 1, 4096), 0
        self._callers = [f"rank {rank}" for rank in range(self.size)]

    def run_cell(self, source: str, ranks: Iterable[int] | None = None) -> None:
        """Run a cell on the given ranks, or on all of them, like ``%%px``; each rank keeps its variables."""
        wanted = range(self.size) if ranks is None else check_list("ranks", ranks)
        numbers = sorted({check_whole("rank", rank, 0, self.size - 1) for rank in wanted})
        if not numbers:
            raise ValueError(f"ranks must name at least one of 0 to {self.size - 1}, got none")
        self._cells += 1
        name = f"<px {self._cells}>"
        ast.parse(source, name)
        try:
            self._results(magic.run_cell, {f"rank {number}": (source, name) for number in numbers}, {})
        except RankFailed as error:
            problems = {numbers[index]: problem for index, problem in error.problems.items()}
            raise magic.CellFailed(str(error), problems, error.after) from None

    def _check(self):
        require_horovod()
        if self.size > cores():
            warnings.warn(f"{self.size} ranks share {cores()} cores: expect slow steps", stacklevel=4)
        if reason := private_network.unavailable_reason():
            warnings.warn(
                f"no private network ({reason}): until stop(), other users of this machine can reach the ranks on "
                f"{LOOPBACK}, with no password",
                stacklevel=4,
            )

    def _new_group(self):
        private = private_network.unavailable_reason() is None
        group = ProcessGroup(self.what, thread_variables(self.size), private, MODULES)
        group.died, group.failed = RankDied, RankFailed
        return group

    def _start(self, deadline):
        self._say("importing TensorFlow and Horovod, once for all ranks")
        self._group.start(deadline)
        self._say("starting ranks")
        # Horovod's server has no password, so rank 0 runs it in the ranks' own network.
        first = dict.fromkeys(self._callers, int) | {self._callers[0]: rank_side.serve_rendezvous}
        port, *_ = self._group.add(first, deadline, vital=self._callers)
        self._group.finish_adding()
        self._say("ranks join Horovod")
        common = rendezvous_variables(port) | stall_variables() | gloo_variables(self.timeout)
        arguments = [(variables | common,) for variables in rank_variables([LOOPBACK] * self.size)]
        try:
            gpus = max(self._results(rank_side.join, dict(zip(self._callers, arguments, strict=True)), {}, deadline))
        except LabError as error:
            if self.size <= cores() or isinstance(error, RankFailed):
                raise
            what = re.split(r"[;.\n]", str(error))[0]
            raise LabError(
                f"{what}. {self.size} ranks share {cores()} cores: if they had too little time, memory or processes "
                f"to join Horovod, start fewer, or pass a timeout above {self.timeout:g}.\n{self._group.output_tail()}"
            ) from error
        shared = f"; they share {gpus} GPU{'s' * (gpus > 1)} and allocate its memory as needed" if gpus else ""
        if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
            magic.register(shell, self)  # %px, %%px and %%rank
        return f"{self.size} ranks", shared
