"""The coordinator's part of a training run: threads that schedule batches on workers, and detection of dead workers."""

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

SECONDS_BETWEEN_CHECKS = 0.2
SECONDS_FOR_LAST_GRADIENTS = 8  # less than the grace of a stop


class Dispatcher:
    """Threads of the coordinator that schedule batches on workers, one at a time each, and collect the results.

    Batch n consists of the ``examples`` at ``positions[n]``. Of ``batches``, the numbers to schedule, ``left`` are not
    finished. A record is held back until the update that includes its gradient has been made.

    At first, each worker runs a rehearsal while the others wait. If two workers met a function at the same time,
    TensorFlow 2.21 could crash: one thread lengthens the vector of functions known to workers while another uses a
    pointer into it, without a lock (``EagerClusterFunctionLibraryRuntime::Run``).
    """

    def __init__(self, coordinator, model: ParameterServerModel, step, examples, positions, batches):
        self._coordinator, self._model, self._step = coordinator, model, step
        self._examples, self._positions = examples, positions
        self.left, self._next = len(batches), iter(batches)
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._results, self._threads = queue.Queue(), []
        self._unrehearsed = set(range(model.workers))
        self._held = {}  # records by the number of their update
        self._processes = roles.worker_processes()

    def start(self, number: int) -> None:
        """Start ``number`` threads."""
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def events(self) -> Iterator[GradientEvent | int]:
        """Yield records of batches and numbers of dead workers, until all batches are finished or on a stop request."""
        last_check = time.monotonic()
        while self.left and not stop_requested():
            try:
                records = self._next_records(SECONDS_BETWEEN_CHECKS)
            except queue.Empty:
                if not self._working() and self._results.empty():
                    message = f"{self.left} batches were returned without a gradient, and no thread works on them"
                    raise LabError(message) from None
            else:
                yield from records
            if time.monotonic() - last_check > SECONDS_BETWEEN_CHECKS:
                yield from self._new_deaths()
                last_check = time.monotonic()

    def stop(self) -> None:
        """Schedule no more batches, and wait for those in flight."""
        self._stopping.set()
        self._model.stopped.assign(True)
        end, workers = time.monotonic() + SECONDS_FOR_LAST_GRADIENTS, roles.number_of("worker")
        while self._working() and time.monotonic() < end:
            if len(roles.dead_workers()) == workers:
                return  # no worker is left to finish them
            time.sleep(0.01)

    def remaining_events(self) -> Iterator[GradientEvent]:
        """Yield the records of batches that were in flight when the training was stopped."""
        while not self._results.empty():
            yield from self._next_records()
        if not self.left:  # no further gradient can complete the last update
            for records in self._held.values():
                yield from (dataclasses.replace(record, update=DROPPED) for record in records)

    def _working(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _new_deaths(self) -> list[int]:
        """Return the numbers of workers that died since the last check, even if they were restarted.

        Raises LabError if the schedule cannot continue without the dead workers.
        """
        before, self._processes = self._processes, roles.worker_processes()
        dead = [n for n, now in enumerate(self._processes) if now is None or before[n] not in (None, now)]
        schedule = self._model.schedule
        spare = {"asynchronous": self._model.workers - 1, "backup workers": schedule.backup}.get(schedule.mode, 0)
        if len(dead) > spare:
            names = " and ".join(f"worker {number}" for number in dead)
            them = "it" if len(dead) == 1 else "them"
            raise LabError(
                f"{names} died, and {schedule.mode} training cannot continue without {them}: the others are waiting. "
                f"restart_worker() restarts {them}; a checkpoint saves the weights"
            )
        return [number for number in dead if before[number]]

    def _next_records(self, timeout: float | None = None) -> list[GradientEvent]:
        """Wait for one batch, and return the records it releases: those of a complete update, or a dropped one."""
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
                with self._lock:  # so that batches are scheduled in order
                    number = next(self._next, None)
                    if number is None or self._stopping.is_set():
                        return
                    fetch = self._schedule(number, self._positions[number])
                worker, *times, version, update, loss = fetch()
                if update != NOT_YET:
                    self._results.put(GradientEvent(int(worker), int(number), *times, int(version), int(update), loss))
        except Exception as error:  # raised by `_next_records`, in the thread that reads the events
            self._results.put(error)

    def _rehearse(self):
        """Let each live worker, one after the other, run a step that is not counted."""
        while self.left and self._unrehearsed - set(roles.dead_workers()) and not self._stopping.is_set():
            worker, *_ = self._schedule(REHEARSAL, self._positions[0])()
            self._unrehearsed.discard(int(worker))

    def _schedule(self, number, positions):
        """Schedule a batch, and return a function that waits for the step's result."""
        # Convert arrays to tensors in this process; the worker would convert them one by one.
        batch = [tf.constant(array[positions]) for array in self._examples]
        start = functools.partial(self._coordinator.schedule, self._step, args=(tf.constant(number, tf.int64), *batch))
        result = start()

        def fetch():
            nonlocal result
            while True:
                try:
                    return np.asarray(result.fetch()).tolist()
                except (tf.errors.UnavailableError, tf.errors.AbortedError):
                    # The worker died after the batch and before it reported. The servers accept no batch twice.
                    result = start()

        return fetch
