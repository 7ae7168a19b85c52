"""Checks for exercise 06, thresholds and scale: times, break-even points, ages."""

from __future__ import annotations

import functools
import math

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.training import my_digits, softmax_gradient, softmax_loss, zero_weights
from dgc_lab.exercises.variants import Variant

GBIT = 1e9 / 8  # bytes per second
COUNTS = (2, 7, 20, 64, 640)  # elements that a worker may send per step; 640 are all


def allreduce_seconds(answer, variant: Variant) -> str:
    cases = (
        (2, 0, 2.0, "one hop there and one back"),
        (5, 0, 8.0, "N - 1 hops add up the values, and N - 1 pass the sum on"),
        (2, 4000, 6.0, "each worker sends half of the bytes, twice"),
        (5, 4000, 14.4, "each worker sends a fifth of the bytes, eight times"),
    )
    _check_seconds(answer, cases)
    return "right: hops grow with the number of workers, bytes hardly do."


def allgather_seconds(answer, variant: Variant) -> str:
    cases = (
        (2, 0, 1.0, "a message takes one hop"),
        (5, 0, 4.0, "the message of the farthest worker takes N - 1 hops"),
        (2, 4000, 5.0, "one message passes a link"),
        (5, 4000, 20.0, "all messages but one pass a link, and none gets shorter"),
    )
    _check_seconds(answer, cases)
    return "right: half as many hops, but the bytes grow with the number of workers."


def break_even_ratio(answer, variant: Variant) -> str:
    for workers, entry, element, right in ((4, 8, 4, 0.25), (4, 6, 4, 1 / 3), (32, 8, 4, 1 / 32), (4, 8, 2, 0.125)):
        about = f"for {workers} workers, {entry} bytes per entry and {element} bytes per uncompressed element"
        found = asked_number(answer, workers, entry, element, about=about)
        expect(
            np.isclose(found, right),
            f"{about}, your answer is {found:.4g}. Per element, an allgather then passes "
            f"{(workers - 1) * found * entry:.4g} bytes over a link and a ring allreduce "
            f"{2 * (workers - 1) / workers * element:.4g}; they should be equal.",
        )
    about = "for 2 workers and 3 bytes per entry"
    found = number(asked(answer, 2, 3, 4, about=about), about)
    expect(found == 1, f"{about}, the allgather passes fewer bytes even at a ratio of 1; got {found:.3g}.")
    return "right: for float16, too."


def break_even_bandwidth(answer, variant: Variant) -> str:
    for spared, selection, right, hint in (
        (2e6, 0.5, 4e6, "at 4 MB/s, the 2 MB that are saved would take the half second of the selection"),
        (3e6, 0.01, 3e8, "the 3 MB that are saved would have to take the 10 ms of the selection"),
        (0, 0.5, 0, "no bytes are saved, so compression pays on no link"),
        (-1e6, 0.5, 0, "the compressed gradient is larger, so compression pays on no link"),
        (2e6, 0, math.inf, "selection takes no time, so compression pays on every link"),
    ):
        about = f"for spared={spared:g} and selection={selection:g}"
        found = asked_number(answer, spared, selection, about=about)
        expect(
            found == right or np.isclose(found, right),
            f"{about}, the two steps do not take equally long at {found:.4g} bytes per second: {hint}.",
        )
    return "right: the bytes saved divided by the selection time."


def my_gbit(answer, variant: Variant) -> str:
    found, right = number(answer, "for your bandwidth"), _break_even_gbit(variant)
    expect(not np.isclose(found * GBIT, right * GBIT / 8, rtol=1e-3), "a byte has 8 bits.")
    expect(not np.isclose(found, right * GBIT, rtol=1e-3), "that is in bytes per second; give it in Gbit/s.")
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"for your cluster, it is not {found:.4g} Gbit/s. The bytes saved are those of the ring allreduce minus those "
        "of the allgather, on one link.",
    )
    return f"right: above {found:.3g} Gbit/s, this cluster is faster without compression."


