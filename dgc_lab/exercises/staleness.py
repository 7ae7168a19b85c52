"""Checks of exercise 03, staleness: who waits for whom, and how old a gradient is when it arrives."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.variants import Variant


def staleness(answer, variant: Variant) -> str:
    alone = [("reads", 0), ("updates", 0), ("reads", 0), ("updates", 0)]
    cases = (
        (alone, [0, 0], "a worker alone: nobody comes in between"),
        (
            [("reads", 0), ("reads", 1), ("updates", 0), ("updates", 1)],
            [0, 1],
            "two workers that read before either updates",
        ),
        (
            [("reads", 0), ("reads", 1), ("updates", 1), ("reads", 1), ("updates", 1), ("updates", 0)],
            [0, 0, 2],
            "a slow worker 0, and worker 1 updates twice meanwhile",
        ),
    )
    for events, right, words in cases:
        found = _of_events(answer, events, len(right), words)
        expect(
            np.array_equal(found, right),
            f"{words}: {found.tolist()}. Count, for each update, the updates since the same worker last read.",
        )
    events = random_events(np.random.default_rng(variant.seed("staleness")), workers=4, steps=12)
    expect(
        np.array_equal(_of_events(answer, events, 12, "for 4 workers"), counted(events)),
        "for 4 workers in a random order the counts are off: what happens when a worker reads twice in a row?",
    )
    return "right, in any order."


def typical_staleness(answer, variant: Variant) -> str:
    for workers, right in ((1, 0), (2, 1), (8, 7)):
        about = f"for {workers} worker{'s' * (workers > 1)}"
        found = asked_number(answer, workers, about=about)
        expect(found == right, f"{about} of one speed it is not {found:g}: who updates while one of them computes?")
    return "right."


def my_largest_staleness(answer, variant: Variant) -> str:
    found, right = number(answer, "as your largest staleness"), int(counted(my_events(variant)).max())
    expect(found == right, f"in your log it is not {found:g}. Does `staleness(my_log)` say so?")
    return "right."


def my_events(variant: Variant) -> list[tuple[str, int]]:
    """The student's own event log.

    Example:
        >>> my_events(Variant(0))[:2]
        [('reads', 0), ('reads', 1)]
    """
    return random_events(np.random.default_rng(variant.seed("my_events")), workers=5, steps=40)


def may_start(answer, variant: Variant) -> str:
    cases = (
        (3, [3, 3, 3], 0, True, "all are equally far: nobody has to wait, whatever the bound"),
        (4, [4, 3, 3], 0, False, "it is one step ahead, and none is allowed: that is synchronous training"),
        (4, [4, 3, 3], 1, True, "it is one step ahead, and one is allowed"),
        (7, [7, 9, 4], 2, False, "it is three steps ahead of the slowest, and two are allowed"),
        (4, [7, 9, 4], 0, True, "it is the slowest itself, which never waits"),
    )
    for own, steps, bound, right, words in cases:
        found = asked(answer, own, steps, bound, about=f"where {words},")
        expect(np.ndim(found) == 0, f"where {words}, one True or False is asked for, got {np.size(found)} of them.")
        expect(
            bool(found) == right,
            f"with {own} steps done, all workers {steps}, and a bound of {bound}: {words}. So not {found!s:.9}.",
        )
    return "right: the slowest decides."


def synchronous_seconds(answer, variant: Variant) -> str:
    seconds = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 5.0, 1.0, 1.0], [2.0, 1.0, 1.0, 1.0]])
    about = "for three steps of four workers, in which the slowest takes 1, 5 and 2 s,"
    found = asked_number(answer, seconds, about=about)
    expect(
        not np.isclose(found, 7.0),
        f"{about} 7 s is what the slowest worker needs in all; but others wait in each step.",
    )
    expect(np.isclose(found, 8.0), f"{about} it is not {found:g} s. When does a step end, if all wait for all?")
    return "right: each step lasts as long as its slowest worker."


def asynchronous_updates(answer, variant: Variant) -> str:
    about = "for workers that take 1, 2 and 10 s a step, in 20 s"
    found = asked_number(answer, np.array([1.0, 2.0, 10.0]), 20.0, about=about)
    expect(found == 32, f"{about} there are 20 + 10 + 2 updates, got {found:g}.")
    about = "for workers that take 3 and 7 s a step, in 20 s"
    found = asked_number(answer, np.array([3.0, 7.0]), 20.0, about=about)
    expect(found == 8, f"{about}: only whole steps end in an update, so not {found:g}.")
    return "right: a straggler holds up nobody but itself."


def backup_seconds(answer, variant: Variant) -> str:
    seconds = np.array([[1.0, 9.0, 2.0, 3.0], [4.0, 1.0, 1.0, 8.0]])
    for needed, right in ((4, 17.0), (3, 7.0), (1, 2.0)):
        about = f"for two steps of four workers, of which {needed} are needed,"
        found = asked_number(answer, seconds, needed, about=about)
        expect(
            np.isclose(found, right),
            f"{about} it takes {right:g} s, got {found:g}: the step ends when {needed} have arrived.",
        )
    return "right: the slowest are not waited for."


def random_events(rng, workers: int, steps: int) -> list[tuple[str, int]]:
    """An event log in which every worker reads before it updates, until there are so many updates."""
    events, holding, updates = [("reads", worker) for worker in range(workers)], [True] * workers, 0
    while updates < steps:
        worker = int(rng.choice(workers, p=np.arange(1, workers + 1) / (workers * (workers + 1) / 2)))
        if holding[worker] and rng.random() < 0.2:
            events.append(("reads", worker))  # reads again before it begins
            continue
        events.append(("updates" if holding[worker] else "reads", worker))
        updates += holding[worker]
        holding[worker] = not holding[worker]
    return events


def counted(events) -> np.ndarray:
    """The staleness of each update in an event log, int (updates,)."""
    updates, read_at, found = 0, {}, []
    for what, worker in events:
        if what == "reads":
            read_at[worker] = updates
        else:
            found.append(updates - read_at[worker])
            updates += 1
    return np.array(found)


def _of_events(answer, events, updates, words):
    return array_like(asked(answer, list(events), about=f"for {words},"), np.zeros(updates), f"for {words},")


def my_waiting(answer, variant: Variant) -> str:
    about = "for your cluster"
    every, backup = (number(each, about) for each in parts(answer, ("for all", "with a backup"), about))
    ordered = np.sort(my_cluster(variant), axis=1)
    expect(np.isclose(every, ordered[:, -1].sum(), rtol=1e-3), f"{about}: waiting for all does not take {every:.4g} s.")
    expect(
        np.isclose(backup, ordered[:, -2].sum(), rtol=1e-3),
        f"{about}: with one backup worker it does not take {backup:.4g} s. Whom does a step not wait for?",
    )
    return "right."


def my_cluster(variant: Variant) -> np.ndarray:
    """The student's own seconds, (steps, workers).

    Example:
        >>> my_cluster(Variant(0)).shape
        (6, 5)
    """

    def draw(variant):
        rng = np.random.default_rng(variant.seed("my_cluster"))
        return np.round(rng.uniform(1, 2, (6, 5)) * rng.choice([1, 1, 1, 4], (6, 5)), 2)

    def slowest_changes(seconds):
        """Whoever is always left out: that is another time than without the slowest of each step."""
        right = np.sort(seconds, axis=1)[:, -2].sum()
        return not any(np.isclose(np.delete(seconds, each, 1).max(1).sum(), right, rtol=0.01) for each in range(5))

    return variant.first(draw, slowest_changes)
