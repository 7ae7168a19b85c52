"""Checks for exercise 09, cluster cost: collectives, buckets, sharded optimizers, fewer exchanges."""

from __future__ import annotations

import math

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.training import my_digits, softmax_gradient, softmax_loss, zero_weights
from dgc_lab.exercises.variants import Variant

DEVICE_BYTES = 80e9  # memory of one accelerator
BUCKETS = (0, 250_000, 1_000_000, 4_000_000, 16_000_000, 10**9)  # bytes; 0 sends each tensor alone


def collective_seconds(answer, variant: Variant) -> str:
    for how, workers, right, hint in (
        ("ring", 2, 3.0, "2 messages of 500 bytes each, one after another"),
        ("ring", 4, 7.5, "6 messages of 250 bytes each, one after another"),
        ("tree", 2, 4.0, "one message of 1000 bytes up and one down"),
        ("tree", 8, 12.0, "three levels up and three down, 1000 bytes in each"),
        ("tree", 5, 12.0, "5 workers need as many levels as 8"),
    ):
        about = f"for a {how} of {workers} workers and 1000 bytes, at 1 s per message and 1 ms per byte"
        found = asked_number(answer, how, workers, 1000, 1.0, 0.001, about=about)
        expect(np.isclose(found, right), f"{about}, the allreduce does not take {found:.4g} s: {hint}.")
    return "right: a ring pays with messages, a tree with bytes."


def my_crossover(answer, variant: Variant) -> str:
    workers, alpha, beta = my_links(variant)
    found, levels = number(answer, "for your size"), math.ceil(math.log2(workers))
    right = (workers - 1 - levels) * alpha / (beta * (levels - (workers - 1) / workers))
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"the two do not take equally long at {found:.5g} bytes. Set the two costs equal, and solve for the size.",
    )
    return "right: below this size the tree is faster."


def my_links(variant: Variant) -> tuple[int, float, float]:
    """Return the student's own workers, seconds per message and seconds per byte.

    Example:
        >>> my_links(Variant(0))
        (24, 4e-05, 8e-10)
    """
    workers = variant.choice("my_links_workers", (12, 24, 48, 96, 192))
    return workers, variant.whole("my_alpha", 2, 9) * 1e-5, variant.choice("my_beta", (8e-9, 8e-10, 8e-11))


def bucket_ends(answer, variant: Variant) -> str:
    ready, sizes = [1.0, 2.0, 3.0, 9.0, 10.0], [100, 100, 100, 300, 100]
    for bucket, right, hint in (
        (1000, [17.5], "700 bytes never fill a bucket, so all are sent once the last tensor is ready"),
        (200, [4.5, 13.5, 15.0], "the buckets have 200, 400 and 100 bytes, and the last one may be smaller"),
        (150, [4.5, 13.5, 15.0], "a bucket is sent once it has at least 150 bytes, so the first one has two tensors"),
        (0, [2.5, 4.0, 5.5, 12.5, 14.0], "each tensor is a bucket, and exchanges do not overlap"),
    ):
        about = f"for {sizes} bytes that are ready at {ready}, buckets of {bucket} bytes, 0.5 s and 0.01 s per byte"
        found = array_like(
            asked(answer, list(ready), list(sizes), bucket, 0.5, 0.01, about=about), np.array(right), about
        )
        expect(np.allclose(found, right), f"{about}, the exchanges do not end at {found.tolist()}: {hint}.")
    return "right: an exchange waits for its tensors and for the exchange before it."


def my_bucket(answer, variant: Variant) -> str:
    about = "for your network"
    bucket, end = (number(part, about) for part in parts(answer, ("bucket", "end"), about))
    best, right = _best(my_network(variant))
    expect(bucket == best, f"{about}, another bucket ends earlier than {bucket:g} bytes. Try all of them.")
    expect(np.isclose(end, right, rtol=1e-3), f"{about}, the last exchange does not end at {end:.5g} s.")
    return "right: small buckets pay per message, and large ones start late."


