"""The coordinator's side of a training: threads that hand batches to workers, and a watch over workers that die."""

from __future__ import annotations

import dataclasses
import functools
import queue
import threading
import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from dgc_lab.cluster import stop_requested
from dgc_lab.cluster import tensorflow_roles as roles
from dgc_lab.common import LabError
from dgc_lab.parameter_server.schedule import DROPPED, NOT_YET, GradientEvent
from dgc_lab.parameter_server.server import REHEARSAL, ParameterServerModel

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_FOR_LAST_GRADIENTS = 8  # less than the grace of a stop


class Dispatcher:
    """Threads of the coordinator that hand out batches, one at a time each, and take what became of them.

    Batch n is cut from the arrays ``examples`` at ``places[n]``; ``left`` of ``batches``, the numbers to hand out, have
    not been worked off. A record is held back until the update is made that its gradient is in.

    First each worker rehearses, and the others wait: where two meet a function at once, TensorFlow 2.21 can crash. One
    thread lengthens the vector of functions known to workers while another uses a pointer into it, with no lock
    (``EagerClusterFunctionLibraryRuntime::Run``).
    """

    def __init__(self, coordinator, model: ParameterServerModel, step, examples, places, batches):
        self._coordinator, self._model, self._step = coordinator, model, step
        self._examples, self._places = examples, places
        self.left, self._next = len(batches), iter(batches)
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._results, self._threads = queue.Queue(), []
        self._new = set(range(model.workers))  # those that have not done the step
        self._held = {}  # records by the number of their update
        self._processes = roles.worker_processes()

    def start(self, number: int) -> None:
        """Start that many threads."""
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def events(self) -> Iterator[GradientEvent | int]:
        """What became of the batches, and numbers of workers that died, as it comes; until all is done, or a stop."""
        last_look = time.monotonic()
        while self.left and not stop_requested():
            try:
                records = self._next_records(SECONDS_BETWEEN_LOOKS)
            except queue.Empty:
                if not self._working() and self._results.empty():
                    message = f"{self.left} batches came back without a gradient, and nobody works on them"
                    raise LabError(message) from None
            else:
                yield from records
            if time.monotonic() - last_look > SECONDS_BETWEEN_LOOKS:
                yield from self._new_deaths()
                last_look = time.monotonic()

    def stop(self) -> None:
        """Hand out no more batches, and wait for those that are out."""
        self._stopping.set()
        self._model.stopped.assign(True)
        end, workers = time.monotonic() + SECONDS_FOR_LAST_GRADIENTS, roles.number_of("worker")
        while self._working() and time.monotonic() < end:
            if len(roles.dead_workers()) == workers:
                return  # nobody is left to do them
            time.sleep(0.01)

    def rest(self) -> Iterator[GradientEvent]:
        """What became of the batches that were out when the training was stopped."""
        while not self._results.empty():
            yield from self._next_records()
        if not self.left:  # no further gradient comes to make the last update
            for records in self._held.values():
                yield from (dataclasses.replace(record, update=DROPPED) for record in records)

    def _working(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _new_deaths(self) -> list[int]:
        """Numbers of the workers that died since the last look, restarted or not; a LabError where they are needed."""
        before, self._processes = self._processes, roles.worker_processes()
        dead = [n for n, now in enumerate(self._processes) if now is None or before[n] not in (None, now)]
        schedule = self._model.schedule
        spare = {"asynchronous": self._model.workers - 1, "backup workers": schedule.backup}.get(schedule.mode, 0)
        if len(dead) > spare:
            names = " and ".join(f"worker {number}" for number in dead)
            them = "it" if len(dead) == 1 else "them"
            raise LabError(
                f"{names} died, and {schedule.mode} training cannot go on without {them}: the others are waiting. "
                f"restart_worker() brings {them} back, a checkpoint keeps what was learnt"
            )
        return [number for number in dead if before[number]]

    def _next_records(self, timeout: float | None = None) -> list[GradientEvent]:
        """Waits for one batch more; the records that can be told with it: those of a full update, or a dropped one."""
        record = self._results.get(timeout=timeout)
        if isinstance(record, Exception):
            raise record
        self.left -= 1
        if record.update == DROPPED:
            return [record]
        members = self._held.setdefault(record.update, [])
        members.append(record)
        return self._held.pop(record.update) if len(members) == self._model.needed else []

    def _work(self):
        try:
            with self._lock:
                self._rehearse()
            while True:
                with self._lock:  # so that batches go out in order
                    number = next(self._next, None)
                    if number is None or self._stopping.is_set():
                        return
                    outcome = self._hand_out(number, self._places[number])
                worker, *times, version, update, loss = outcome()
                if update != NOT_YET:
                    self._results.put(GradientEvent(int(worker), int(number), *times, int(version), int(update), loss))
        except Exception as error:  # it is raised where the events are read
            self._results.put(error)

    def _rehearse(self):
        """One after the other, let each worker that lives do a step that counts for nothing."""
        while self.left and self._new - set(roles.dead_workers()) and not self._stopping.is_set():
            worker, *_ = self._hand_out(REHEARSAL, self._places[0])()
            self._new.discard(int(worker))

    def _hand_out(self, number, places):
        """Schedule a batch; returns a function that waits for what the step gives."""
        # As tensors of this process: arrays would be made into tensors on the worker, one by one.
        batch = [tf.constant(array[places]) for array in self._examples]
        again = functools.partial(self._coordinator.schedule, self._step, args=(tf.constant(number, tf.int64), *batch))
        result = again()

        def outcome():
            nonlocal result
            while True:
                try:
                    return np.asarray(result.fetch()).tolist()
                except (tf.errors.UnavailableError, tf.errors.AbortedError):
                    # Its worker died when the batch was done and before it could tell. The servers take none twice.
                    result = again()

        return outcome
