"""Checks for exercise 02, replicas: aggregation of gradients, counts, metrics."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.variants import Variant


def aggregate(answer, variant: Variant) -> str:
    values = [1.0, 2.0, 3.0, 6.0]
    for how, right in {"SUM": 12, "MEAN": 3, "ONLY_FIRST_REPLICA": 1}.items():
        about = f"for {values} and {how}"
        found = array_like(asked(answer, values, how, about=about), np.zeros(4), about)
        expect(np.allclose(found, right), f"{about}, every replica must hold {right} afterwards, got {found.tolist()}.")
    about = f"for {values} and NONE"
    found = array_like(asked(answer, values, "NONE", about=about), np.zeros(4), about)
    expect(np.allclose(found, values), f"{about}, every replica keeps its own value, got {found.tolist()}.")
    return "right: all four."


def global_accuracy(answer, variant: Variant) -> str:
    about = "for one replica with 9 of 10 right and one with 10 of 90"
    found = asked_number(answer, np.array([9, 10]), np.array([10, 90]), about=about)
    expect(
        not np.isclose(found, 0.9 / 2 + 1 / 18),
        f"{about}, {found:.3f} is the mean of two accuracies over unequal numbers of examples.",
    )
    expect(np.isclose(found, 0.19), f"{about}, 19 of 100 examples are right, got {found:.3f}.")
    about = "for a last replica without examples"
    found = asked_number(answer, np.array([3, 0]), np.array([4, 0]), about=about)
    expect(np.isclose(found, 0.75), f"{about}, 3 of 4 are right, got {found:.3f}.")
    return "right: add up the counts, and divide once."


def replica_loss(answer, variant: Variant) -> str:
    losses = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    for slices in ((losses[:3], losses[3:]), (losses[:1], losses[1:3], losses[3:])):
        about = (
            f"for a batch of 6 on {len(slices)} replicas with {', '.join(str(len(part)) for part in slices)} examples"
        )
        found = sum(asked_number(answer, part, 6, about=about) for part in slices)
        expect(
            np.isclose(found, 3.5),
            f"{about}, the replicas' losses must add up to the batch's mean of 3.5; they add up to {found:.3g}.",
        )
    return "right: also for slices of unequal size."


def combine_gradients(answer, variant: Variant) -> str:
    means, sizes = np.array([[1.0, 0.0], [4.0, 2.0]]), np.array([10, 54])
    about = "for mean gradients [1, 0] of 10 examples and [4, 2] of 54"
    found = array_like(asked(answer, means, sizes, about=about), means[0], about)
    expect(
        not np.allclose(found, [2.5, 1.0]),
        f"{about}, {found.tolist()} gives the examples of the small slice too much weight.",
    )
    expect(not np.allclose(found, means.sum(0)), f"{about}, {found.tolist()} is the sum; it grows with the replicas.")
    expect(
        np.allclose(found, [226 / 64, 108 / 64]),
        f"{about}, {found.tolist()} is not the mean gradient of all 64 examples.",
    )
    return "right: each mean is weighted by its number of examples."


def my_variable(answer, variant: Variant) -> str:
    start, replicas = my_start(variant)
    subtracted = np.arange(1, replicas + 1)
    about = f"for a variable at {start} from which {replicas} replicas subtract 1 to {replicas}"
    mean, total = (number(part, about) for part in parts(answer, ("with MEAN", "with SUM"), about))
    expect(np.isclose(mean, start - subtracted.mean()), f"{about}, MEAN does not give {mean:g}. What is aggregated?")
    expect(np.isclose(total, start - subtracted.sum()), f"{about}, SUM does not give {total:g}. What is aggregated?")
    return "right: the subtracted values are aggregated, not the variable."


def my_start(variant: Variant) -> tuple[int, int]:
    """Return the student's own initial value and number of replicas.

    Example:
        >>> my_start(Variant(0))
        (200, 9)
    """
    return variant.whole("my_start", 5, 30) * 10, variant.whole("my_replicas", 3, 9)


def merge_moments(answer, variant: Variant) -> str:
    rng = np.random.default_rng(variant.seed("merge_moments"))
    for sizes in ((8, 8), (3, 20, 9)):
        slices = [rng.normal(index, 1 + index, size) for index, size in enumerate(sizes)]
        pooled = np.concatenate(slices)
        about = f"for slices of sizes {', '.join(map(str, sizes))} with different means"
        moments = np.array([s.mean() for s in slices]), np.array([s.var() for s in slices]), np.array(sizes)
        mean, variance = (
            number(part, about) for part in parts(asked(answer, *moments, about=about), ("mean", "variance"), about)
        )
        expect(np.isclose(mean, pooled.mean()), f"{about}, the mean of all is {pooled.mean():.4f}, got {mean:.4f}.")
        right, within = np.isclose(variance, pooled.var()), np.average(moments[1], weights=sizes)
        expect(
            right or not np.isclose(variance, within),
            f"{about}, {variance:.4f} is the mean of the variances, which misses the differences between the means.",
        )
        expect(right, f"{about}, the variance of all is {pooled.var():.4f}, got {variance:.4f}.")
    return "right: synchronized batch normalization exchanges these moments."


def my_moments(answer, variant: Variant) -> str:
    means, variances, sizes = my_slices(variant)
    about = "for your slices"
    mean, variance = (number(part, about) for part in parts(answer, ("mean", "variance"), about))
    right = np.average(means, weights=sizes)
    expect(np.isclose(mean, right, rtol=1e-3), f"{about}, the mean is not {mean:.4g}. How large is each slice?")
    right = np.average(variances + (means - right) ** 2, weights=sizes)
    expect(np.isclose(variance, right, rtol=1e-3), f"{about}, the variance is not {variance:.4g}.")
    return "right."


def my_slices(variant: Variant) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, variances and sizes of the student's own four slices.

    Example:
        >>> my_slices(Variant(0))[2]
        array([40, 30, 25, 59])
    """
    rng = np.random.default_rng(variant.seed("my_slices"))
    return np.round(rng.normal(0, 3, 4), 2), np.round(rng.uniform(0.5, 4, 4), 2), rng.integers(5, 60, 4)
