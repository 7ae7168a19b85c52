"""Steps of `dgc_lab.scaling.overlap` on a Horovod rank: the network, the exchanges by bucket, and their moments."""

from __future__ import annotations

import re
import statistics
import time

import tensorflow as tf

from dgc_lab.common import LabError
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.distributed.communicators import HorovodWorkers
from dgc_lab.distributed.sockets import bytes_sent

LAYERS, WIDTH = 48, 256  # 48 gradients of 256 KiB, 12 MiB in all
SIZES = [4 * WIDTH**2] * LAYERS  # bytes of the gradients
THREADS = 2  # for operations: a single thread starts exchanges only after the backward pass
WARM_UP = 2


def use_two_threads() -> None:
    """Let TensorFlow run two operations at a time; a single thread would delay all exchanges to the end."""
    try:
        tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    except RuntimeError as error:
        what = f"TensorFlow has already started with another number of threads ({error})"
        raise LabError(f"{what}: restart the ranks") from error


def step_of(plan, buckets: list[list[int]], batch: int, workers: HorovodWorkers):
    """Return a function that runs a step and returns its moments: start, forward, then each gradient and bucket."""
    scale = (2 / WIDTH) ** 0.5
    weights = [tf.Variable(scale * tf.random.stateless_normal([WIDTH, WIDTH], (0, i))) for i in range(LAYERS)]
    x = tf.random.stateless_normal([batch, WIDTH], (1, workers.first))
    backwards = weights[::-1]  # the last layer's gradient is computed first
    exchanges = [exchange_of(plan, number, [backwards[i] for i in own], workers) for number, own in enumerate(buckets)]

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            hidden = x
            for weight in weights:
                hidden = tf.nn.relu(hidden @ weight)
            loss = tf.reduce_mean(hidden**2)
        gradients = tape.gradient(loss, backwards)
        means, done = list(gradients), []
        for members, exchange in zip(buckets, exchanges, strict=True):
            answers = exchange([gradients[i] for i in members])
            done.append(moment_of(answers[-1]))
            for i, answer in zip(members, answers, strict=True):
                means[i] = answer
        for weight, mean in zip(backwards, means, strict=True):
            weight.assign_sub(1e-6 * mean)
        return tf.stack([moment_of(loss), *map(moment_of, gradients), *done])

    def timed():
        start = 1000 * time.perf_counter()
        forward, *others = (1000 * step().numpy()).tolist()
        ready, done = others[:LAYERS], others[LAYERS:]
        return {
            "forward": round(forward - start, 2),
            "gradients": [round(moment - start, 2) for moment in ready],
            # A bucket is ready with its last gradient.
            "exchanges": [
                [round(max(ready[i] for i in own) - start, 2), round(end - start, 2)]
                for own, end in zip(buckets, done, strict=True)
            ],
        }

    return timed


def moment_of(tensor):
    """Return the moment at which a tensor has been computed, in seconds.

    `tf.timestamp` would not do: TensorFlow runs its calls in the order of the program, after one another.
    """
    first = tf.reshape(tensor, [-1])[0]
    return tf.numpy_function(lambda _: time.perf_counter(), [first], tf.float64, stateful=False)


def exchange_of(plan, number: int, weights: list, workers):
    """Return a function of a bucket's gradients that returns their means over all ranks, or DGC's updates."""
    name = re.sub(r"\W+", "_", f"overlap {plan} {number}")
    if plan.ratio < 1:
        compressor = Compressor(DGCConfig(plan.ratio), weights, NamedWorkers(name))
        return lambda gradients: [tf.convert_to_tensor(update) for update in compressor([gradients])[0]]

    def exchange(gradients):
        flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
        mean = workers.hvd.allreduce(flat, op=workers.hvd.Average, name=name)
        return [tf.reshape(part, [WIDTH, WIDTH]) for part in tf.split(mean, len(gradients))]

    return exchange


class NamedWorkers(HorovodWorkers):
    """Horovod ranks with a prefix to the names of collectives, so that several compressors can overlap."""

    def __init__(self, prefix: str):
        super().__init__()
        self.prefix = prefix

    def allreduce(self, groups, name=None):
        return super().allreduce(groups, f"{self.prefix}.{name}")

    def allgather(self, tensors, name=None):
        return super().allgather(tensors, f"{self.prefix}.{name}")


def exchange_alone(workers):
    """Return a function that exchanges a vector as long as all gradients."""
    flat = tf.zeros([LAYERS * WIDTH**2])

    def exchange():
        workers.hvd.allreduce(flat, op=workers.hvd.Average, name="overlap.alone").numpy()
        return {}

    return exchange


def run_in_turns(steps: list, rounds: int, workers):
    """Return for each step the slower rank's milliseconds by round, the moments by round, and the mean bytes sent."""
    times, moments, sent = ([[] for _ in steps] for _ in range(3))
    for turn in range(-WARM_UP, rounds):
        for number, step in enumerate(steps):
            workers.hvd.allreduce(tf.zeros([1]), name="overlap.start")  # the ranks start together
            before, start = bytes_sent(), time.perf_counter()
            moment = step()
            took = 1000 * (time.perf_counter() - start)
            if turn >= 0:
                times[number].append(took)
                moments[number].append(moment)
                sent[number].append(bytes_sent() - before)
    by_rank = workers.hvd.allgather(tf.constant([times], tf.float64), name="overlap.times").numpy()
    return by_rank.max(axis=0).tolist(), moments, [statistics.mean(each) for each in sent]
