"""Checks for exercise 03, staleness: stragglers and the age of gradients."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.training import my_digits, softmax_gradient, softmax_loss, zero_weights
from dgc_lab.exercises.variants import Variant


def staleness(answer, variant: Variant) -> str:
    alone = [("reads", 0), ("updates", 0), ("reads", 0), ("updates", 0)]
    cases = (
        (alone, [0, 0], "a single worker, where no other update comes in between"),
        (
            [("reads", 0), ("reads", 1), ("updates", 0), ("updates", 1)],
            [0, 1],
            "two workers that both read before either updates",
        ),
        (
            [("reads", 0), ("reads", 1), ("updates", 1), ("reads", 1), ("updates", 1), ("updates", 0)],
            [0, 0, 2],
            "a slow worker 0, during whose step worker 1 updates twice",
        ),
    )
    for events, right, words in cases:
        found = _run_on_events(answer, events, len(right), f"for {words}")
        expect(
            np.array_equal(found, right),
            f"for {words}, the result is not {found.tolist()}. Count, for each update, the updates since the same "
            "worker's last read.",
        )
    events = random_events(np.random.default_rng(variant.seed("staleness")), workers=4, steps=12)
    expect(
        np.array_equal(_run_on_events(answer, events, 12, "for 4 workers"), counted(events)),
        "for 4 workers in random order, the counts are wrong. What happens when a worker reads twice in a row?",
    )
    return "right: for any order of events."


def my_largest_staleness(answer, variant: Variant) -> str:
    found, right = number(answer, "for your largest staleness"), int(counted(my_events(variant)).max())
    expect(
        found == right, f"in your log, the largest staleness is not {found:g}. What does `staleness(my_log)` return?"
    )
    return "right."


def my_events(variant: Variant) -> list[tuple[str, int]]:
    """Return the student's own event log.

    Example:
        >>> my_events(Variant(0))[:2]
        [('reads', 0), ('reads', 1)]
    """
    return random_events(np.random.default_rng(variant.seed("my_events")), workers=5, steps=40)


def may_start(answer, variant: Variant) -> str:
    cases = (
        (3, [3, 3, 3], 0, True, "all workers have done equally many steps, so none waits, whatever the bound"),
        (4, [4, 3, 3], 0, False, "it is one step ahead and none is allowed, as in synchronous training"),
        (4, [4, 3, 3], 1, True, "it is one step ahead, and one is allowed"),
        (7, [7, 9, 4], 2, False, "it is three steps ahead of the slowest, and two are allowed"),
        (4, [7, 9, 4], 0, True, "it is the slowest worker, which never waits"),
    )
    for own, steps, bound, right, hint in cases:
        about = f"for own={own}, steps={steps} and bound={bound}"
        found = asked(answer, own, steps, bound, about=about)
        expect(np.ndim(found) == 0, f"{about}, expected a single True or False, got {np.size(found)} values.")
        expect(bool(found) == right, f"{about}, the answer is not {found!s:.9}: {hint}.")
    return "right: the slowest worker decides."


def asynchronous_updates(answer, variant: Variant) -> str:
    about = "for workers that take 1, 2 and 10 s per step, in 20 s"
    found = asked_number(answer, np.array([1.0, 2.0, 10.0]), 20.0, about=about)
    expect(found == 32, f"{about}, there are 20 + 10 + 2 updates, got {found:g}.")
    about = "for workers that take 3 and 7 s per step, in 20 s"
    found = asked_number(answer, np.array([3.0, 7.0]), 20.0, about=about)
    expect(found == 8, f"{about}, only complete steps end in an update, so there are not {found:g}.")
    return "right: a straggler delays only itself."


def backup_seconds(answer, variant: Variant) -> str:
    seconds = np.array([[1.0, 9.0, 2.0, 3.0], [4.0, 1.0, 1.0, 8.0]])
    for needed, right in ((4, 17.0), (3, 7.0), (1, 2.0)):
        about = f"for two steps of four workers, of which {needed} are needed"
        found = asked_number(answer, seconds, needed, about=about)
        expect(
            np.isclose(found, right),
            f"{about}, the time is {right:g} s, got {found:g}: a step ends when {needed} have arrived.",
        )
    return "right: a step does not wait for the slowest workers."


def random_events(rng, workers: int, steps: int) -> list[tuple[str, int]]:
    """Return a log of ``steps`` updates, each by a worker that has read before."""
    events, holding, updates = [("reads", worker) for worker in range(workers)], [True] * workers, 0
    while updates < steps:
        worker = int(rng.choice(workers, p=np.arange(1, workers + 1) / (workers * (workers + 1) / 2)))
        if holding[worker] and rng.random() < 0.2:
            events.append(("reads", worker))  # reads again before it computes
            continue
        events.append(("updates" if holding[worker] else "reads", worker))
        updates += holding[worker]
        holding[worker] = not holding[worker]
    return events


def counted(events) -> np.ndarray:
    """Return the staleness of each update in an event log, int (updates,)."""
    updates, read_at, found = 0, {}, []
    for what, worker in events:
        if what == "reads":
            read_at[worker] = updates
        else:
            found.append(updates - read_at[worker])
            updates += 1
    return np.array(found)


def _run_on_events(answer, events, updates, about):
    return array_like(asked(answer, list(events), about=about), np.zeros(updates), about)


def my_waiting(answer, variant: Variant) -> str:
    about = "for your cluster"
    full, backup = (number(part, about) for part in parts(answer, ("waiting for all", "one backup worker"), about))
    ordered = np.sort(my_cluster(variant), axis=1)
    expect(np.isclose(full, ordered[:, -1].sum(), rtol=1e-3), f"{about}, waiting for all does not take {full:.4g} s.")
    expect(
        np.isclose(backup, ordered[:, -2].sum(), rtol=1e-3),
        f"{about}, one backup worker does not give {backup:.4g} s. Which worker does a step not wait for?",
    )
    return "right."


def my_cluster(variant: Variant) -> np.ndarray:
    """Return the student's own step times in seconds, (steps, workers).

    Example:
        >>> my_cluster(Variant(0)).shape
        (6, 5)
    """

    def draw(variant):
        rng = np.random.default_rng(variant.seed("my_cluster"))
        return np.round(rng.uniform(1, 2, (6, 5)) * rng.choice([1, 1, 1, 4], (6, 5)), 2)

    def slowest_changes(seconds):
        """Return whether skipping one fixed worker never equals skipping each step's slowest."""
        right = np.sort(seconds, axis=1)[:, -2].sum()
        return not any(np.isclose(np.delete(seconds, each, 1).max(1).sum(), right, rtol=0.01) for each in range(5))

    return variant.first(draw, slowest_changes)


