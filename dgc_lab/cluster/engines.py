"""Ranks on the user's own cluster (Slurm, PBS, ssh): ipyparallel engines, and function calls on them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping

import cloudpickle

from dgc_lab.cluster.calls import Call, RankDied, RankFailed
from dgc_lab.cluster.processes import Processes, run_in_thread
from dgc_lab.cluster.rank import CallResult, RemoteError, items_of, outcome_of, request_stop, run_function
from dgc_lab.common import LabError

SECONDS_BETWEEN_POLLS = 0.05
SECONDS_BETWEEN_BATCHES = 0.04
BATCHES_PER_POLL = 10


class UserEngines(Processes):
    """Engines of the user: of a cluster, which is started and stopped, or of a client, whose engines keep running."""

    what, died, failed = "ranks", RankDied, RankFailed

    def __init__(self, size: int, cluster=None, client=None):
        self._size, self._cluster, self._user_client = size, cluster, client
        self._launched = False  # whether there is a cluster to stop; it may exist without a client
        self.client, self.ids = None, {}  # engine numbers in the client, by rank name
        self.lost = set()  # ranks that died according to their call, which may report it before `client.ids` does

    def start(self, deadline: float, say: Callable[[str], None]) -> None:
        """Start the cluster, if one was given, and wait for its engines until the deadline."""
        if self._cluster is not None:
            say("starting the cluster")
            self._launched = True
            run_in_thread(lambda: self._cluster.start_cluster_sync(n=self._size))
            left = max(10, deadline - time.monotonic())  # ipyparallel's default is ten seconds
            self.client = run_in_thread(lambda: self._cluster.connect_client_sync(timeout=left))
        elif len(self._user_client.ids) < self._size:
            raise LabError(f"client must have at least {self._size} engines, got {len(self._user_client.ids)}")
        else:
            self.client = self._user_client
        said = None
        while (here := len(self.client.ids)) < self._size:
            if here != said:
                say(f"starting engines: {here} of {self._size}")
                said = here
            if time.monotonic() > deadline:
                raise LabError(f"only {here} of {self._size} engines had started when the time limit passed")
            time.sleep(SECONDS_BETWEEN_POLLS)
        self.ids = {f"rank {rank}": number for rank, number in enumerate(sorted(self.client.ids)[: self._size])}

    @property
    def closed(self) -> bool:
        return self.client is None

    def dead(self) -> list[str]:
        """Return the ranks whose engine is gone according to ipyparallel's nanny, a process alongside each engine."""
        alive = self.client.ids if self.client else self.ids.values()
        return [rank for rank, number in self.ids.items() if number not in alive or rank in self.lost]

    def signal(self, number: int) -> None:
        alive = set(self.ids.values()) & set(self.client.ids) if self.client else ()
        if alive:
            self.client.send_signal(int(number), targets=sorted(alive), block=False)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Stop the cluster if `start` started it; may be called more than once."""
        if self._launched:
            if self.client is not None:
                self.client.close(linger=0)
            run_in_thread(self._cluster.stop_cluster_sync)
        self.client, self.ids, self._launched = None, {}, False

    def call(self, payloads: Mapping[str, tuple[bytes, bool]], grace: float) -> EngineCall:
        return EngineCall(self, payloads, grace)


class EngineCall(Call):
    """A function call on engines; the arguments are those of `Processes.call`."""

    def __init__(self, engines: UserEngines, payloads: Mapping[str, tuple[bytes, bool]], grace: float):
        super().__init__(engines, list(payloads), grace)
        self._results = [
            engines.client[engines.ids[name]].apply_async(
                outcome_of, payload, publish_items if yields else run_function
            )
            for name, (payload, yields) in payloads.items()
        ]
        self._metadata = [engines.client.metadata[result.msg_ids[0]] for result in self._results]
        self._taken = 0

    def finished(self) -> bool:
        for number, result in enumerate(self._results):
            if number not in self.outcomes and result.ready():
                try:
                    self.outcomes[number] = cloudpickle.loads(result.get(0))
                except Exception as error:  # ipyparallel's: the engine died, or cannot import dgc_lab
                    kind = getattr(error, "ename", type(error).__name__)
                    if kind == "EngineError":
                        self.processes.lost.add(self.names[number])
                    self.outcomes[number] = CallResult(problem=RemoteError(kind, str(error), str(error)))
        return len(self.outcomes) == len(self._results)

    def end(self) -> None:
        """Print the function's output, and make ipyparallel drop the results, which it would keep forever."""
        client = self.processes.client
        if self.finished() and not self.processes.broken and client:
            for name, result, metadata in zip(self.names, self._results, self._metadata, strict=True):
                result.wait_for_output(1)
                for line in (metadata["stdout"] or "").splitlines():
                    print(f"[{name}] {line}")
            client.purge_local_results([number for result in self._results for number in result.msg_ids])

    def _items(self):
        # ipyparallel's own thread adds batches. Limit their number, as they may arrive faster than they are consumed.
        for _ in range(BATCHES_PER_POLL):
            if (batch := self._metadata[0]["data"].pop(f"batch {self._taken}", None)) is None:
                return
            self._taken += 1
            yield from cloudpickle.loads(batch)

    def _missing(self):
        return self.outcomes[0].batches - self._taken

    def _wait(self, seconds):
        # All may have ended by now, because request_stop polls from another thread.
        running = (result for number, result in enumerate(self._results) if number not in self.outcomes)
        next(running, self._results[0]).wait(seconds)


def publish_items(outcome: CallResult, function: Callable, args: tuple, kwargs: dict) -> None:
    """Publish a generator function's items from a thread, 25 times a second; `outcome_of` calls this in an engine.

    Items are sent in batches, because a message takes about a millisecond and a rank may yield thousands of items a
    second.
    """
    from ipyparallel.engine.datapub import publish_data

    waiting, ended, errors = [], threading.Event(), []

    def publish():
        last = False
        try:
            while not last:
                last = ended.wait(SECONDS_BETWEEN_BATCHES)
                # Only the training thread appends, and only at the end, so the first items can be taken without a lock.
                if batch := waiting[:]:
                    publish_data({f"batch {outcome.batches}": cloudpickle.dumps(batch)})
                    del waiting[: len(batch)]
                    outcome.batches += 1
        except Exception as error:
            errors.append(error)
            request_stop()  # the training loop passes this on to the other ranks, like any stop

    items = items_of(function, args, kwargs)
    thread = threading.Thread(target=publish, name="publisher", daemon=True)
    thread.start()
    try:
        for item in items:
            waiting.append(item)  # one by one, so that the other thread can take each at once
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]
