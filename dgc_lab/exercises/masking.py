"""Checks for exercise 04, masking: top-k masks, thresholds per tensor or shared."""

from __future__ import annotations

import functools

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_arrays, asked_number, expect, number, parts
from dgc_lab.exercises.training import my_digits, softmax_gradient, softmax_loss, zero_weights
from dgc_lab.exercises.variants import Variant

MAX_EXCESS = 1.3  # a guaranteed threshold may pass at most this many times the wanted elements


def fewest_elements(answer, variant: Variant) -> str:
    cases = (
        ([12.0, -3.0, 4.0], 0.9, 1, "12 alone has 0.92 of the norm, which is 13"),
        ([12.0, -3.0, 4.0], 0.95, 2, "12 and 4 together have 0.97 of the norm, which is 13, and 12 alone has 0.92"),
        ([12.0, -3.0, 4.0], 0.98, 3, "12 and 4 without -3 have only 0.97 of the norm"),
        ([[3.0, 0.0], [0.0, -4.0]], 0.7, 1, "in this table, -4 alone has 0.8 of the norm, which is 5"),
    )
    for gradient, share, right, hint in cases:
        about = f"for {gradient} and a share of {share}"
        found = asked_number(answer, np.array(gradient), share, about=about)
        expect(found == right, f"{about}, the answer is not {found:g}: {hint}.")
    return "right: the largest elements count first."


def top_k_mask(answer, variant: Variant) -> str:
    shown = [0.02, -0.7, 0.1, 0.9, -0.05, 0.3]
    gradient = np.array(shown, np.float32)
    about = "for a gradient of 6 elements and k = 2"
    mask = array_like(asked(answer, gradient, 2, about=about), gradient > 0, about)
    expect(mask.sum() == 2, f"{about}, the mask must be True twice, got {mask.sum()} times.")
    expect(mask[1], f"{shown}: -0.7 has the second largest absolute value and was not kept.")
    expect(mask[3], f"{shown}: 0.9 has the largest absolute value and was not kept.")
    about = "for a gradient of 3 x 4 elements and k = 5"
    table = variant.gradient("top_k_mask", 12).reshape(3, 4)
    mask = array_like(asked(answer, table, 5, about=about), table > 0, about)
    smallest_kept, largest_dropped = np.abs(table[mask]).min(initial=np.inf), np.abs(table[~mask]).max(initial=0)
    expect(mask.sum() == 5, f"{about}, {mask.sum()} elements were kept.")
    expect(smallest_kept > largest_dropped, f"{about}, an element was kept although a larger one was not.")
    tied = np.array([1.0, -2.0, 2.0, 0.5], np.float32)
    mask = array_like(asked(answer, tied, 1, about="for a tie"), tied > 0, "for a tie")
    expect(mask[1] and mask[2], f"{tied.tolist()} with k = 1: -2 and 2 tie, so both are kept; got {mask.tolist()}.")
    for k, kept in ((0, "none"), (4, "all")):
        mask = array_like(asked(answer, tied, k, about=f"for k = {k}"), tied > 0, f"for k = {k}")
        expect(mask.sum() == k, f"for k = {k} of 4 elements, {kept} must be kept, got {mask.sum()}.")
    return "right: even for ties, tables, no elements and all elements."


def split(answer, variant: Variant) -> str:
    gradient, mask = np.array([[1.5, -2.0], [0.25, 4.0]], np.float32), np.array([[True, False], [False, True]])
    about = "for a gradient of 2 x 2 elements"
    kept, dropped = asked_arrays(answer, gradient, mask, names=("kept", "dropped"), pattern=gradient, about=about)
    expect(np.array_equal(kept + dropped, gradient), "kept + dropped must equal the gradient, element by element.")
    expect(not np.any(kept * dropped), "an element is in both parts: where one part has it, the other must be zero.")
    expect(np.array_equal(kept != 0, mask), "kept must hold exactly the elements where the mask is True.")
    return "right: no element is lost, and none is in both parts."


def my_threshold(answer, variant: Variant) -> str:
    gradient, k = variant.gradient("my_threshold", 1000), variant.whole("my_k", 20, 80)
    found = number(answer, "for your threshold")
    passed = int((np.abs(gradient) >= found).sum())
    expect(found > 0, "a threshold is compared with absolute values, so it must be above 0.")
    expect(passed == k, f"{passed} elements of your gradient reach this threshold, but {k} should.")
    return f"right: {k} elements reach it."


def sampled_threshold(answer, variant: Variant) -> str:
    ramp = np.arange(1, 101, dtype=np.float32)
    about = "for 1, 2, ..., 100 with ratio 0.2, stride 10 and start 4"
    found = asked_number(answer, ramp, 0.2, 10, 4, about=about)
    expect(found in ramp[4::10], f"{about}, the sample is 5, 15, ..., 95, and {found:g} is not in it.")
    passed = int((ramp[4::10] >= found).sum())
    expect(passed == 2, f"{about}, 20 % of the 10 sampled values are 2, but {passed} of them reach {found:g}.")
    found = asked_number(answer, -ramp, 0.2, 10, 4, about="with the signs reversed")
    expect(found == 85, f"with the signs reversed, the threshold must stay the same, got {found:g}.")
    found = asked_number(answer, ramp.reshape(10, 10), 0.2, 10, 4, about="for a table")
    expect(found == 85, f"for 1 to 100 as a table of 10 x 10, the threshold must stay the same, got {found:g}.")
    return "right: only the sample determines the threshold."


