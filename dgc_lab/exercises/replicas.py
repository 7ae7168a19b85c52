"""Checks of exercise 02, replicas: how values of several replicas become one, and which way suits what."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.variants import Variant


def aggregate(answer, variant: Variant) -> str:
    values = [1.0, 2.0, 3.0, 6.0]
    for how, right in {"SUM": 12, "MEAN": 3, "ONLY_FIRST_REPLICA": 1}.items():
        about = f"for {values} and {how}"
        found = array_like(asked(answer, values, how, about=about), np.zeros(4), about)
        expect(np.allclose(found, right), f"{about} every replica must hold {right} afterwards, got {found.tolist()}.")
    about = f"for {values} and NONE"
    found = array_like(asked(answer, values, "NONE", about=about), np.zeros(4), about)
    expect(np.allclose(found, values), f"{about} every replica keeps what it has, got {found.tolist()}.")
    return "right, all four."


def global_accuracy(answer, variant: Variant) -> str:
    about = "for one replica with 9 of 10 right and one with 10 of 90"
    found = asked_number(answer, np.array([9, 10]), np.array([10, 90]), about=about)
    expect(
        not np.isclose(found, 0.9 / 2 + 1 / 18),
        f"{about}: {found:.3f} is the mean of two accuracies, over unequal numbers of examples.",
    )
    expect(np.isclose(found, 0.19), f"{about}: of 100 examples 19 are right, got {found:.3f}.")
    about = "where the last replica had no examples"
    found = asked_number(answer, np.array([3, 0]), np.array([4, 0]), about=about)
    expect(np.isclose(found, 0.75), f"{about}: 3 of 4 are right, got {found:.3f}.")
    return "right: counts are added up, and divided once."


def replica_loss(answer, variant: Variant) -> str:
    losses = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    for slices in ((losses[:3], losses[3:]), (losses[:1], losses[1:3], losses[3:])):
        about = (
            f"for a batch of 6 on {len(slices)} replicas with {', '.join(str(len(each)) for each in slices)} examples"
        )
        found = sum(asked_number(answer, each, 6, about=about) for each in slices)
        expect(
            np.isclose(found, 3.5),
            f"{about}: the replicas' losses are added up, to the batch's mean of 3.5; they give {found:.3g}.",
        )
    return "right, also where the slices are of unequal size."


def combine_gradients(answer, variant: Variant) -> str:
    means, sizes = np.array([[1.0, 0.0], [4.0, 2.0]]), np.array([10, 54])
    about = "for mean gradients [1, 0] of 10 examples and [4, 2] of 54"
    found = array_like(asked(answer, means, sizes, about=about), means[0], about)
    expect(
        not np.allclose(found, [2.5, 1.0]),
        f"{about}: {found.tolist()} weighs an example of the small slice too much.",
    )
    expect(not np.allclose(found, means.sum(0)), f"{about}: {found.tolist()} is the sum; it grows with the replicas.")
    expect(
        np.allclose(found, [226 / 64, 108 / 64]),
        f"{about}: {found.tolist()} is not the mean gradient of all 64 examples.",
    )
    return "right: each mean counts as often as it has examples."


def my_variable(answer, variant: Variant) -> str:
    start, replicas = my_start(variant)
    subtracted = np.arange(1, replicas + 1)
    about = f"for a variable at {start} from which {replicas} replicas subtract 1 to {replicas}"
    mean, total = (number(each, about) for each in parts(answer, ("with MEAN", "with SUM"), about))
    expect(np.isclose(mean, start - subtracted.mean()), f"{about}: with MEAN it is not {mean:g}. What is aggregated?")
    expect(np.isclose(total, start - subtracted.sum()), f"{about}: with SUM it is not {total:g}. What is aggregated?")
    return "right: what is subtracted is aggregated, not the variable."


def my_start(variant: Variant) -> tuple[int, int]:
    """The student's own variable: where it begins, and how many replicas there are.

    Example:
        >>> my_start(Variant(0))
        (200, 9)
    """
    return variant.whole("my_start", 5, 30) * 10, variant.whole("my_replicas", 3, 9)


def merge_moments(answer, variant: Variant) -> str:
    rng = np.random.default_rng(variant.seed("merge_moments"))
    for sizes in ((8, 8), (3, 20, 9)):
        slices = [rng.normal(index, 1 + index, size) for index, size in enumerate(sizes)]
        whole = np.concatenate(slices)
        about = f"for slices of {', '.join(map(str, sizes))} numbers with unlike means"
        moments = np.array([s.mean() for s in slices]), np.array([s.var() for s in slices]), np.array(sizes)
        mean, variance = (
            number(each, about) for each in parts(asked(answer, *moments, about=about), ("mean", "variance"), about)
        )
        expect(np.isclose(mean, whole.mean()), f"{about}: the mean of all is {whole.mean():.4f}, got {mean:.4f}.")
        right, within = np.isclose(variance, whole.var()), np.average(moments[1], weights=sizes)
        expect(
            right or not np.isclose(variance, within),
            f"{about}: {variance:.4f} is the mean of the variances. It misses that the slices' means lie apart.",
        )
        expect(right, f"{about}: the variance of all is {whole.var():.4f}, got {variance:.4f}.")
    return "right: that is what synchronized batch normalization exchanges."


def my_moments(answer, variant: Variant) -> str:
    means, variances, sizes = my_slices(variant)
    about = "for your slices"
    mean, variance = (number(each, about) for each in parts(answer, ("mean", "variance"), about))
    right = np.average(means, weights=sizes)
    expect(np.isclose(mean, right, rtol=1e-3), f"{about} the mean is not {mean:.4g}: how many examples has each?")
    right = np.average(variances + (means - right) ** 2, weights=sizes)
    expect(np.isclose(variance, right, rtol=1e-3), f"{about} the variance is not {variance:.4g}.")
    return "right."


def my_slices(variant: Variant) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The student's own slices: means, variances and sizes of four of them.

    Example:
        >>> my_slices(Variant(0))[2]
        array([40, 30, 25, 59])
    """
    rng = np.random.default_rng(variant.seed("my_slices"))
    return np.round(rng.normal(0, 3, 4), 2), np.round(rng.uniform(0.5, 4, 4), 2), rng.integers(5, 60, 4)