def my_training(variant: Variant) -> tuple[int, int, float, float]:
    """Return the student's own workers, elements, ratio and seconds of selection.

    Example:
        >>> my_training(Variant(0))
        (31, 52000000, 0.001, 0.152)
    """
    workers, million = variant.whole("my_workers", 4, 32), variant.whole("my_elements", 5, 60)
    return workers, 10**6 * million, 0.001, variant.whole("my_selection", 20, 200) / 1000


def relative_deviation(answer, variant: Variant) -> str:
    rng = np.random.default_rng(variant.seed("relative_deviation"))
    for ratio, sample in ((0.01, 1000), (0.1, 1000), (0.01, 100_000), (0.5, 100)):
        about = f"for a ratio of {ratio} and a sample of {sample}"
        found = asked_number(answer, ratio, sample, about=about)
        counts = rng.binomial(sample, ratio, size=20_000)
        expect(
            np.isclose(found, _deviation(ratio, sample), rtol=0.01),
            f"{about}: in {counts.size:,} samples, {counts.mean():.1f} elements on average belong to the largest "
            f"{ratio:.0%}, with a standard deviation of {counts.std():.2f}. Your answer is {found:.4g} times the mean.",
        )
    return "right: the fewer elements determine a threshold, the less accurate it is."


def sample_needed(answer, variant: Variant) -> str:
    for ratio, deviation, right in ((0.5, 0.1, 100), (0.01, 0.1, 9900), (0.001, 0.1, 99_900), (0.001, 0.05, 399_600)):
        about = f"for a ratio of {ratio} and a deviation of {deviation:.0%}"
        found = asked_number(answer, ratio, deviation, about=about)
        expect(
            abs(found - right) <= 1 and found == int(found),
            f"{about}, your answer is {found:g} elements, whose deviation is {_deviation(ratio, max(found, 1)):.4%}. "
            "Find the smallest whole number that is large enough.",
        )
    return "right: half the deviation takes four times the sample."


def ages_sent(answer, variant: Variant) -> str:
    cases = (
        ([(0, 3)], [0], "an element sent in step 0, which holds only that step's gradient"),
        ([(4, 3)], [4], "an element first sent in step 4, where the gradients of steps 0 to 3 have waited"),
        ([(2, 7), (3, 7)], [2, 0], "an element sent in steps 2 and 3, where nothing waits in between"),
        ([(0, 1), (0, 2), (5, 1), (6, 2)], [0, 0, 4, 5], "two elements that take turns"),
    )
    for log, right, words in cases:
        found = array_like(asked(answer, list(log), about=f"for {words}"), np.zeros(len(right)), f"for {words}")
        expect(np.array_equal(found, right), f"for {words}, the ages of the log {log} are not {found.tolist()}.")
    log = random_log(np.random.default_rng(variant.seed("ages_sent")), elements=6, sends=40)
    about = "for 40 sends of 6 elements"
    found = array_like(asked(answer, list(log), about=about), np.zeros(40), about)
    expect(np.array_equal(found, counted_ages(log)), f"{about}, some ages are wrong. When was each element last sent?")
    return "right: after a send, the residual starts from zero."


def my_age(answer, variant: Variant) -> str:
    found, right = number(answer, "for your mean age"), float(counted_ages(my_log(variant)).mean())
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"in your log, the mean age is not {found:.4g}. What is the mean of `ages_sent(my_sends)`?",
    )
    return "right."


def my_log(variant: Variant) -> list[tuple[int, int]]:
    """Return the student's own log of sends.

    Example:
        >>> my_log(Variant(0))[:2]
        [(0, 6), (0, 7)]
    """

    def draw(variant):
        return random_log(np.random.default_rng(variant.seed("my_log")), elements=8, sends=60)

    def mean_is_not_median(log):
        ages = counted_ages(log)
        return not np.isclose(ages.mean(), np.median(ages), rtol=0.01)

    return variant.first(draw, mean_is_not_median)


def random_log(rng, elements: int, sends: int) -> list[tuple[int, int]]:
    """Return random (step, element) sends, with no element twice in a step."""
    log, step = [], 0
    while len(log) < sends:
        chosen = np.flatnonzero(rng.random(elements) < np.linspace(0.05, 0.5, elements))
        log += [(step, int(element)) for element in rng.permutation(chosen)]
        step += 1
    return log[:sends]