def stale_training(answer, variant: Variant) -> str:
    (images,), (labels,) = my_digits(variant, workers=1)
    for delay, steps, hint in (
        (0, 3, "without staleness, this is gradient descent"),
        (2, 3, "the first three gradients are computed at the initial weights: two of them have no older ones"),
        (2, 5, "step 4 uses the gradient at the weights that step 2 started from"),
    ):
        about = f"for {steps} steps at a rate of 0.5 with a staleness of {delay}"
        found = array_like(asked(answer, images, labels, 0.5, delay, steps, about=about), zero_weights(), about)
        right = _delayed(images, labels, 0.5, delay, steps)
        loss = softmax_loss(found, images, labels)
        expect(np.allclose(found, right, atol=1e-6), f"{about}, the weights differ (their loss is {loss:.3f}): {hint}.")
    table = []
    for delay in (0, 3, 7):
        weights = [_delayed(images, labels, rate, delay, 60) for rate in (0.25, 0.5, 1, 2)]
        losses = ", ".join(f"{softmax_loss(each, images, labels):.2f}" for each in weights)
        table.append(f"{losses} at staleness {delay}")
    return f"right: at rates 0.25, 0.5, 1 and 2, the losses are {'; '.join(table)}."


def _delayed(images, labels, rate, delay, steps):
    """Return the weights after training with stale gradients, (64, 10)."""
    weights, in_flight = zero_weights(), [zero_weights()] * (delay + 1)
    for _ in range(steps):
        in_flight = [*in_flight[1:], weights]
        weights = weights - rate * softmax_gradient(in_flight[0], images, labels)
    return weights
