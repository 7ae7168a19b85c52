"""Checks of exercise 01, aggregation: the order of a sum, its rounding, and what travels over the links."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import asked, asked_number, expect, number
from dgc_lab.exercises.variants import Variant


def running_sum(answer, variant: Variant) -> str:
    found = asked_number(answer, np.array([1.0, 2.5, -4.0], np.float32), about="for [1, 2.5, -4]")
    expect(found == -0.5, f"1 + 2.5 - 4 is -0.5, got {found:g}.")
    ones = np.ones(4096, np.float16)
    found = asked_number(answer, ones, about="for 4096 ones in float16")
    expect(
        found == 2048,
        f"4096 ones in float16, added one after another, end at 2048, got {found:g}: is the sum itself float16 in "
        "every step, and are they added one at a time?",
    )
    return "right: and in float16, 2048 + 1 is 2048."


def pairwise_sum(answer, variant: Variant) -> str:
    for length in (1, 2, 3, 7, 64):
        values = np.arange(1, length + 1, dtype=np.float32)
        about = f"for 1, 2, ..., {length}"
        found = asked_number(answer, values, about=about)
        expect(found == values.sum(), f"{about} the sum is {values.sum():g}, got {found:g}.")
    four = np.array([2048, 1, 1, 0], np.float16)
    found = asked_number(answer, four, about="for [2048, 1, 1, 0]")
    expect(
        found == 2048,
        f"[2048, 1, 1, 0] in float16 has halves 2048 + 1, which is 2048, and 1 + 0. You say {found:g}: is every sum on "
        "the way rounded to float16? (numpy's own sum is not.)",
    )
    for length in (4096, 5000):
        about = f"for {length} ones in float16"
        result = asked(answer, np.ones(length, np.float16), about=about)
        found = number(result, about)
        expect(
            abs(found - length) <= 4,
            f"{about} the sum is {found:g}: are the halves of the halves added in pairs, too?",
        )
        expect(
            np.asarray(result).dtype == np.float16, f"{about} the sum must be float16, got {np.asarray(result).dtype}."
        )
    return "right: the same bits a number, and the sum survives."


def most_roundings(answer, variant: Variant) -> str:
    for addends, method, right in (
        (2, "running", 1),
        (1024, "running", 1023),
        (2, "pairwise", 1),
        (1024, "pairwise", 10),
    ):
        about = f"for {addends} addends, {method}"
        found = asked_number(answer, addends, method, about=about)
        expect(
            found == right,
            f"{about}: count the additions that the first addend goes through on its way to the sum; not {found:g}.",
        )
    found = asked_number(answer, 1000, "pairwise", about="for 1000, pairwise")
    expect(found == 10, f"1000 addends in pairs: some go through 10 additions, not {found:g}; how high is the tree?")
    return "right: 1023 roundings against 10."


def my_end(answer, variant: Variant) -> str:
    found = number(answer, "as the end of your sum")
    value = my_value(variant)
    expect(found != 4096 * value, "that is the exact sum. In float16 it does not get there.")
    expect(found == 2048 * value, f"for your value of {value:g} it is another number: try it with your `running_sum`.")
    return "right: float16 has 11 binary digits, so 2048 of them and one more are 2048 of them."


def my_value(variant: Variant) -> float:
    """The student's own addend, a power of two.

    Example:
        >>> my_value(Variant(0))
        0.5
    """
    return 2.0 ** variant.whole("my_value", -6, 3)


def telling_addends(answer, variant: Variant) -> str:
    addends = np.asarray(answer)
    expect(addends.ndim == 1 and 1 <= addends.size <= 32, "an array of 1 to 32 numbers in a row is asked for.")
    expect(addends.dtype == np.float16, f"an array of float16 is asked for, got {addends.dtype}.")
    ways = {"one after another": _in_a_row, "in pairs": _in_pairs, "in blocks": _in_blocks}
    with np.errstate(over="ignore", invalid="ignore"):
        sums = {way: float(add(addends)) for way, add in ways.items()}
    said = ", ".join(f"{way} {found:g}" for way, found in sums.items())
    expect(np.all(np.isfinite(list(sums.values()))), f"the sums are {said}: all three must be finite.")
    expect(len(set(sums.values())) == 3, f"the sums are {said}: two of the ways cannot be told apart.")
    return f"right: {said}."


def ring_bytes(answer, variant: Variant) -> str:
    for workers, size, right in ((2, 1000, 1000), (4, 1000, 1500), (10, 1000, 1800), (1, 1000, 0)):
        about = f"for {workers} workers and {size} bytes"
        found = asked_number(answer, workers, size, about=about)
        expect(
            np.isclose(found, right),
            f"{about}: {found:g} bytes are not what a worker sends. There are twice N - 1 messages; how large "
            "is a message?",
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
            f"{about}: {found:.4g} s is not it. Latency counts once a hop, bytes count on the busiest link.",
        )
    return "right: small messages are about hops, large ones about bytes."


def my_crossing(answer, variant: Variant) -> str:
    workers, bandwidth, latency = my_links(variant)
    found = number(answer, "as your size")
    right = (workers - 2) * latency * bandwidth * workers / (workers - 1) ** 2
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"at {found:.6g} bytes the two do not take equally long in your cluster. What does each take for 0 bytes, and "
        "what does a byte more cost?",
    )
    return "right: below it hops decide, above it bytes."


def my_links(variant: Variant) -> tuple[int, float, float]:
    """The student's own cluster: workers, bytes a second, seconds a hop.

    Example:
        >>> my_links(Variant(0))
        (12, 125000000.0, 0.0007)
    """
    bandwidth = variant.choice("my_bandwidth", (125e5, 125e6, 125e7))
    return variant.whole("my_workers", 4, 16), bandwidth, variant.whole("my_latency", 1, 20) / 10_000


def _in_a_row(values):
    """The sum in the array's own type, rounded after each addition."""
    return np.add.accumulate(values)[-1]


def _in_pairs(values):
    middle = len(values) // 2
    return _in_pairs(values[:middle]) + _in_pairs(values[middle:]) if middle else values[0]


def _in_blocks(values):
    return _in_a_row([_in_a_row(values[start : start + 8]) for start in range(0, len(values), 8)])