def counted_ages(log) -> np.ndarray:
    """Return the age of each send in a log, int (sends,)."""
    last, found = {}, []
    for step, element in log:
        found.append(step - last.get(element, -1) - 1)
        last[element] = step
    return np.array(found)


def _check_seconds(answer, cases):
    """Check times at 1 s per hop and 1000 bytes per second, which are easy to count."""
    for workers, size, right, hint in cases:
        about = f"for {workers} workers and {size} bytes at 1 s per hop and 1000 bytes per second"
        found = asked_number(answer, workers, size, 1000.0, 1.0, about=about)
        expect(np.isclose(found, right), f"{about}, the exchange does not take {found:.4g} s: {hint}.")


def _deviation(ratio, sample):
    return math.sqrt((1 - ratio) / (ratio * sample))


def _break_even_gbit(variant):
    workers, elements, ratio, selection = my_training(variant)
    spared = 2 * (workers - 1) / workers * 4 * elements - (workers - 1) * ratio * elements * 8
    return spared / selection / GBIT


def steps_to_loss(answer, variant: Variant) -> str:
    images, labels = my_digits(variant, workers=3)
    for count, goal, hint in (
        (640, 10.0, "the loss is below 10 after one step"),
        (640, 1.5, "with all elements sent, this is gradient descent with the mean gradient"),
        (4, 1.5, "elements that are not sent wait in each worker's own residual, and are added to later gradients"),
        (1, 0.01, "the goal is not reached within 300 steps"),
    ):
        about = f"for 3 workers that send {count} elements, a rate of 0.5 and a goal of {goal}"
        found = asked_number(answer, images, labels, count, 0.5, goal, about=about)
        right = _steps(images, labels, count, 0.5, goal)
        expect(found == right, f"{about}, it takes {right} steps, got {found:g}: {hint}.")
    return "right: most elements can wait."


def my_fastest(answer, variant: Variant) -> str:
    about = "for your link"
    count, seconds = (number(part, about) for part in parts(answer, ("count", "seconds"), about))
    best, right = _fastest(variant)
    expect(count == best, f"{about}, another count reaches the loss sooner than {count:g}. What does a step take?")
    expect(np.isclose(seconds, right, rtol=1e-3), f"{about}, the loss is not reached after {seconds:.4g} s.")
    return "right: the time is the number of steps times the time of one."


def my_link(variant: Variant) -> tuple[float, float]:
    """Return the student's own bandwidth in bytes per second, and latency in seconds per hop.

    Example:
        >>> my_link(Variant(0))
        (300000.0, 0.0007)
    """
    return variant.choice("my_link", (1e4, 3e4, 1e5, 3e5, 1e6)), variant.whole("my_latency", 1, 9) * 1e-4


def _steps(images, labels, count, rate, goal):
    """Return the steps until the loss of all digits is at most ``goal``, 300 at most."""
    every, weights, kept = (images.reshape(-1, images.shape[2]), labels.ravel()), zero_weights(), {}
    for step in range(1, 301):
        sent = np.zeros((len(images), weights.size))
        for worker, own in enumerate(zip(images, labels, strict=True)):
            whole = kept.get(worker, 0) + softmax_gradient(weights, *own).ravel()
            largest = np.argsort(-np.abs(whole))[:count]
            sent[worker, largest] = whole[largest]
            kept[worker] = whole - sent[worker]
        weights = weights - rate * sent.mean(0).reshape(weights.shape)
        if softmax_loss(weights, *every) <= goal:
            return step
    return 300


@functools.cache
def _fastest(variant):
    """Return the count that reaches a loss of 0.5 first on the student's link, and its seconds."""
    images, labels = my_digits(variant, workers=4)
    times = {each: _steps(images, labels, each, 0.5, 0.5) * _step_seconds(each, *my_link(variant)) for each in COUNTS}
    return min(times.items(), key=lambda item: item[1])


def _step_seconds(count, bandwidth, latency):
    """Return the seconds of a step of four workers that computes for 5 ms."""
    hops, size = (6, 640) if count == COUNTS[-1] else (3, 8 * count)
    return 0.005 + hops * (latency + size / bandwidth)
