"""Checks for exercise 08, other compressors: rounding, error feedback, contest."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_arrays, asked_number, expect, number, parts
from dgc_lab.exercises.contest import BUDGET, contest_accuracy
from dgc_lab.exercises.variants import Variant

GOOD, VERY_GOOD = 0.75, 0.85  # accuracies that the contest gives points for


def quantise(answer, variant: Variant) -> str:
    cases = (
        ([3.0, -4.0], 5, [0.0, 0.0], [3.0, -4.0], "the norm is 5, so both values are levels and stay"),
        ([3.0, -4.0], 1, [0.3, 0.3], [0.0, -5.0], "0.6 + 0.3 stays below 1, and 0.8 + 0.3 does not"),
        ([3.0, -4.0], 1, [0.5, 0.1], [5.0, 0.0], "0.6 + 0.5 reaches 1, and 0.8 + 0.1 does not"),
        ([0.0, 0.0], 3, [0.9, 0.0], [0.0, 0.0], "the norm is 0, and so is the result"),
    )
    for values, levels, chances, right, hint in cases:
        about = f"for {values}, levels={levels} and chances {chances}"
        found = asked(answer, np.array(values), levels, np.array(chances), about=about)
        found = array_like(found, np.array(right), about)
        expect(np.allclose(found, right), f"{about}, the result is not {np.asarray(found).round(3).tolist()}: {hint}.")
    x, rng = variant.gradient("quantise", 20).astype(float), np.random.default_rng(variant.seed("chances"))
    draws = np.array([asked(answer, x, 2, rng.random(20), about="for 20 numbers") for _ in range(4000)])
    error, unit = np.abs(draws.mean(0) - x), np.linalg.norm(x) / 2
    tolerance = 6 * np.sqrt(_variances(x, 2) / len(draws)) + 10 * unit / len(draws)  # the second term: rare roundings
    worst = int(np.argmax(error - tolerance))
    expect(
        np.all(error < tolerance),
        f"averaged over 4000 draws, element {worst} is off by {error[worst]:.2g}, more than chance explains. Is it "
        "rounded up as often as it should be?",
    )
    return "right: every draw has an error, but the rounding is unbiased."


def my_variance(answer, variant: Variant) -> str:
    found, right = number(answer, "for your variance"), _variances(*my_gradient(variant)).sum()
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"for your gradient, the variance is not {found:.4g}. An element between two levels is rounded up with "
        "probability p, so its variance is p (1 - p) times the squared distance of the levels; sum over all elements.",
    )
    return "right."


def my_gradient(variant: Variant) -> tuple[np.ndarray, int]:
    """Return the student's own gradient and number of levels.

    Example:
        >>> gradient, levels = my_gradient(Variant(0))
        >>> gradient.shape, 2 <= levels <= 7
        ((50,), True)
    """
    return variant.gradient("my_gradient", 50).astype(float), variant.whole("my_levels", 2, 7)


def with_feedback(answer, variant: Variant) -> str:
    def rounded(vector):
        return np.round(vector)

    about = "for [0.4, 1.2] and the memory [0.3, 0.4]"
    gradient, memory = np.array([0.4, 1.2]), np.array([0.3, 0.4])
    names = ("sent", "memory")
    sent, memory = asked_arrays(answer, gradient, memory, rounded, names=names, pattern=gradient, about=about)
    expect(np.allclose(sent, [1, 2]), f"{about}, the rounded sum is [1, 2], got {sent.tolist()}.")
    expect(
        np.allclose(memory, [-0.3, -0.4]),
        f"{about}, [1, 2] of [0.7, 1.6] was sent; the new memory is not {memory.tolist()}.",
    )
    rng = np.random.default_rng(variant.seed("with_feedback"))
    total_in, total_sent, memory = np.zeros(6), np.zeros(6), np.zeros(6)
    for _ in range(30):
        gradient = rng.normal(size=6)
        about = "in one of 30 steps"
        sent, memory = asked_arrays(answer, gradient, memory, rounded, names=names, pattern=gradient, about=about)
        total_in, total_sent = total_in + gradient, total_sent + sent
    expect(
        np.allclose(total_sent + memory, total_in),
        "after 30 steps, everything sent plus the memory must be the sum of the gradients.",
    )
    return "right: nothing is lost, only delayed."


def my_memory(answer, variant: Variant) -> str:
    found, right = number(answer, "for the norm of your memory"), _memory_norm(my_gradients(variant))
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"after your gradients, the norm of the memory is not {found:.4g}. The memory starts with zeros.",
    )
    return "right."


def my_gradients(variant: Variant) -> np.ndarray:
    """Return the student's own gradients of 20 steps, float64 (20, 8).

    Example:
        >>> my_gradients(Variant(0)).shape
        (20, 8)
    """

    def draw(variant):
        return np.random.default_rng(variant.seed("my_gradients")).normal(size=(20, 8))

    return variant.first(draw, lambda drawn: not np.isclose(_memory_norm(drawn), _memory_norm(drawn[-1:]), rtol=0.01))


def scaled_signs(vector):
    """Return each element's sign times the mean magnitude, as in EF-signSGD.

    Example:
        >>> scaled_signs(np.array([3.0, -1.0])).tolist()
        [2.0, -2.0]
    """
    return np.where(vector >= 0, 1.0, -1.0) * np.abs(vector).mean()


def packed_bytes(answer, variant: Variant) -> str:
    cases = (
        ([8], 2, 5, "8 signs take one byte and the scale takes four"),
        ([9], 2, 6, "the ninth sign starts another byte"),
        ([9, 1], 2, 11, "two tensors share no byte, and each has its scale"),
        ([8], 3, 6, "three values need two bits, so a byte holds four elements"),
        ([10], 15, 9, "15 values need four bits"),
        ([10], 17, 14, "17 values need five bits, which do not divide a byte, so they take eight"),
    )
    for sizes, values, right, hint in cases:
        about = f"for sizes {sizes} and {values} values"
        found = asked_number(answer, sizes, values, about=about)
        expect(found == right, f"{about}, the message does not have {found:g} bytes: {hint}.")
    return "right."


def powersgd_step(answer, variant: Variant) -> str:
    rng = np.random.default_rng(variant.seed("powersgd_step"))
    for rank, words in ((1, "two workers and rank 1"), (3, "three workers and rank 3")):
        gradients = [rng.normal(size=(7, 5)) for _ in range(max(2, rank))]
        right, about = rng.normal(size=(5, rank)), f"for {words}"
        update, factor = parts(asked(answer, gradients, right, about=about), ("update", "right factor"), about)
        expected, kept = _low_rank(gradients, right)
        update = array_like(update, expected, f"for the update of {words}")
        expect(np.linalg.matrix_rank(update) <= rank, f"{about}, the update's rank is {np.linalg.matrix_rank(update)}.")
        expect(
            np.allclose(update, expected),
            f"{about}, the update is not the left factor, with orthonormal columns, times the right one. Both are "
            "means over the workers.",
        )
        factor = array_like(factor, kept, f"for the right factor of {words}")
        expect(np.allclose(np.abs(factor), np.abs(kept)), f"{about}, the right factor for the next step is different.")
    mean = np.outer(np.arange(1.0, 8), np.arange(5.0))
    about = "for a matrix of rank 1"
    result = asked(answer, [mean, mean], rng.normal(size=(5, 1)), about=about)
    update, factor = parts(result, ("update", "right factor"), about)
    array_like(factor, np.zeros((5, 1)), f"{about}, in the right factor")
    expect(np.allclose(array_like(update, mean, about), mean), f"{about}, the update is the matrix itself.")
    return "right: an allreduce can compute both means."


def my_share(answer, variant: Variant) -> str:
    matrix = my_matrix(variant)
    update, _ = _low_rank([matrix], np.eye(12)[:, :2])
    right = np.sum(update**2) / np.sum(matrix**2)
    found = number(answer, "for your share")
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"the update's share of your matrix's sum of squares is not {found:.4g}. Start with the first two columns of "
        "the identity matrix, and make one step.",
    )
    return "right."


def my_matrix(variant: Variant) -> np.ndarray:
    """Return the student's own float64 (20, 12) matrix with few dominant directions.

    Example:
        >>> my_matrix(Variant(0)).shape
        (20, 12)
    """
    rng = np.random.default_rng(variant.seed("my_matrix"))
    return rng.normal(size=(20, 12)) * 2.0 ** -np.arange(12) @ rng.normal(size=(12, 12))


def mended_mean(answer, variant: Variant) -> str:
    for messages, right, words in (
        ([([0, 2], [4.0, 2.0]), ([2], [6.0])], [2, 0, 4, 0], "two workers, one of which sends element 0"),
        ([([1], [3.0]), ([1], [3.0]), ([], [])], [0, 2, 0, 0], "three workers, one of which sends nothing"),
    ):
        sent = [(np.array(positions, int), np.array(values, float)) for positions, values in messages]
        found = array_like(asked(answer, sent, 4, about=f"for {words}"), np.zeros(4), f"for {words}")
        expect(np.allclose(found, right), f"for {words}, the mean over the workers is not {found.tolist()}.")
    return "right: an element that a worker does not send counts as zero."


def mended_memory(answer, variant: Variant) -> str:
    gradient, memory, count = np.array([3.0, -1.0, 0.5]), np.array([0.0, -3.0, 0.0]), 1
    about = "for a memory of [0, -3, 0]"
    names = ("sent", "memory")
    sent, kept = asked_arrays(answer, gradient, memory, count, names=names, pattern=gradient, about=about)
    expect(
        np.allclose(sent, [0, -4, 0]),
        f"with the memory added, the largest element is -4 at position 1; your function sent {sent.tolist()}.",
    )
    expect(np.allclose(sent + kept, gradient + memory), f"sent elements leave the memory; got {kept.tolist()}.")
    return "right."


def mended_draw(answer, variant: Variant) -> str:
    draws = [asked(answer, 40, 5, seed, worker, about="for 40 elements") for seed in (1, 2) for worker in range(3)]
    draws = [np.sort(array_like(positions, np.zeros(5), "for 40 elements")) for positions in draws]
    expect(
        all(np.array_equal(positions, draws[0]) for positions in draws[1:3]),
        "the workers draw different positions, so the allreduce adds up elements that do not belong together.",
    )
    expect(not np.array_equal(draws[0], draws[3]), "another seed must give other positions, or some are never sent.")
    expect(all(one.min() >= 0 and one.max() < 40 for one in draws), "a position is not among the 40 elements.")
    expect(all(len(set(one.tolist())) == 5 for one in draws), "a position is drawn twice.")
    return "right: all workers use the same seed."


def contest_good(answer, variant: Variant) -> str:
    return _check_accuracy(answer, GOOD)


def contest_very_good(answer, variant: Variant) -> str:
    return _check_accuracy(answer, VERY_GOOD)


def _check_accuracy(answer, least: float) -> str:
    found = contest_accuracy(*parts(answer, ("compress", "decompress"), "for your scheme"))
    # The contest's table parses this message.
    reached = f"accuracy {found:.3f} with at most {BUDGET} bytes per step"
    expect(found >= least, f"{reached}; at least {least} is required.")
    return f"right: {reached}."


def _variances(gradient, levels: int) -> np.ndarray:
    """Return the variance of each element under stochastic rounding."""
    unit = np.linalg.norm(gradient) / levels
    above = np.abs(gradient) / unit % 1
    return above * (1 - above) * unit**2


def _memory_norm(gradients) -> float:
    """Return the norm of the error-feedback memory after these gradients."""
    memory = np.zeros(gradients.shape[1])
    for gradient in gradients:
        corrected = gradient + memory
        memory = corrected - scaled_signs(corrected)
    return np.linalg.norm(memory)


def _low_rank(gradients, right):
    mean = np.mean(gradients, axis=0)
    basis, _ = np.linalg.qr(mean @ right)
    return basis @ basis.T @ mean, mean.T @ basis
