"""One of the two Horovod ranks of ``bench_link.py``: trains on request, and reports the times of the steps.

Requests and answers are lines of JSON on standard input and output (`two_hosts.TwoHosts`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
from pathlib import Path
from queue import Queue

from dgc_lab.install.launch_env import rendezvous, rendezvous_variables
from two_hosts import ADDRESSES, DEVICE

EVERYTHING = 2**31  # no tensor has as many elements, so all are sent uncompressed
WHOLE = {"dense_below": EVERYTHING}
MASKING = {"dense_below": 0, "accumulate": False, "momentum_correction": False, "factor_masking": False}
SETTINGS = {
    "no exchange": WHOLE,
    "dense": WHOLE,
    "float16": WHOLE,
    "masking": {**MASKING, "dense_vectors": False},
    "DGC": {},
}
SMALL = 5000  # images: enough for different batches in every step, and fast to load


def sent_bytes() -> int:
    """Return the bytes that this host has sent over the link, as in ``/sys/class/net/link0/statistics/tx_bytes``."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == DEVICE:
            return int(numbers.split()[8])
    raise LookupError(f"there is no network device {DEVICE}")


def orders():
    """Yield the requests one by one; end the process at once when standard input is closed."""
    waiting = Queue()

    def listen():
        for line in sys.stdin:
            waiting.put(json.loads(line))
        os._exit(0)  # the main thread may be in a collective that never ends

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield waiting.get()


class Ranks:
    """This rank's trainers, one for each kind of step, so that no step is traced twice."""

    def __init__(self, dataset: str, batch: int):
        from dgc_lab.training import steps_at_once
        from dgc_lab.workloads.data import load

        steps_at_once.SECONDS = 0.0  # one step per call, so that each has its own time and bytes
        self.base = {"dataset": dataset, "batch": batch, "steps": 10**6, "learning_rate": 0.001, "evaluations": 1}
        whole = load(dataset)
        parts = {name: getattr(whole, name)[:SMALL] for name in ("x_train", "y_train", "x_test", "y_test")}
        self.data, self.trainers = dataclasses.replace(whole, **parts), {}

    def trainer(self, method, values, indices, alone):
        from dgc_lab.distributed.communicators import HorovodWorkers, OneWorker
        from dgc_lab.training.distributed_trainer import DistributedConfig, DistributedTrainer

        key = method, values, indices, alone
        if key not in self.trainers:
            communicator = OneWorker() if alone else half_workers() if method == "float16" else HorovodWorkers()
            switches = {"workers": communicator.size, "values": values, "indices": indices, **SETTINGS[method]}
            self.trainers[key] = DistributedTrainer(DistributedConfig(**self.base, **switches), communicator, self.data)
        return self.trainers[key]

    def train(self, method, ratio, values, indices, alone, steps, warm_up):
        """Return the milliseconds of each step after the warm-up, and the bytes per step: on the link, and payload."""
        events = self.trainer(method, values, indices, alone).run(ratio)
        last = [next(events) for _ in range(warm_up)][-1]
        before, times, payload_bytes = sent_bytes(), [], 0
        for _ in range(steps):
            event = next(events)
            times.append(1000 * (event.seconds - last.seconds))
            payload_bytes += event.bytes_sent
            last = event
        sent = sent_bytes() - before
        events.close()
        return {"ms": times, "wire_bytes": sent / steps, "payload_bytes": payload_bytes / steps, "loss": last.loss}


def half_workers():
    """Return workers that use Horovod's own compression, which sums gradients in 16 bits."""
    import tensorflow as tf

    from dgc_lab.distributed.communicators import HorovodWorkers

    class HalfWorkers(HorovodWorkers):
        @tf.autograph.experimental.do_not_convert  # it fails on Horovod's class of that name
        def allreduce(self, groups, name=None):
            half = self.hvd.Compression.fp16
            return self.hvd.grouped_allreduce(groups[0], op=self.hvd.Sum, name=name, compression=half)

    return HalfWorkers()


def main():
    answers, sys.stdout = sys.stdout, sys.stderr  # other output must not be mistaken for an answer
    waiting = orders()
    with contextlib.ExitStack() as stack:
        first = os.environ["HOROVOD_RANK"] == "0"
        hello = {"port": stack.enter_context(rendezvous(ADDRESSES[0]))} if first else {}
        print(json.dumps(hello), file=answers, flush=True)
        start = next(waiting)
        os.environ.update(rendezvous_variables(start["port"], ADDRESSES[0], DEVICE))
        import horovod.tensorflow as hvd

        hvd.init()
        ranks = Ranks(start["dataset"], start["batch"])
        print(json.dumps({"ranks": hvd.size()}), file=answers, flush=True)
        for order in waiting:
            print(json.dumps(ranks.train(**order)), file=answers, flush=True)


if __name__ == "__main__":
    main()