def guaranteed_threshold(answer, variant: Variant) -> str:
    rng = np.random.default_rng(variant.seed("guaranteed_threshold"))
    plain = rng.normal(size=2000).astype(np.float32)
    low, high = np.abs(plain) + 1, np.abs(plain)
    low[::10], high[::10] = 0.001, 50 + high[::10]
    cases = {
        "an ordinary gradient": plain,
        "a gradient with every tenth element tiny": low,
        "a gradient with every tenth element huge": high,
    }
    for name, gradient in cases.items():
        found = asked_number(answer, gradient, 0.02, 10, about=f"for {name}")
        passed, wanted = int((np.abs(gradient) >= found).sum()), 40
        expect(
            wanted <= passed <= MAX_EXCESS * wanted,
            f"for {name} (2000 elements, ratio 0.02), {passed} elements pass; "
            f"the guarantee is {wanted} to {MAX_EXCESS * wanted:.0f}.",
        )
    return "right: 1 to 1.3 times the wanted elements pass, whatever the sample."


def share_sent(answer, variant: Variant) -> str:
    rng = np.random.default_rng(variant.seed("share_sent"))
    gradients = [rng.normal(size=200), 0.001 * rng.normal(size=1800)]
    for whose, least, most in (("tensor", 0.01, 0.011), ("first", 0.0009, 0.0011)):
        about = f"for two tensors and whose={whose!r}"
        found = asked_number(answer, gradients, 0.01, whose, about=about)
        expect(0 <= found <= 1, f"{about}, the share must be from 0 to 1, got {found:g}.")
        expect(
            least * (1 - 1e-6) <= found <= most,
            f"for 200 elements of size 1, 1800 of size 0.001, ratio 0.01 and whose={whose!r}, the share is not "
            f"{found:.4f}. Count, over both tensors, the elements that reach their threshold.",
        )
    return "right: with the first tensor's threshold, a tenth of the wanted elements is sent."


def my_counts(answer, variant: Variant) -> str:
    gradients, ratio = my_network(variant)
    about = "for your network"
    own, first = (number(part, about) for part in parts(answer, ("own thresholds", "first threshold"), about))
    right_own, right_first = _counts(gradients, ratio)
    near = functools.partial(np.isclose, rtol=0, atol=0.01)  # a share times the elements has a rounding error
    expect(
        near(own, right_own),
        f"{about}, the tensors' own thresholds do not pass {own:g} elements. Round up for each tensor separately.",
    )
    expect(near(first, right_first), f"{about}, the first tensor's threshold does not pass {first:g} elements.")
    return f"right: {own:g} and {first:g} elements."


def my_network(variant: Variant) -> tuple[list[np.ndarray], float]:
    """Return the student's own gradients, which differ in size and scale, and a ratio.

    Example:
        >>> gradients, ratio = my_network(Variant(0))
        >>> [gradient.size for gradient in gradients], ratio
        ([1219, 1129, 363], 0.01)
    """

    def draw(variant):
        scales = variant.choice("my_scales", ((1, 0.3, 0.5), (1, 2, 0.4), (1, 0.6, 3)))
        gradients = [
            scale * variant.gradient(f"my_network/{index}", variant.whole(f"my_size/{index}", 300, 1500))
            for index, scale in enumerate(scales)
        ]
        return gradients, variant.choice("my_network_ratio", (0.01, 0.02, 0.03, 0.05))

    def counts_differ(drawn):
        """Return whether rounding up once and the two thresholds give three different counts."""
        gradients, ratio = drawn
        return len({_num_to_keep(ratio, sum(each.size for each in gradients)), *_counts(gradients, ratio)}) == 3

    return variant.first(draw, counts_differ)


def _num_to_keep(ratio: float, elements: int) -> int:
    """Return ``ratio`` times ``elements``, rounded up to a whole number."""
    return int(np.ceil(ratio * elements * (1 - 1e-7)))


def _counts(gradients, ratio: float) -> tuple[int, int]:
    """Return how many elements pass their own and the first tensor's threshold."""
    magnitudes = [np.sort(np.abs(gradient)) for gradient in gradients]
    thresholds = [each[-_num_to_keep(ratio, each.size)] for each in magnitudes]
    own = sum(int((each >= threshold).sum()) for each, threshold in zip(magnitudes, thresholds, strict=True))
    return own, sum(int((each >= thresholds[0]).sum()) for each in magnitudes)


def masked_training(answer, variant: Variant) -> str:
    (images,), (labels,) = my_digits(variant, workers=1)
    for k, steps, hint in (
        (640, 2, "with all elements, this is gradient descent"),
        (5, 1, "in one step, only the weights of the 5 largest elements move"),
        (5, 4, "each step chooses its own elements, and drops the others"),
    ):
        about = f"for {steps} step{'s' * (steps > 1)} of {k} elements at a rate of 0.5"
        found = array_like(asked(answer, images, labels, k, 0.5, steps, about=about), zero_weights(), about)
        right = _masked(images, labels, k, 0.5, steps)
        loss = softmax_loss(found, images, labels)
        expect(np.allclose(found, right, atol=1e-6), f"{about}, the weights differ (their loss is {loss:.3f}): {hint}.")
    ends = {k: _masked(images, labels, k, 0.5, 200) for k in (640, 64, 6)}
    figures = (
        f"{softmax_loss(end, images, labels):.2f} with {k} elements ({np.count_nonzero(end)} weights moved)"
        for k, end in ends.items()
    )
    return f"right: after 200 steps, the loss is {', '.join(figures)}."


def _masked(images, labels, k, rate, steps):
    """Return the weights after training with the k largest elements of each gradient, (64, 10)."""
    weights = zero_weights()
    for _ in range(steps):
        moves = rate * softmax_gradient(weights, images, labels).ravel()
        moves[np.argsort(np.abs(moves))[: moves.size - k]] = 0
        weights -= moves.reshape(weights.shape)
    return weights
