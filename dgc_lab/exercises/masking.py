"""Checks of exercise 04, masking: how few elements, which, by whose threshold."""

from __future__ import annotations

import functools

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.variants import Variant

MOST = 1.3  # times as many elements as were asked for may pass a threshold with a guarantee


def fewest_elements(answer, variant: Variant) -> str:
    cases = (
        ([12.0, -3.0, 4.0], 0.9, 1, "12 alone has 0.92 of the norm, which is 13"),
        ([12.0, -3.0, 4.0], 0.95, 2, "12 and 4 together have 0.97 of the norm, which is 13, and 12 alone has 0.92"),
        ([12.0, -3.0, 4.0], 0.98, 3, "without -3 it is 0.97 of the norm"),
        ([[3.0, 0.0], [0.0, -4.0]], 0.7, 1, "in this table -4 alone has 0.8 of the norm, which is 5"),
    )
    for gradient, share, right, words in cases:
        about = f"for {gradient} and a share of {share}"
        found = asked_number(answer, np.array(gradient), share, about=about)
        expect(found == right, f"{about} it is not {found:g}: {words}.")
    return "right: counted from the largest on."


def top_k_mask(answer, variant: Variant) -> str:
    shown = [0.02, -0.7, 0.1, 0.9, -0.05, 0.3]
    gradient = np.array(shown, np.float32)
    about = "for a gradient of 6 elements and k = 2"
    mask = array_like(asked(answer, gradient, 2, about=about), gradient > 0, about)
    expect(mask.sum() == 2, f"{about} the mask must be True twice, here it is {mask.sum()} times.")
    expect(mask[1], f"{shown}: -0.7 is the second largest by absolute value, and was not kept.")
    expect(mask[3], f"{shown}: 0.9 is the largest, and was not kept.")
    table = variant.gradient("top_k_mask", 12).reshape(3, 4)
    mask = array_like(asked(answer, table, 5, about="for a table"), table > 0, "for a gradient of 3 x 4 elements")
    smallest_kept, largest_dropped = np.abs(table[mask]).min(initial=np.inf), np.abs(table[~mask]).max(initial=0)
    expect(mask.sum() == 5, f"for a gradient of 3 x 4 elements and k = 5, {mask.sum()} were kept.")
    expect(smallest_kept > largest_dropped, "in a table of 3 x 4, an element was kept and a larger one was not.")
    tied = np.array([1.0, -2.0, 2.0, 0.5], np.float32)
    mask = array_like(asked(answer, tied, 1, about="with a tie"), tied > 0, "with a tie")
    expect(mask[1] and mask[2], f"{tied.tolist()} with k = 1: -2 and 2 tie, so both are kept; got {mask.tolist()}.")
    for k, kept in ((0, "none"), (4, "all")):
        mask = array_like(asked(answer, tied, k, about=f"for k = {k}"), tied > 0, f"for k = {k}")
        expect(mask.sum() == k, f"for k = {k} of 4 elements, {kept} is kept; here {mask.sum()} were.")
    return "right, with ties, tables, none and all."


def split(answer, variant: Variant) -> str:
    gradient, mask = np.array([[1.5, -2.0], [0.25, 4.0]], np.float32), np.array([[True, False], [False, True]])
    about = "for a gradient of 2 x 2 elements"
    kept, dropped = parts(asked(answer, gradient, mask, about=about), ("kept", "dropped"), about)
    kept, dropped = array_like(kept, gradient, about), array_like(dropped, gradient, about)
    expect(np.array_equal(kept + dropped, gradient), "kept + dropped must be the gradient again, element by element.")
    expect(not np.any(kept * dropped), "an element is in both parts: where one has it, the other must have zero.")
    expect(np.array_equal(kept != 0, mask), "kept must have the elements where the mask is True, here it is otherwise.")
    return "right: nothing is lost, nothing is twice."


def my_threshold(answer, variant: Variant) -> str:
    gradient, k = variant.gradient("my_threshold", 1000), variant.whole("my_k", 20, 80)
    found = number(answer, "as your threshold")
    passed = int((np.abs(gradient) >= found).sum())
    expect(found > 0, "a threshold is compared with absolute values: it must be above 0.")
    expect(passed == k, f"{passed} elements of your gradient reach this threshold; you want {k}.")
    return f"right: {k} elements reach it."