def my_network(variant: Variant) -> tuple[list[float], list[int], float, float]:
    """Return the student's own ready times, sizes in bytes, alpha and beta.

    Example:
        >>> ready, sizes, alpha, beta = my_network(Variant(0))
        >>> len(ready), len(sizes), alpha, beta
        (40, 40, 0.001, 4e-09)
    """

    def draw(variant):
        rng = np.random.default_rng(variant.seed("my_network"))
        sizes = [int(size) for size in 4 * 10 ** rng.uniform(3, 5.7, 40)]
        seconds = np.cumsum(rng.uniform(0.0005, 0.003, 40)).round(5)
        return seconds.tolist(), sizes, variant.whole("my_network_alpha", 3, 20) * 1e-4, 4e-9

    def has_a_clear_best(network):
        """Return whether a bucket of medium size wins by at least 1 %."""
        ends = sorted((_ends(*network[:2], bucket, *network[2:])[-1], bucket) for bucket in BUCKETS)
        return ends[0][1] not in (BUCKETS[0], BUCKETS[-1]) and ends[1][0] > 1.01 * ends[0][0]

    return variant.first(draw, has_a_clear_best)


def zero_step(answer, variant: Variant) -> str:
    weights, gradients = np.zeros(3), np.array([[2.0, 4.0, 6.0], [0.0, 0.0, 2.0]])
    velocities = [np.array([1.0, 1.0]), np.array([10.0])]
    about = "for 3 weights at 0, gradients [2, 4, 6] and [0, 0, 2], velocities [1, 1] and [10], rate 1 and momentum 0.5"
    moved, kept = _zero_step(answer, weights, gradients, velocities, 1.0, 0.5, about)
    expect(not np.allclose(moved, [-2.5, -4.5, -7.0]), f"{about}, each worker uses its own gradient, not the mean.")
    expect(not np.allclose(moved, [-1, -2, -4]), f"{about}, the momentum is missing.")
    expect(
        np.allclose(moved, [-1.5, -2.5, -9.0]),
        f"{about}, the weights are not {moved.tolist()}. Worker 0 has the mean gradient [1, 2], worker 1 has [4].",
    )
    expect(
        np.allclose(kept[0], [1.5, 2.5]) and np.allclose(kept[1], [9]),
        f"{about}, the new velocities must be [1.5, 2.5] and [9], got {[part.tolist() for part in kept]}.",
    )
    rng = np.random.default_rng(variant.seed("zero_step"))
    workers, velocity = 4, np.zeros(10)
    weights = whole = rng.normal(size=10)
    velocities = np.array_split(velocity, workers)
    about = "over three steps of 4 workers and 10 weights, in shards of 3, 3, 2 and 2"
    for gradients in rng.normal(size=(3, workers, 10)):
        weights, velocities = _zero_step(answer, weights, gradients, velocities, 0.1, 0.9, about)
        velocity = 0.9 * velocity + gradients.mean(0)
        whole = whole - 0.1 * velocity
    expect(np.allclose(weights, whole), f"{about}, the weights differ from those of momentum SGD without shards.")
    return "right: the weights of momentum SGD, with a part of its state on each worker."


def worker_bytes(answer, variant: Variant) -> str:
    for stage, right, hint in (
        (0, 16_000, "every worker holds all 16 bytes of each parameter"),
        (1, 7000, "only the 12 bytes of the optimizer's state are divided"),
        (2, 5500, "gradients are divided, too"),
        (3, 4000, "everything is divided"),
    ):
        about = f"for 1000 parameters, 4 workers and stage {stage}"
        found = asked_number(answer, 1000, 4, stage, about=about)
        expect(np.isclose(found, right), f"{about}, a worker does not hold {found:g} bytes: {hint}.")
    return "right."


def my_fewest(answer, variant: Variant) -> str:
    about = "for your model"
    found = [number(part, about) for part in parts(answer, ("stage 1", "stage 2", "stage 3"), about)]
    for stage, (workers, right) in enumerate(zip(found, _fewest(my_parameters(variant)), strict=True), 1):
        expect(workers == right, f"{about}, stage {stage} does not need {workers:g} workers. What does a worker hold?")
    return "right."


def my_parameters(variant: Variant) -> int:
    """Return the number of parameters of the student's own model.

    Example:
        >>> my_parameters(Variant(0))
        15100000000
    """
    return variant.whole("my_parameters", 120, 190) * 10**8


