"""Checks of exercise 06, thresholds and scale: seconds of an exchange, where compression pays, ages of what is sent."""

from __future__ import annotations

import math

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number
from dgc_lab.exercises.variants import Variant

GBIT = 1e9 / 8  # bytes a second
LINKS = ("10 Mbit/s", "100 Mbit/s", "1 Gbit/s", "unlimited")


def allreduce_seconds(answer, variant: Variant) -> str:
    cases = (
        (2, 0, 2.0, "two workers and no bytes: there and back"),
        (5, 0, 8.0, "five workers and no bytes: N - 1 hops to add up, N - 1 to hand round the sum"),
        (2, 4000, 6.0, "two workers and 4000 bytes: each sends half of them, twice"),
        (5, 4000, 14.4, "five workers and 4000 bytes: each sends a fifth of them, eight times"),
    )
    _seconds(answer, cases)
    return "right: hops grow with the workers, bytes hardly do."


def allgather_seconds(answer, variant: Variant) -> str:
    cases = (
        (2, 0, 1.0, "two workers and empty messages: one hop"),
        (5, 0, 4.0, "five workers and empty messages: the message of the farthest one comes by N - 1 hops"),
        (2, 4000, 5.0, "two workers with 4000 bytes each: one message passes a link"),
        (5, 4000, 20.0, "five workers with 4000 bytes each: all messages but one pass a link, and none gets shorter"),
    )
    _seconds(answer, cases)
    return "right: half as many hops, and bytes that grow with the workers."


def break_even_ratio(answer, variant: Variant) -> str:
    for workers, entry, whole, right in ((4, 8, 4, 0.25), (4, 6, 4, 1 / 3), (32, 8, 4, 1 / 32), (4, 8, 2, 0.125)):
        about = f"for {workers} workers, {entry} bytes an entry and {whole} bytes an element of the whole gradient"
        found = asked_number(answer, workers, entry, whole, about=about)
        expect(
            np.isclose(found, right),
            f"{about} you say {found:.4g}. Of an element an allgather then passes {(workers - 1) * found * entry:.4g} "
            f"bytes on a link, a ring allreduce {2 * (workers - 1) / workers * whole:.4g}; they should be the same.",
        )
    found = number(
        asked(answer, 2, 3, 4, about="for 2 workers and 3 bytes an entry"), "for 2 workers, 3 bytes an entry"
    )
    expect(
        found == 1, f"for 2 workers and 3 bytes an entry even a ratio of 1 is shorter; there is none of {found:.3g}."
    )
    return "right, also against float16."


def break_even_bandwidth(answer, variant: Variant) -> str:
    for spared, selection, right, words in (
        (2e6, 0.5, 4e6, "2 MB spared for half a second of selecting: at 4 MB/s these bytes would take half a second"),
        (3e6, 0.01, 3e8, "3 MB spared for 10 ms of selecting"),
        (0, 0.5, 0, "nothing is spared: it pays on no link"),
        (-1e6, 0.5, 0, "the compressed gradient is the longer one: it pays on no link"),
        (2e6, 0, math.inf, "selecting takes no time: it pays on every link"),
    ):
        found = asked_number(answer, spared, selection, about=f"where {words}:")
        expect(
            found == right or np.isclose(found, right),
            f"{words}. You say {found:.4g} bytes a second; asked is the bandwidth at which both steps take as long.",
        )
    return "right: bytes spared over the time that it takes to choose."


def my_gbit(answer, variant: Variant) -> str:
    found, right = number(answer, "as your bandwidth"), _my_gbit(variant)
    expect(not np.isclose(found * GBIT, right * GBIT / 8, rtol=1e-3), "a byte has 8 bits.")
    expect(not np.isclose(found, right * GBIT, rtol=1e-3), "that is in bytes a second; asked are Gbit/s.")
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"for your cluster it is not {found:.4g} Gbit/s. Spared are the ring allreduce's bytes less the "
        "allgather's, on one link.",
    )
    return f"right: above {found:.3g} Gbit/s this cluster had better send everything."


def my_training(variant: Variant) -> tuple[int, int, float, float]:
    """The student's own cluster: workers, elements of the gradient, ratio, seconds to select.

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
            f"{about}: in {counts.size:,} samples the number of elements that belong to the largest {ratio:.0%} was "
            f"{counts.mean():.1f} on average, with a standard deviation of {counts.std():.2f}. You say {found:.4g} "
            "times the mean.",
        )
    return "right: the fewer elements a threshold is read off, the further it is off."


def sample_needed(answer, variant: Variant) -> str:
    for ratio, deviation, right in ((0.5, 0.1, 100), (0.01, 0.1, 9900), (0.001, 0.1, 99_900), (0.001, 0.05, 399_600)):
        about = f"for a ratio of {ratio} and a deviation of {deviation:.0%}"
        found = asked_number(answer, ratio, deviation, about=about)
        expect(
            abs(found - right) <= 1 and found == int(found),
            f"{about} you say {found:g} elements, whose deviation is {_deviation(ratio, max(found, 1)):.4%}. "
            "Asked is the smallest whole number that is enough.",
        )
    return "right: half the deviation takes four times the sample."


def ages_sent(answer, variant: Variant) -> str:
    cases = (
        ([(0, 3)], [0], "an element that is sent in step 0: only that step's gradient is in it"),
        ([(4, 3)], [4], "an element that is first sent in step 4: the gradients of steps 0 to 3 have waited"),
        ([(2, 7), (3, 7)], [2, 0], "one that is sent in steps 2 and 3: nothing waits in between"),
        ([(0, 1), (0, 2), (5, 1), (6, 2)], [0, 0, 4, 5], "two elements that take turns"),
    )
    for log, right, words in cases:
        found = array_like(asked(answer, list(log), about=f"for {words},"), np.zeros(len(right)), f"for {words},")
        expect(np.array_equal(found, right), f"{words}. For the log {log} you say {found.tolist()}.")
    log = random_log(np.random.default_rng(variant.seed("ages_sent")), elements=6, sends=40)
    found = array_like(asked(answer, list(log), about="for 40 sends"), np.zeros(40), "for 40 sends")
    expect(np.array_equal(found, counted_ages(log)), "for 40 sends of 6 elements some ages are off: who was sent when?")
    return "right: what was sent starts from nothing."


def my_age(answer, variant: Variant) -> str:
    found, right = number(answer, "as your mean age"), float(counted_ages(my_log(variant)).mean())
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"in your log it is not {found:.4g}. What is the mean of `ages_sent(my_sends)`?",
    )
    return "right."


def my_log(variant: Variant) -> list[tuple[int, int]]:
    """The student's own log of sends.

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


