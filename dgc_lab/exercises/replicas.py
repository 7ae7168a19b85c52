"""Checks for exercise 02, replicas: gradients, counts, moments and weights of several replicas."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.training import my_digits, softmax_gradient, softmax_loss, zero_weights
from dgc_lab.exercises.variants import Variant


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
    return "right: even for slices of unequal size."


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


def local_training(answer, variant: Variant) -> str:
    images, labels = my_digits(variant, workers=3, by_class=True)
    for every, steps, hint in (
        (1, 3, "with a mean after every step, this is gradient descent with the mean of the replicas' gradients"),
        (8, 2, "the replicas replace their weights by the mean after the last step as well"),
        (2, 4, "between two means, each replica continues from its own weights"),
        (2, 5, "every replica continues from the mean"),
    ):
        about = f"for {steps} steps of 3 replicas at a rate of 0.5 with a mean every {every} steps"
        found = array_like(asked(answer, images, labels, 0.5, every, steps, about=about), zero_weights(), about)
        loss = softmax_loss(found, images.reshape(-1, images.shape[2]), labels.ravel())
        right = _averaged(images, labels, 0.5, every, steps)
        expect(np.allclose(found, right, atol=1e-6), f"{about}, the weights differ (their loss is {loss:.3f}): {hint}.")
    images, labels = my_digits(variant, workers=4, by_class=True)
    every = images.reshape(-1, images.shape[2]), labels.ravel()
    losses = [f"{softmax_loss(_averaged(images, labels, 0.5, each, 32), *every):.3f}" for each in (1, 4, 16)]
    return f"right: after 32 steps, a mean every 1, 4 and 16 steps gives losses of {', '.join(losses)}."


def _averaged(images, labels, rate, every, steps):
    """Return the mean of the replicas' weights after local SGD, (64, 10)."""
    replicas = np.stack([zero_weights()] * len(images))
    for step in range(steps):
        for replica, weights in enumerate(replicas):
            weights -= rate * softmax_gradient(weights, images[replica], labels[replica])
        if (step + 1) % every == 0:
            replicas[:] = replicas.mean(0)
    return replicas.mean(0)