def outer_training(answer, variant: Variant) -> str:
    images, labels = my_digits(variant, workers=3, by_class=True)
    for settings, words in (
        ((1, 1, 0.5, 1.0, 0.0), "one round of one inner step is one step of gradient descent with the mean gradient"),
        ((1, 4, 0.5, 1.0, 0.0), "after one round at outer rate 1, the weights are the mean of the workers' weights"),
        ((3, 4, 0.5, 1.0, 0.0), "each round starts from the same weights on all workers, and averages again"),
        ((1, 4, 0.5, 0.7, 0.9), "the first outer step moves by outer_rate * (1 + momentum) times the difference"),
        ((4, 4, 0.5, 0.7, 0.9), "the velocity is kept from round to round"),
    ):
        about = "for {} round{} of {} inner steps, inner rate {}, outer rate {} and momentum {}".format(
            settings[0], "s" * (settings[0] > 1), *settings[1:]
        )
        pattern = zero_weights()
        found = array_like(asked(answer, images, labels, *settings, about=about), pattern, about)
        right = outer_trained(images, labels, *settings)
        loss = softmax_loss(found, images.reshape(-1, 64), labels.ravel())
        expect(
            np.allclose(found, right, atol=1e-6), f"{about}, the weights differ (their loss is {loss:.3f}): {words}."
        )
    images, labels = my_digits(variant, workers=4, by_class=True)
    every, figures = (images.reshape(-1, 64), labels.ravel()), []
    for settings, words in (
        ((15, 1, 0.5, 1.0, 0.0), "1 inner step"),
        ((15, 10, 0.5, 1.0, 0.0), "10"),
        ((15, 10, 0.5, 0.7, 0.5), "10 and Nesterov"),
    ):
        figures.append(f"{softmax_loss(outer_trained(images, labels, *settings), *every):.2f} with {words}")
    return f"right: after 15 exchanges, the loss is {', '.join(figures)}."


def outer_trained(images, labels, rounds, inner_steps, inner_rate, outer_rate, momentum) -> np.ndarray:
    """Return the weights after DiLoCo's rounds, with gradient descent as the inner optimizer."""
    weights = velocity = zero_weights()
    for _ in range(rounds):
        ends = []
        for own_images, own_labels in zip(images, labels, strict=True):
            local = weights
            for _ in range(inner_steps):
                local = local - inner_rate * softmax_gradient(local, own_images, own_labels)
            ends.append(local)
        difference = weights - np.mean(ends, axis=0)
        velocity = momentum * velocity + difference
        weights = weights - outer_rate * (difference + momentum * velocity)
    return weights


def _ends(ready, sizes, bucket, alpha, beta):
    """Return the end of each exchange, (buckets,)."""
    ends, waiting = [], 0
    for tensor, (time, size) in enumerate(zip(ready, sizes, strict=True)):
        waiting += size
        if waiting >= bucket or tensor == len(sizes) - 1:
            ends.append(max(time, ends[-1] if ends else 0) + alpha + beta * waiting)
            waiting = 0
    return np.array(ends)


def _best(network):
    """Return the best bucket and the end of its last exchange."""
    ready, sizes, alpha, beta = network
    end, bucket = min((_ends(ready, sizes, bucket, alpha, beta)[-1], bucket) for bucket in BUCKETS)
    return bucket, end


def _zero_step(answer, weights, gradients, velocities, rate, momentum, about):
    """Run a step; return the weights and the velocities, which must have the shapes of the arguments."""
    given = [np.copy(part) for part in velocities]
    result = asked(answer, weights, gradients, given, rate, momentum, about=about)
    moved, kept = parts(result, ("weights", "velocities"), about)
    kept = parts(kept, tuple(f"velocity of worker {worker}" for worker in range(len(velocities))), about)
    return array_like(moved, weights, about), [
        array_like(part, before, f"{about}, for the velocity of worker {worker}")
        for worker, (part, before) in enumerate(zip(kept, velocities, strict=True))
    ]


def _fewest(parameters):
    """Return the fewest workers for stages 1, 2 and 3."""
    return [math.ceil((16 - whole) * parameters / (DEVICE_BYTES - whole * parameters)) for whole in (4, 2, 0)]
