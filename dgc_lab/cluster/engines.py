"""Ranks on a cluster of the user's (Slurm, PBS, ssh): ipyparallel's engines, and a function's way through them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping

import cloudpickle

from dgc_lab.cluster.calls import Call, RankDied, RankFailed
from dgc_lab.cluster.processes import Processes, run_in_thread
from dgc_lab.cluster.rank import CallResult, RemoteError, items_of, outcome_of, plainly, request_stop
from dgc_lab.common import LabError

SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_BETWEEN_BATCHES = 0.04
BATCHES_A_LOOK = 10


class ForeignEngines(Processes):
    """Engines of the user's: of a cluster to start and, in the end, to stop, or of a client, which are left running."""

    what, died, failed = "ranks", RankDied, RankFailed

    def __init__(self, size: int, cluster=None, client=None):
        self._size, self._cluster, self._given = size, cluster, client
        self._launched = False  # whether there is a cluster to stop: it can be there without a client
        self.client, self.ids = None, {}  # by name of the rank, its engine's number in the client
        self.lost = set()  # ranks that died, by the word of their call: it can come before `client.ids` tells

    def start(self, deadline: float, say: Callable[[str], None]) -> None:
        """Start the cluster, where there is one to start, and wait for its engines until the deadline."""
        if self._cluster is not None:
            say("starting the cluster")
            self._launched = True
            run_in_thread(lambda: self._cluster.start_cluster_sync(n=self._size))
            left = max(10, deadline - time.monotonic())  # ipyparallel alone waits for ten seconds
            self.client = run_in_thread(lambda: self._cluster.connect_client_sync(timeout=left))
        elif len(self._given.ids) < self._size:
            raise LabError(f"{self._size} ranks need as many engines, the client has {len(self._given.ids)}")
        else:
            self.client = self._given
        said = None
        while (here := len(self.client.ids)) < self._size:
            if here != said:
                say(f"starting engines: {here} of {self._size}")
                said = here
            if time.monotonic() > deadline:
                raise LabError(f"only {here} of {self._size} engines had started when the time limit passed")
            time.sleep(SECONDS_BETWEEN_LOOKS)
        self.ids = {f"rank {rank}": number for rank, number in enumerate(sorted(self.client.ids)[: self._size])}

    @property
    def closed(self) -> bool:
        return self.client is None

    def dead(self) -> list[str]:
        """Ranks whose engine is gone. ipyparallel's nanny, a process beside each engine, tells."""
        alive = self.client.ids if self.client else self.ids.values()
        return [rank for rank, number in self.ids.items() if number not in alive or rank in self.lost]

    def signal(self, number: int) -> None:
        alive = set(self.ids.values()) & set(self.client.ids) if self.client else ()
        if alive:
            self.client.send_signal(int(number), targets=sorted(alive), block=False)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Stop the cluster if `start` started it. Harmless when called again."""
        if self._launched:
            if self.client is not None:
                self.client.close(linger=0)
            run_in_thread(self._cluster.stop_cluster_sync)
        self.client, self.ids, self._launched = None, {}, False

    def call(self, payloads: Mapping[str, tuple[bytes, bool]], grace: float) -> EngineCall:
        return EngineCall(self, payloads, grace)


class EngineCall(Call):
    """A function on its way through engines; arguments as those of `Processes.call`."""

    def __init__(self, engines: ForeignEngines, payloads: Mapping[str, tuple[bytes, bool]], grace: float):
        super().__init__(engines, list(payloads), grace)
        self._results = [
            engines.client[engines.ids[name]].apply_async(outcome_of, payload, publish_items if yields else plainly)
            for name, (payload, yields) in payloads.items()
        ]
        self._news = [engines.client.metadata[result.msg_ids[0]] for result in self._results]
        self._taken = 0

    def finished(self) -> bool:
        for number, result in enumerate(self._results):
            if number not in self.outcomes and result.ready():
                try:
                    self.outcomes[number] = cloudpickle.loads(result.get(0))
                except Exception as error:  # of ipyparallel: the engine died, or cannot import dgc_lab
                    kind = getattr(error, "ename", type(error).__name__)
                    if kind == "EngineError":
                        self.processes.lost.add(self.names[number])
                    self.outcomes[number] = CallResult(problem=RemoteError(kind, str(error), str(error)))
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
        # ipyparallel's own thread adds batches, this one takes some in turn: they can come faster than they are read.
        for _ in range(BATCHES_A_LOOK):
            if (batch := self._news[0]["data"].pop(f"batch {self._taken}", None)) is None:
                return
            self._taken += 1
            yield from cloudpickle.loads(batch)

    def _missing(self):
        return self.outcomes[0].batches - self._taken

    def _wait(self, seconds):
        # All may have ended by now: another thread, in request_stop, looks too.
        running = (result for number, result in enumerate(self._results) if number not in self.outcomes)
        next(running, self._results[0]).wait(seconds)


def publish_items(outcome: CallResult, function: Callable, args: tuple, kwargs: dict) -> None:
    """Publish what a generator function yields, 25 times a second, from a thread; runs in an engine, by `outcome_of`.

    A batch at a time, because a message costs about a millisecond, and a rank may yield thousands of items a second.
    """
    from ipyparallel.engine.datapub import publish_data

    waiting, ended, errors = [], threading.Event(), []

    def publish():
        last = False
        try:
            while not last:
                last = ended.wait(SECONDS_BETWEEN_BATCHES)
                # Only the training thread appends, and only at the end: the first items can be taken without a lock.
                if batch := waiting[:]:
                    publish_data({f"batch {outcome.batches}": cloudpickle.dumps(batch)})
                    del waiting[: len(batch)]
                    outcome.batches += 1
        except Exception as error:
            errors.append(error)
            request_stop()  # the training loop takes this to the other ranks as it takes a stop

    items = items_of(function, args, kwargs)
    thread = threading.Thread(target=publish, name="publisher", daemon=True)
    thread.start()
    try:
        for item in items:
            waiting.append(item)  # one by one: the other thread takes each as it comes
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]
