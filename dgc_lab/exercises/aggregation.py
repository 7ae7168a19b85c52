"""Checks for exercise 01, aggregation: order of a sum, rounding, link traffic."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number
from dgc_lab.exercises.training import my_digits, softmax_gradient, softmax_loss
from dgc_lab.exercises.variants import Variant


def running_sum(answer, variant: Variant) -> str:
    found = asked_number(answer, np.array([1.0, 2.5, -4.0], np.float32), about="for [1, 2.5, -4]")
    expect(found == -0.5, f"1 + 2.5 - 4 is -0.5, got {found:g}.")
    ones = np.ones(4096, np.float16)
    found = asked_number(answer, ones, about="for 4096 ones in float16")
    expect(
        found == 2048,
        f"4096 ones in float16, added one after another, end at 2048, got {found:g}. Is the total float16 after every "
        "step, and are the ones added one at a time?",
    )
    return "right: in float16, 2048 + 1 is 2048."


def pairwise_sum(answer, variant: Variant) -> str:
    for length in (1, 2, 3, 7, 64):
        values = np.arange(1, length + 1, dtype=np.float32)
        about = f"for the numbers from 1 to {length}"
        found = asked_number(answer, values, about=about)
        expect(found == values.sum(), f"{about}, the sum is {values.sum():g}, got {found:g}.")
    four = np.array([2048, 1, 1, 0], np.float16)
    found = asked_number(answer, four, about="for [2048, 1, 1, 0]")
    expect(
        found == 2048,
        f"in float16, the halves of [2048, 1, 1, 0] are 2048 + 1, which is 2048, and 1 + 0. Your sum is {found:g}. Is "
        "every partial sum rounded to float16? (numpy's own sum is not.)",
    )
    for length in (4096, 5000):
        about = f"for {length} ones in float16"
        result = asked(answer, np.ones(length, np.float16), about=about)
        found = number(result, about)
        expect(
            abs(found - length) <= 4,
            f"{about}, your sum is {found:g}. Are the halves themselves added in pairs, too?",
        )
        expect(
            np.asarray(result).dtype == np.float16, f"{about}, the sum must be float16, got {np.asarray(result).dtype}."
        )
    return "right: with the same bits per number, the sum stays accurate."


def my_end(answer, variant: Variant) -> str:
    found = number(answer, "for your sum")
    value = my_value(variant)
    expect(found != 4096 * value, "that is the exact sum. In float16, the sum does not get there.")
    expect(found == 2048 * value, f"for your value of {value:g}, the sum is different. Try your `running_sum`.")
    return "right: float16 has 11 binary digits, so a sum of 2048 values does not change when one more is added."


def my_value(variant: Variant) -> float:
    """Return the student's own addend, a power of two.

    Example:
        >>> my_value(Variant(0))
        0.5
    """
    return 2.0 ** variant.whole("my_value", -6, 3)


def half_training(answer, variant: Variant) -> str:
    images, labels = (part[0] for part in my_digits(variant, workers=1))
    start = np.full((images.shape[1], 10), 4.0)
    for kept_in, hint in (
        ("float16", "the step is rounded to float16, too, and so are the weights after each step"),
        ("float32", "the gradient is computed at the weights in float16, but steps are added in float32"),
    ):
        about = f"for 200 steps at a rate of 0.05 from 4, with weights kept in {kept_in}"
        result = asked(answer, start, images, labels, 0.05, 200, kept_in, about=about)
        loss = softmax_loss(array_like(result, start, about), images, labels)
        right = _half_loss(start, images, labels, 0.05, 200, kept_in)
        expect(abs(loss - right) < 0.05 * right, f"{about}, the loss ends near {right:.3f}, got {loss:.3f}: {hint}.")
        expect(np.asarray(result).dtype == kept_in, f"{about}, the result is {np.asarray(result).dtype}.")
    half, single = (_half_loss(start, images, labels, 0.05, 200, kept_in) for kept_in in ("float16", "float32"))
    return f"right: with your digits, the loss is {half:.3f} with weights in float16, and {single:.3f} in float32."


def _half_loss(start, images, labels, rate, steps, kept_in):
    """Return the loss after training with weights that are kept in a type."""
    kept = start.astype(kept_in)
    for _ in range(steps):
        moved = rate * softmax_gradient(kept.astype(np.float16), images, labels)
        kept -= moved.astype(kept_in)
    return softmax_loss(kept, images, labels)


def telling_addends(answer, variant: Variant) -> str:
    addends = np.asarray(answer)
    expect(addends.ndim == 1 and 1 <= addends.size <= 32, "expected a one-dimensional array of 1 to 32 numbers.")
    expect(addends.dtype == np.float16, f"expected an array of float16, got {addends.dtype}.")
    methods = {"one after another": _sequential_sum, "in pairs": _pairwise_sum, "in blocks": _blockwise_sum}
    with np.errstate(over="ignore", invalid="ignore"):
        sums = {method: float(add(addends)) for method, add in methods.items()}
    listed = ", ".join(f"{method} {found:g}" for method, found in sums.items())
    expect(np.all(np.isfinite(list(sums.values()))), f"the sums are {listed}; all three must be finite.")
    expect(len(set(sums.values())) == 3, f"the sums are {listed}; all three must differ.")
    return f"right: {listed}."


def ring_bytes(answer, variant: Variant) -> str:
    for workers, size, right in ((2, 1000, 1000), (4, 1000, 1500), (10, 1000, 1800), (1, 1000, 0)):
        about = f"for {workers} workers and {size} bytes"
        found = asked_number(answer, workers, size, about=about)
        expect(
            np.isclose(found, right),
            f"{about}, a worker does not send {found:g} bytes. It sends 2 (N - 1) messages. How large is a message?",
        )
    return "right: less than twice the gradient, however many workers there are."


def exchange_seconds(answer, variant: Variant) -> str:
    cases = (
        ("ring", 8, 1000, 0.014014),
        ("central", 8, 1000, 0.002112),
        ("ring", 8, 100_000_000, 1.414),
        ("central", 8, 100_000_000, 11.202),
    )
    for how, workers, size, right in cases:
        about = f"for {how}, {workers} workers and {size:,} bytes at 1 Gbit/s and 1 ms"
        found = asked_number(answer, how, workers, size, 125e6, 0.001, about=about)
        expect(
            np.isclose(found, right, rtol=1e-3),
            f"{about}, the time is not {found:.4g} s. Each hop adds latency; bytes count on the busiest link.",
        )
    return "right: latency dominates small messages, bandwidth dominates large ones."


def my_crossing(answer, variant: Variant) -> str:
    workers, bandwidth, latency = my_links(variant)
    found = number(answer, "for your size")
    right = (workers - 2) * latency * bandwidth * workers / (workers - 1) ** 2
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"at {found:.6g} bytes, ring and centre do not take equally long in your cluster. How long does each take for "
        "0 bytes, and how much does one more byte add?",
    )
    return "right: latency decides below this size, bandwidth above it."


def my_links(variant: Variant) -> tuple[int, float, float]:
    """Return the student's own cluster: workers, bytes per second, seconds per hop.

    Example:
        >>> my_links(Variant(0))
        (12, 125000000.0, 0.0007)
    """
    bandwidth = variant.choice("my_bandwidth", (125e5, 125e6, 125e7))
    return variant.whole("my_workers", 4, 16), bandwidth, variant.whole("my_latency", 1, 20) / 10_000


def _sequential_sum(values):
    """Add values in the array's own type, rounding after each addition."""
    return np.add.accumulate(values)[-1]


def _pairwise_sum(values):
    middle = len(values) // 2
    return _pairwise_sum(values[:middle]) + _pairwise_sum(values[middle:]) if middle else values[0]


def _blockwise_sum(values):
    return _sequential_sum([_sequential_sum(values[start : start + 8]) for start in range(0, len(values), 8)])
