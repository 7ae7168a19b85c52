"""Checks of exercise 08, other compressors: rounding by chance, error feedback, packed bytes, low rank, a contest."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.contest import BUDGET, contest_accuracy
from dgc_lab.exercises.variants import Variant

GOOD, VERY_GOOD = 0.75, 0.85  # accuracies of the contest


def quantise(answer, variant: Variant) -> str:
    cases = (
        ([3.0, -4.0], 5, [0.0, 0.0], [3.0, -4.0], "norm 5 in 5 levels: both are levels, and stay"),
        ([3.0, -4.0], 1, [0.3, 0.3], [0.0, -5.0], "one level: 0.6 + 0.3 stays below 1, 0.8 + 0.3 does not"),
        ([3.0, -4.0], 1, [0.5, 0.1], [5.0, 0.0], "one level, with other chances: 0.6 + 0.5, 0.8 + 0.1"),
        ([0.0, 0.0], 3, [0.9, 0.0], [0.0, 0.0], "zeros: the norm is 0, and so is the answer"),
    )
    for values, levels, chances, right, words in cases:
        about = f"for {values} with {words},"
        found = asked(answer, np.array(values), levels, np.array(chances), about=about)
        found = array_like(found, np.array(right), about)
        expect(np.allclose(found, right), f"{about} it is not {np.asarray(found).round(3).tolist()}.")
    x, rng = variant.gradient("quantise", 20).astype(float), np.random.default_rng(variant.seed("chances"))
    draws = np.array([asked(answer, x, 2, rng.random(20), about="for 20 numbers") for _ in range(4000)])
    apart, unit = np.abs(draws.mean(0) - x), np.linalg.norm(x) / 2
    likely = 6 * np.sqrt(_variances(x, 2) / len(draws)) + 10 * unit / len(draws)  # the latter for what is rare
    worst = int(np.argmax(apart - likely))
    expect(
        np.all(apart < likely),
        f"in the mean of 4000 draws element {worst} is off by {apart[worst]:.2g}, which chance does not explain: is it "
        "rounded up as often as it should be?",
    )
    return "right: off in every draw, and right in the mean."


def my_variance(answer, variant: Variant) -> str:
    found, right = number(answer, "as your variance"), _variances(*my_gradient(variant)).sum()
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"for your gradient it is not {found:.4g}. An element between two levels goes up with probability p, so its "
        "variance is p (1 - p) times the square of the distance between levels; add up all elements.",
    )
    return "right."


def my_gradient(variant: Variant) -> tuple[np.ndarray, int]:
    """The student's own gradient, and the levels that it is rounded to.

    Example:
        >>> gradient, levels = my_gradient(Variant(0))
        >>> gradient.shape, 2 <= levels <= 7
        ((50,), True)
    """
    return variant.gradient("my_gradient", 50).astype(float), variant.whole("my_levels", 2, 7)


def with_feedback(answer, variant: Variant) -> str:
    def halves(vector):
        return np.round(vector)

    sent, memory = _fed(answer, np.array([0.4, 1.2]), np.array([0.3, 0.4]), halves, "for a memory that is not empty,")
    expect(
        np.allclose(sent, [1, 2]), f"[0.4, 1.2] and the memory [0.3, 0.4], rounded, are [1, 2], not {sent.tolist()}."
    )
    expect(np.allclose(memory, [-0.3, -0.4]), f"of [0.7, 1.6], [1, 2] was sent; what is left is not {memory.tolist()}.")
    rng = np.random.default_rng(variant.seed("with_feedback"))
    came, went, memory = np.zeros(6), np.zeros(6), np.zeros(6)
    for _ in range(30):
        gradient = rng.normal(size=6)
        sent, memory = _fed(answer, gradient, memory, halves, "in one of 30 steps")
        came, went = came + gradient, went + sent
    expect(np.allclose(went + memory, came), "after 30 steps, what was sent and the memory are not what came in.")
    return "right: nothing is lost, it only comes later."


def my_memory(answer, variant: Variant) -> str:
    found, right = number(answer, "as the norm of your memory"), _memory(my_gradients(variant))
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"after your gradients the memory's norm is not {found:.4g}. It begins with zeros.",
    )
    return "right."


def my_gradients(variant: Variant) -> np.ndarray:
    """The student's own gradients of 20 steps, float64 (20, 8).

    Example:
        >>> my_gradients(Variant(0)).shape
        (20, 8)
    """

    def draw(variant):
        return np.random.default_rng(variant.seed("my_gradients")).normal(size=(20, 8))

    return variant.first(draw, lambda drawn: not np.isclose(_memory(drawn), _memory(drawn[-1:]), rtol=0.01))


def scaled_signs(vector):
    """Each element's sign, times the mean magnitude: what EF-signSGD sends.

    Example:
        >>> scaled_signs(np.array([3.0, -1.0])).tolist()
        [2.0, -2.0]
    """
    return np.where(vector >= 0, 1.0, -1.0) * np.abs(vector).mean()


def packed_bytes(answer, variant: Variant) -> str:
    cases = (
        ([8], 2, 5, "8 signs and a scale: one byte and four"),
        ([9], 2, 6, "9 signs and a scale: the ninth begins another byte"),
        ([9, 1], 2, 11, "two tensors of 9 and 1: bytes are not shared, and each has its scale"),
        ([8], 3, 6, "three values need two bits: four of them a byte"),
        ([10], 15, 9, "15 values need four bits"),
        ([10], 17, 14, "17 values need five bits, which do not divide a byte: eight it is"),
    )
    for sizes, values, right, words in cases:
        found = asked_number(answer, sizes, values, about=f"for {words},")
        expect(found == right, f"{words}. You say {found:g} bytes.")
    return "right."


def my_message(answer, variant: Variant) -> str:
    found, (sizes, values) = number(answer, "as your bytes"), my_tensors(variant)
    expect(found == _packed(sizes, values), f"for your tensors it is not {found:g}.")
    return "right."


def my_tensors(variant: Variant) -> tuple[list[int], int]:
    """The sizes of the student's own tensors, and how many values an element may have.

    Example:
        >>> sizes, values = my_tensors(Variant(0))
        >>> len(sizes), values in (2, 3, 7, 15, 31)
        (4, True)
    """
    sizes = [variant.whole(f"size {number}", 11, 9999) for number in range(4)]
    return sizes, variant.choice("my_values", (3, 7, 15, 31))


def powersgd_step(answer, variant: Variant) -> str:
    rng = np.random.default_rng(variant.seed("powersgd_step"))
    for rank, words in ((1, "two workers and rank 1"), (3, "three workers and rank 3")):
        gradients = [rng.normal(size=(7, 5)) for _ in range(max(2, rank))]
        right, about = rng.normal(size=(5, rank)), f"for {words},"
        update, factor = parts(asked(answer, gradients, right, about=about), ("the update", "the right factor"), about)
        expected, kept = _low_rank(gradients, right)
        update = array_like(update, expected, about + " the update:")
        expect(np.linalg.matrix_rank(update) <= rank, f"{about} the update's rank is {np.linalg.matrix_rank(update)}.")
        expect(
            np.allclose(update, expected),
            f"{about} the update is not the left factor, its columns orthonormal, times the right one. Both are means "
            "over the workers.",
        )
        factor = array_like(factor, kept, about + " the right factor:")
        expect(np.allclose(np.abs(factor), np.abs(kept)), f"{about} the factor to begin the next step with is another.")
    mean = np.outer(np.arange(1.0, 8), np.arange(5.0))
    update, _ = asked(answer, [mean, mean], rng.normal(size=(5, 1)), about="for a matrix of rank 1")
    expect(np.allclose(update, mean), "a matrix of rank 1 goes through whole.")
    return "right: two means, and an allreduce carries both."


def my_share(answer, variant: Variant) -> str:
    matrix = my_matrix(variant)
    update, _ = _low_rank([matrix], np.eye(12)[:, :2])
    right = np.sum(update**2) / np.sum(matrix**2)
    found = number(answer, "as your share")
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"of your matrix's square the update does not have {found:.4g}. Begin with the first two columns of the "
        "identity matrix, and make one step.",
    )
    return "right."


def my_matrix(variant: Variant) -> np.ndarray:
    """The student's own gradient, float64 (20, 12), with a few large directions.

    Example:
        >>> my_matrix(Variant(0)).shape
        (20, 12)
    """
    rng = np.random.default_rng(variant.seed("my_matrix"))
    return rng.normal(size=(20, 12)) * 2.0 ** -np.arange(12) @ rng.normal(size=(12, 12))


def mended_mean(answer, variant: Variant) -> str:
    for messages, right, words in (
        ([([0, 2], [4.0, 2.0]), ([2], [6.0])], [2, 0, 4, 0], "two workers, element 0 sent by one of them"),
        ([([1], [3.0]), ([1], [3.0]), ([], [])], [0, 2, 0, 0], "three workers, of which one sends nothing"),
    ):
        sent = [(np.array(places, int), np.array(values, float)) for places, values in messages]
        found = array_like(asked(answer, sent, 4, about=f"for {words},"), np.zeros(4), f"for {words},")
        expect(np.allclose(found, right), f"{words}: the mean over the workers is not {found.tolist()}.")
    return "right: who sends nothing counts as zero."


def mended_memory(answer, variant: Variant) -> str:
    gradient, memory, share = np.array([3.0, -1.0, 0.5]), np.array([0.0, -3.0, 0.0]), 1
    sent, kept = _fed(lambda g, m, c: answer(g, m, share), gradient, memory, None, "for a memory of [0, -3, 0],")
    expect(
        np.allclose(sent, [0, -4, 0]),
        f"with the memory the largest element is -4, in place 1; sent was {sent.tolist()}.",
    )
    expect(np.allclose(sent + kept, gradient + memory), f"{kept.tolist()} is kept: what was sent is still in it.")
    return "right."


def mended_draw(answer, variant: Variant) -> str:
    every = [asked(answer, 40, 5, seed, worker, about="for 40 elements") for seed in (1, 2) for worker in range(3)]
    every = [np.sort(array_like(one, np.zeros(5), "for 40 elements")) for one in every]
    expect(
        all(np.array_equal(one, every[0]) for one in every[1:3]),
        "the workers draw different places: the mean of what they send is of elements that do not belong together.",
    )
    expect(not np.array_equal(every[0], every[3]), "another seed must draw other places, or some are never sent.")
    expect(all(one.min() >= 0 and one.max() < 40 for one in every), "a place that the 40 elements do not have.")
    expect(all(len(set(one.tolist())) == 5 for one in every), "a place twice.")
    return "right: one seed for all workers."


def contest_good(answer, variant: Variant) -> str:
    return _reached(answer, GOOD)


def contest_very_good(answer, variant: Variant) -> str:
    return _reached(answer, VERY_GOOD)


def _reached(answer, least: float) -> str:
    found = contest_accuracy(*parts(answer, ("compress", "decompress"), "as your scheme"))
    words = f"accuracy {found:.3f} with at most {BUDGET} bytes a step"
    expect(found >= least, f"{words}; asked for are {least}.")
    return f"right: {words}."


def _fed(answer, gradient, memory, compress, about: str):
    found = asked(answer, gradient, memory, compress, about=about)
    sent, kept = parts(found, ("what is sent", "the memory"), about)
    return array_like(sent, gradient, about + " sent:"), array_like(kept, gradient, about + " the memory:")


def _variances(gradient, levels: int) -> np.ndarray:
    """Of each element rounded by chance."""
    unit = np.linalg.norm(gradient) / levels
    above = np.abs(gradient) / unit % 1
    return above * (1 - above) * unit**2


def _memory(gradients) -> float:
    """The norm of what error feedback has kept after these steps."""
    memory = np.zeros(gradients.shape[1])
    for gradient in gradients:
        corrected = gradient + memory
        memory = corrected - scaled_signs(corrected)
    return np.linalg.norm(memory)


def _packed(sizes, values: int) -> int:
    bits = next(bits for bits in (1, 2, 4, 8) if values <= 2**bits)
    return sum(-(-size * bits // 8) + 4 for size in sizes)


def _low_rank(gradients, right):
    whole = np.mean(gradients, axis=0)
    basis, _ = np.linalg.qr(whole @ right)
    return basis @ basis.T @ whole, whole.T @ basis