def sampled_threshold(answer, variant: Variant) -> str:
    ramp = np.arange(1, 101, dtype=np.float32)
    about = "for 1, 2, ..., 100 with ratio 0.2, stride 10 and start 4"
    found = asked_number(answer, ramp, 0.2, 10, 4, about=about)
    expect(found in ramp[4::10], f"{about} the sample is 5, 15, ..., 95, and {found:g} is not in it.")
    passed = int((ramp[4::10] >= found).sum())
    expect(passed == 2, f"{about}, 20 % of the sample's 10 values are 2; {passed} of them reach {found:g}.")
    found = asked_number(answer, -ramp, 0.2, 10, 4, about="with the signs turned")
    expect(found == 85, f"with the signs turned the threshold must be the same as before, got {found:g}.")
    found = asked_number(answer, ramp.reshape(10, 10), 0.2, 10, 4, about="for a table")
    expect(found == 85, f"1 to 100 as a table of 10 x 10 must have the same threshold as in a row, got {found:g}.")
    return "right: read off the sample alone."


def guaranteed_threshold(answer, variant: Variant) -> str:
    rng = np.random.default_rng(variant.seed("guaranteed_threshold"))
    plain = rng.normal(size=2000).astype(np.float32)
    low, high = np.abs(plain) + 1, np.abs(plain)
    low[::10], high[::10] = 0.001, 50 + high[::10]
    cases = {
        "an ordinary gradient": plain,
        "a gradient whose every tenth element is tiny": low,
        "a gradient whose every tenth element is huge": high,
    }
    for name, gradient in cases.items():
        found = asked_number(answer, gradient, 0.02, 10, about=f"for {name}")
        passed, wanted = int((np.abs(gradient) >= found).sum()), 40
        expect(
            wanted <= passed <= MOST * wanted,
            f"for {name} of 2000 elements and a ratio of 0.02, {passed} elements pass; "
            f"guaranteed are {wanted} to {MOST * wanted:.0f}.",
        )
    return "right: from 1 to 1.3 times what was asked for, however the sample lies."


def share_sent(answer, variant: Variant) -> str:
    rng = np.random.default_rng(variant.seed("share_sent"))
    gradients = [rng.normal(size=200), 0.001 * rng.normal(size=1800)]
    for whose, least, most in (("tensor", 0.01, 0.011), ("first", 0.0009, 0.0011)):
        about = f"for two tensors and whose={whose!r}"
        found = asked_number(answer, gradients, 0.01, whose, about=about)
        expect(0 <= found <= 1, f"{about} a share from 0 to 1 is asked for, got {found:g}.")
        expect(
            least * (1 - 1e-6) <= found <= most,
            f"200 elements of size 1 and 1800 of size 0.001, ratio 0.01, whose={whose!r}: a share of {found:.4f} is "
            "not what passes. Count, over both tensors, the elements that reach their threshold.",
        )
    return "right: the first tensor's threshold sent a tenth of what was asked for."


def my_counts(answer, variant: Variant) -> str:
    gradients, ratio = my_network(variant)
    about = "for your network"
    own, first = (number(each, about) for each in parts(answer, ("their own", "the first one's"), about))
    right_own, right_first = _counts(gradients, ratio)
    near = functools.partial(np.isclose, rtol=0, atol=0.01)  # a share times the elements is off by its last digit
    expect(
        near(own, right_own), f"{about}, by their own thresholds it is not {own:g} elements. Each rounds up by itself."
    )
    expect(near(first, right_first), f"{about}, by the first one's threshold it is not {first:g} elements.")
    return f"right: {own:g} and {first:g} elements."


def my_network(variant: Variant) -> tuple[list[np.ndarray], float]:
    """The student's own gradients, of unlike sizes and scales, and a ratio.

    Example:
        >>> gradients, ratio = my_network(Variant(0))
        >>> [gradient.size for gradient in gradients], ratio
        ([1219, 1129, 363], 0.01)
    """

    def draw(variant):
        scales = variant.choice("my_scales", ((1, 0.3, 0.5), (1, 2, 0.4), (1, 0.6, 3)))
        gradients = [
            scale * variant.gradient(f"my_network/{place}", variant.whole(f"my_size/{place}", 300, 1500))
            for place, scale in enumerate(scales)
        ]
        return gradients, variant.choice("my_network_ratio", (0.01, 0.02, 0.03, 0.05))

    def three_numbers(drawn):
        """Rounded up for all at once, for each by its own threshold, and by the first one's."""
        gradients, ratio = drawn
        return len({_passing(ratio, sum(each.size for each in gradients)), *_counts(gradients, ratio)}) == 3

    return variant.first(draw, three_numbers)


def _passing(ratio: float, elements: int) -> int:
    """How many of so many elements are to pass: a share of them, rounded up."""
    return int(np.ceil(ratio * elements * (1 - 1e-7)))


def _counts(gradients, ratio: float) -> tuple[int, int]:
    """How many elements pass their own tensor's threshold, and how many the first one's."""
    magnitudes = [np.sort(np.abs(gradient)) for gradient in gradients]
    limits = [each[-_passing(ratio, each.size)] for each in magnitudes]
    own = sum(int((each >= limit).sum()) for each, limit in zip(magnitudes, limits, strict=True))
    return own, sum(int((each >= limits[0]).sum()) for each in magnitudes)