def gaining(answer, variant: Variant) -> str:
    slow = [_row("slow", method, ms) for method, ms in (("no exchange", 5), ("DGC", 40), ("dense", 100))]
    fast = (("masking", 21), ("dense", 20), ("DGC", 19), ("float16", 20), ("no exchange", 5))
    rows = [*slow[:2], *(_row("fast", method, ms) for method, ms in fast), slow[2]]  # the dense step can come last
    about = "for eight rows of two links"
    found = asked(answer, rows, about=about)
    expect(
        isinstance(found, list) and all(isinstance(each, dict) and each in rows for each in found),
        f"{about} a list of some of them is asked for.",
    )
    named = {(row["link"], row["method"]) for row in found}
    expect(("slow", "no exchange") not in named, "a step that exchanges nothing is quick, but trains nobody together.")
    expect(not any(method == "dense" for _, method in named), "dense does not gain on itself.")
    expect(
        ("fast", "masking") not in named,
        "masking takes 21 ms on the fast link, where dense takes 20: a step of 100 ms is another link's.",
    )
    expect(("slow", "DGC") in named, "DGC takes 40 ms on the slow link, where dense takes 100: it gains.")
    expect(("fast", "DGC") in named, "DGC takes 19 ms on the fast link, where dense takes 20: it gains a little.")
    expect(("fast", "float16") not in named, "float16 takes 20 ms on the fast link, as long as dense: no gain.")
    expect(found == [row for row in rows if row in found], "the rows must come in the order in which they were.")
    return "right: each link has its own dense step to beat."


def my_links(answer, variant: Variant) -> str:
    times = my_times(variant)
    try:
        found = set(answer)
    except TypeError:  # what is in it cannot be in a set, or it is one thing
        found = {"?"}
    expect(found <= set(LINKS), f"a set of links is asked for, out of {', '.join(LINKS)}.")
    expect(
        found == fast_enough(times),
        f"these are not the links on which DGC at 0.1 % is at least {times} times as fast as dense. How is the dense "
        "step of the same link found?",
    )
    return "right."


def my_times(variant: Variant) -> float:
    """The gain that the student asks for.

    Example:
        >>> my_times(Variant(0))
        2
    """
    return variant.choice("my_times", (1.1, 2, 10, 30))


def fast_enough(times: float) -> set[str]:
    """The measured links on which DGC at 0.1 %, values and places in 8 bytes, is at least so many times as fast."""
    from dgc_lab.scaling import measured_links

    table = measured_links()
    chosen = (table["method"] == "DGC") & (table["ratio"] == 0.001) & (table["indices"] == "int32")
    return set(table["link"][chosen & (table["times as fast as dense"] >= times)])


def random_log(rng, elements: int, sends: int) -> list[tuple[int, int]]:
    """(step, element) of each send, by steps; no element twice in a step."""
    log, step = [], 0
    while len(log) < sends:
        chosen = np.flatnonzero(rng.random(elements) < np.linspace(0.05, 0.5, elements))
        log += [(step, int(element)) for element in rng.permutation(chosen)]
        step += 1
    return log[:sends]


def counted_ages(log) -> np.ndarray:
    """The age of each send of a log, int (sends,)."""
    last, found = {}, []
    for step, element in log:
        found.append(step - last.get(element, -1) - 1)
        last[element] = step
    return np.array(found)


def _seconds(answer, cases):
    """A hop takes 1 s to begin, and a link passes 1000 bytes a second: then seconds are easy to count."""
    for workers, size, right, words in cases:
        found = asked_number(answer, workers, size, 1000.0, 1.0, about=f"for {words},")
        expect(
            np.isclose(found, right),
            f"{words}. With 1 s a hop and 1000 bytes a second it does not take {found:.4g} s.",
        )


def _deviation(ratio, sample):
    return math.sqrt((1 - ratio) / (ratio * sample))


def _my_gbit(variant):
    workers, elements, ratio, selection = my_training(variant)
    spared = 2 * (workers - 1) / workers * 4 * elements - (workers - 1) * ratio * elements * 8
    return spared / selection / GBIT


def _row(link, method, ms):
    return {"link": link, "method": method, "ratio": 0.01, "indices": "int32", "ms": ms}
