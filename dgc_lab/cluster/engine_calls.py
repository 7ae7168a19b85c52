"""A function's way through ipyparallel's engines."""

from __future__ import annotations

from collections.abc import Callable

import cloudpickle

from dgc_lab.cluster.calls import Call, FunctionFailed
from dgc_lab.cluster.engines import Engines
from dgc_lab.cluster.rank import CallResult, RemoteError


class RankFailed(FunctionFailed):
    """A function raised on a rank, or the ranks did not do what they were asked to.

    Attributes:
        problems: by rank, the `dgc_lab.cluster.rank.RemoteError` with the exception's class, message and traceback.
    """


class EngineCall(Call):
    """A function on its way through all ranks.

    Args:
        engines: where it runs.
        how: `dgc_lab.cluster.rank.call` or `dgc_lab.cluster.rank.stream`.
        payloads: one per rank, cloudpickle of ``(function, args, kwargs)``.
        grace: as in `Call`.
    """

    failed = RankFailed

    def __init__(self, engines: Engines, how: Callable, payloads: list[bytes], grace: float):
        super().__init__(engines, [f"rank {rank}" for rank in range(len(payloads))], grace)
        views = [engines.client[number] for number in engines.ids]
        self._results = [view.apply_async(how, payload) for view, payload in zip(views, payloads, strict=True)]
        self._news = [engines.client.metadata[result.msg_ids[0]] for result in self._results]
        self._taken = 0

    def finished(self) -> bool:
        for rank, result in enumerate(self._results):
            if rank not in self.outcomes and result.ready():
                try:
                    self.outcomes[rank] = cloudpickle.loads(result.get(0))
                except Exception as error:  # of ipyparallel: the engine died, or cannot import dgc_lab
                    kind = getattr(error, "ename", type(error).__name__)
                    if kind == "EngineError":
                        self.processes.lost.add(rank)
                    self.outcomes[rank] = CallResult(problem=RemoteError(kind, str(error), str(error)))
        return len(self.outcomes) == len(self._results)

    def end(self) -> None:
        """Print what the function printed, and let ipyparallel forget it; it would keep the results for ever."""
        client = self.processes.client
        if self.finished() and not self.processes.broken and client:
            for name, result, news in zip(self.names, self._results, self._news, strict=True):
                result.wait_for_output(1)
                for line in (news["stdout"] or "").splitlines():
                    print(f"[{name}] {line}")
            client.purge_local_results([number for result in self._results for number in result.msg_ids])

    def _items(self):
        # ipyparallel's own thread adds batches, this one takes them in turn.
        while (batch := self._news[0]["data"].pop(f"batch {self._taken}", None)) is not None:
            self._taken += 1
            yield from cloudpickle.loads(batch)

    def _missing(self):
        return self.outcomes[0].batches - self._taken

    def _wait(self, seconds):
        # All may have ended by now: another thread, in request_stop, looks too.
        running = (result for rank, result in enumerate(self._results) if rank not in self.outcomes)
        next(running, self._results[0]).wait(seconds)
