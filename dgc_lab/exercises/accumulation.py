"""Checks of exercise 05, accumulation: keep what is not sent, find three bugs, count bytes."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.variants import Variant

FILLER_EVERY = 2**16  # a run length of 16 bits skips up to 65 535 elements; one entry of value 0 stands for the rest


def accumulate(answer, variant: Variant) -> str:
    gradient = np.array([0.5, -0.25, 2.0, 0.0], np.float32)
    residual = np.array([0.5, -1.0, -1.5, 0.25], np.float32)
    about = "for gradient [0.5, -0.25, 2, 0], residual [0.5, -1, -1.5, 0.25] and threshold 1"
    sent, left = _two(answer, (gradient, residual, 1.0), ("sent", "residual"), gradient, about)
    expect(
        np.array_equal(sent + left, gradient + residual),
        f"{about}: sent + residual must be [1, -1.25, 0.5, 0.25], what had come together; "
        f"it is {(sent + left).tolist()}.",
    )
    expect(sent[1] != 0, "the threshold is for what has come together: -1 and -0.25 make -1.25, which passes.")
    expect(
        sent[2] == 0, "2 alone would pass the threshold of 1, but with the residual of -1.5 only 0.5 has come together."
    )
    expect(sent[0] != 0, "what equals the threshold is sent: 0.5 + 0.5 reaches 1.")
    expect(not np.any(sent * left), "an element is either sent or kept; here one is in both.")
    return "right: sent + kept = accumulated, to the last bit."


def correct_momentum(answer, variant: Variant) -> str:
    gradient, velocity = np.array([1.0, -2.0], np.float32), np.array([2.0, 4.0], np.float32)
    residual = np.array([10.0, 0.0], np.float32)
    about = "for gradient [1, -2], velocity [2, 4], residual [10, 0] and momentum 0.5"
    new, left = _two(answer, (gradient, velocity, residual, 0.5), ("velocity", "residual"), gradient, about)
    expect(
        np.allclose(new, [2.0, 0.0]),
        f"{about}: half of the velocity remains and the gradient is added; {new.tolist()} is something else.",
    )
    expect(
        np.allclose(left, residual + new),
        f"{about}: what comes to the residual is the new velocity, not the gradient; got {left.tolist()}.",
    )
    new, left = _two(
        answer, (gradient, velocity, residual, 0.0), ("velocity", "residual"), gradient, "without momentum"
    )
    expect(
        np.allclose(new, gradient) and np.allclose(left, residual + gradient),
        "with momentum 0 it must be plain adding.",
    )
    return "right: velocities come together, not gradients."


def dgc_step(answer, variant: Variant) -> str:
    gradient, velocity = np.array([1.0, 0.25], np.float32), np.array([2.0, 1.0], np.float32)
    residual = np.array([3.0, 0.0], np.float32)
    about = "for gradient [1, 0.25], velocity [2, 1], residual [3, 0], momentum 0.5 and threshold 4"
    result = asked(answer, gradient, velocity, residual, 0.5, 4.0, about=about)
    sent, new, left = (
        array_like(each, gradient, about) for each in parts(result, ("sent", "velocity", "residual"), about)
    )
    expect(
        np.allclose(sent, [5.0, 0.0]),
        f"{about}: 3 + (0.5 * 2 + 1) reaches the threshold, 0.75 does not; sent was {sent.tolist()}.",
    )
    expect(
        np.allclose(left, [0.0, 0.75]),
        f"{about}: what was sent leaves the residual, the rest stays; got {left.tolist()}.",
    )
    expect(new[0] == 0, "momentum factor masking: where an element was sent, its velocity is cleared, too.")
    expect(np.isclose(new[1], 0.75), f"where nothing was sent the velocity stays 0.5 * 1 + 0.25; got {new[1]:g}.")
    return "right: sent, and cleared in both places."


def mended_thresholds(answer, variant: Variant) -> str:
    gradients, residuals = _two_layers(variant)
    about = "for a tensor of 201 elements and one of 1001 that are a hundred times smaller"
    for ratio, wanted in ((0.02, (5, 21)), (0.1, (21, 101))):
        sent, _ = _mended(answer, gradients, residuals, ratio, about)
        for part, most, which in zip(sent, wanted, ("first", "second"), strict=True):
            count = np.count_nonzero(part)
            expect(  # one less: whether the element at the threshold is sent is the next task's business
                most - 1 <= count <= most,
                f"{about}, at a ratio of {ratio} the {which} should send {most} elements; it sent {count}. "
                "Whose threshold is it, and at which share does it lie?",
            )
    return "right: every tensor by its own threshold, at the ratio that was asked for."


def mended_ties(answer, variant: Variant) -> str:
    # Halves from -3 to 3, so that many elements are equal to any threshold.
    rng = np.random.default_rng(variant.seed("ties"))
    gradients = [(rng.integers(-6, 7, size=size) / 2).astype(np.float32) for size in (201, 1001)]
    sent, left = _mended(answer, gradients, [np.zeros_like(g) for g in gradients], 0.02, "for gradients full of ties")
    expect(any(np.any(r) for r in left), "the residuals that come back are zero, so it cannot be told yet.")
    for g, s, r, which in zip(gradients, sent, left, ("first", "second"), strict=True):
        lost = np.flatnonzero(s + r != g)
        expect(
            lost.size == 0,
            f"{lost.size} elements of the {which} tensor are neither sent nor kept, one of them is {g[lost][:1]}. "
            "Compare it with the threshold.",
        )
    return "right: the elements that equal the threshold are somewhere."


def mended_residuals(answer, variant: Variant) -> str:
    gradients, residuals = _two_layers(variant)
    sent, left = _mended(answer, gradients, residuals, 0.02, "for two tensors")
    expect(
        all(np.any(r) for r in left),
        "after the step the residuals are still zero. A loop's variable that is bound anew changes no list.",
    )
    sent, left = _mended(answer, [np.zeros_like(g) for g in gradients], left, 0.02, "for a second step of zeros")
    expect(
        any(np.any(s) for s in sent),
        "in a second step with gradients of zero nothing was sent, though something was kept in the first.",
    )
    return "right: what is kept in one step can be sent in the next."


def message_bytes(answer, variant: Variant) -> str:
    cases = (
        ([0], 6, "one element at place 0: no run of zeros before it, one entry of 4 + 2 bytes"),
        ([3, 4, 10], 18, "three elements close together"),
        ([65_535], 6, "an element after 65 535 zeros: the longest run that 16 bits can tell"),
        (
            [65_536],
            12,
            "an element after 65 536 zeros: one more than 16 bits can tell, so an entry of value 0 comes before",
        ),
        ([5, 200_000], 30, "an element at 5 and one at 200 000, with 199 994 zeros between them"),
        ([], 0, "nothing to send"),
    )
    for places, right, words in cases:
        places = np.array(places, np.int64)
        found = asked_number(answer, places, about=f"for {words}")
        expect(found == right, f"{words}: {found:g} bytes are not what goes over the network.")
    places = np.sort(np.random.default_rng(variant.seed("message_bytes")).choice(10**7, 50, replace=False))
    expect(
        asked_number(answer, places, about="for 50 places") == _bytes(places),
        "for 50 random places of 10 million elements the count is off: several fillers can stand in one gap.",
    )
    return "right, fillers included."


def break_even_workers(answer, variant: Variant) -> str:
    for ratio, entry, right in ((0.25, 8, 3), (0.25, 6, 5), (0.001, 8, 999), (0.01, 6, 133)):
        about = f"for a ratio of {ratio} and {entry} bytes an entry"
        found = asked_number(answer, ratio, entry, about=about)
        expect(
            found == right,
            f"{about} you say {found:g} workers. An allgather passes {_gathered(found, ratio, entry):.4g} bytes an "
            f"element, a ring allreduce {_reduced(found):.4g}; with one worker more it is "
            f"{_gathered(found + 1, ratio, entry):.4g} and {_reduced(found + 1):.4g}. "
            "Asked is the largest number for which the first is below the second.",
        )
    return "right: from there on, sending everything is shorter."


def my_workers(answer, variant: Variant) -> str:
    ratio, entry = my_cluster(variant)
    found = number(answer, "as your number of workers")
    expect(
        found == _most_workers(ratio, entry),
        f"for your ratio of {ratio} and {entry} bytes an entry it is another number. "
        "Does your `break_even_workers` say so?",
    )
    return "right."


def my_cluster(variant: Variant) -> tuple[float, int]:
    """The student's own ratio, and bytes of an entry.

    Example:
        >>> my_cluster(Variant(0))
        (0.043, 8)
    """
    return variant.whole("my_ratio", 2, 60) / 1000, variant.choice("my_entry", (4, 6, 8))


def _two(answer, arguments, names, pattern, about):
    result = asked(answer, *arguments, about=about)
    return tuple(array_like(each, pattern, about) for each in parts(result, names, about))


def _two_layers(variant):
    rng = np.random.default_rng(variant.seed("two layers"))
    gradients = [rng.normal(size=201).astype(np.float32), (0.01 * rng.normal(size=1001)).astype(np.float32)]
    return gradients, [np.zeros_like(gradient) for gradient in gradients]


def _mended(answer, gradients, residuals, ratio, about):
    """The two lists that a mended optimizer returns; the lists are its own, so that it may write to them."""
    own = [np.copy(g) for g in gradients], [np.copy(r) for r in residuals]
    result = parts(asked(answer, *own, ratio, about=about), ("sent", "residuals"), about)
    return tuple(
        [array_like(e, g, about) for e, g in zip(parts(each, ("first", "second"), about), gradients, strict=True)]
        for each in result
    )


def _bytes(places):
    gaps = np.diff(np.concatenate([[-1], places])) - 1
    return 6 * int(len(places) + np.sum(gaps // FILLER_EVERY))


def _gathered(workers, ratio, entry):
    return (workers - 1) * ratio * entry


def _reduced(workers):
    return 8 * (workers - 1) / workers if workers else 0.0


def _most_workers(ratio, entry):
    """The largest N with ratio * N * entry < 8, in whole numbers, for a ratio in thousandths."""
    return (8000 - 1) // (round(1000 * ratio) * entry)


def my_sent(answer, variant: Variant) -> str:
    gradients, momentum, threshold, _ = my_training(variant)
    velocity, residual, count = np.zeros(gradients.shape[1]), np.zeros(gradients.shape[1]), 0
    for gradient in gradients:
        velocity = momentum * velocity + gradient
        mask = np.abs(residual + velocity) >= threshold
        residual, velocity = np.where(mask, 0, residual + velocity), np.where(mask, 0, velocity)
        count += int(mask.sum())
    found = number(answer, "as your number of elements")
    expect(found == count, f"in your steps it is not {found:g} elements. Does the state of one step go into the next?")
    return "right."


def my_bytes(answer, variant: Variant) -> str:
    found = number(answer, "as your number of bytes")
    expect(found == _bytes(my_training(variant)[3]), f"for your places it is not {found:g} bytes.")
    return "right."


def my_training(variant: Variant) -> tuple[np.ndarray, float, float, np.ndarray]:
    """The student's own gradients (steps, elements), a momentum, a threshold, and the places of a message.

    The gradients are eighths, so that no rounding decides what passes.

    Example:
        >>> gradients, momentum, threshold, places = my_training(Variant(0))
        >>> gradients.shape, momentum, threshold, places.size
        ((20, 12), 0.5, 1.5, 40)
    """
    rng = np.random.default_rng(variant.seed("my_training"))
    gradients = rng.integers(-8, 9, size=(20, 12)) / 8
    places = np.sort(rng.choice(5 * 10**6, 40, replace=False))
    return gradients, variant.choice("my_momentum", (0.5, 0.75)), variant.whole("my_threshold", 20, 60) / 16, places
