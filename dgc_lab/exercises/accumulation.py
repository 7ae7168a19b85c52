"""Checks of exercise 05, accumulation: keep what is not sent, find three bugs, count bytes."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.variants import Variant


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


def mended_clipping(answer, variant: Variant) -> str:
    """With one worker, neither the mean nor another worker's message makes a difference."""
    residual = np.array([[3.0, 1.0]])
    for gradient, right, words in (
        ([[0.3, 0.4]], [3.3, 1.4], "the gradient has a norm of 0.5, so nothing is shortened"),
        ([[6.0, 8.0]], [3.6, 1.8], "the gradient has a norm of 10, and only the gradient is shortened"),
    ):
        about = f"for one worker with gradient {gradient[0]}, residual {residual[0].tolist()} and clip_norm 1"
        moved, kept = _stepped(answer, np.array(gradient), residual, 1.0, about)
        expect(
            np.allclose(kept[0] - moved, right),
            f"{about}: {words}. What is sent and what is kept make {right} together, "
            f"not {(kept[0] - moved).round(3).tolist()}.",
        )
    return "right: the gradient is clipped before it is added, and what waits is left alone."


def mended_update(answer, variant: Variant) -> str:
    """Of a first step that clips nothing; what is kept is not looked at."""
    gradients = np.array([[4.0, 1.0, 0.5], [0.5, 8.0, 1.0], [2.0, 7.0, 1.0], [1.0, 0.5, 0.25]])
    about = "for four workers that send 4 in place 0, 8 in place 1, 7 in place 1, and 1 in place 0, at a rate of 1"
    moved, _ = _stepped(answer, gradients, np.zeros_like(gradients), 1e9, about)
    expect(
        np.allclose(moved, [-1.25, -3.75, 0]),
        f"{about}, the weights move by [-1.25, -3.75, 0], a quarter of what was sent to each, not by {moved.tolist()}.",
    )
    return "right: the mean over all workers."


def mended_residuals(answer, variant: Variant) -> str:
    """Of a step that clips nothing; how far the weights move is not looked at."""
    for gradients, right, words in (
        ([[4.0, 1.0, 2.0], [1.0, 5.0, 2.0]], [[0, 1, 2], [1, 0, 2]], "each sends one element, and keeps its other two"),
        ([[3.0, 1.0, 1.0], [-3.0, 1.0, 1.0]], [[0, 1, 1], [0, 1, 1]], "3 and -3 are both sent, and neither is kept"),
    ):
        about = f"for two workers with gradients {gradients[0]} and {gradients[1]}, and count 1"
        _, kept = _stepped(answer, np.array(gradients), np.zeros((2, 3)), 1e9, about)
        expect(np.allclose(kept, right), f"{about}: {words}. The residuals are not {kept.tolist()}.")
    return "right: a worker keeps whatever it has not sent itself."


def times_fewer(answer, variant: Variant) -> str:
    cases = (
        ([10], 1000, 0, 50, "10 of 1000 elements with 8 bytes each, in place of 4000 bytes"),
        ([10, 10], 1000, 100, 4400 / 480, "100 more elements go whole in each step, here and in the other training"),
        ([600], 1000, 0, 1, "600 elements with their places would be 4800 bytes, all 1000 values are 4000"),
        ([250, 10, 10, 10], 1000, 0, 4000 / 560, "2240 bytes in four steps, in place of 16 000"),
    )
    for sent, elements, whole, right, words in cases:
        about = f"for {elements} elements, {whole} more that go whole, and {sent} sent"
        found = asked_number(answer, np.array(sent), elements, whole, about=about)
        expect(np.isclose(found, right), f"{about} it is not {found:.4g} times: {words}.")
    return "right: all bytes of one training over all bytes of the other."


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


def _stepped(answer, gradients, residuals, clip_norm, about):
    """Of a mended step with weights of zero, a rate of 1 and one element a worker: the weights and the residuals."""
    weights = np.zeros(gradients.shape[1])
    result = asked(answer, weights, gradients, residuals, 1, 1.0, clip_norm, about=about)
    moved, kept = parts(result, ("weights", "residuals"), about)
    return array_like(moved, weights, about), array_like(kept, gradients, about)


def _gathered(workers, ratio, entry):
    return (workers - 1) * ratio * entry


def _reduced(workers):
    return 8 * (workers - 1) / workers if workers else 0.0


def _most_workers(ratio, entry):
    """The largest N with ratio * N * entry < 8, in whole numbers, for a ratio in thousandths."""
    return (8000 - 1) // (round(1000 * ratio) * entry)


def my_sent(answer, variant: Variant) -> str:
    gradients, momentum, threshold = my_training(variant)
    velocity, residual, count = np.zeros(gradients.shape[1]), np.zeros(gradients.shape[1]), 0
    for gradient in gradients:
        velocity = momentum * velocity + gradient
        mask = np.abs(residual + velocity) >= threshold
        residual, velocity = np.where(mask, 0, residual + velocity), np.where(mask, 0, velocity)
        count += int(mask.sum())
    found = number(answer, "as your number of elements")
    expect(found == count, f"in your steps it is not {found:g} elements. Does the state of one step go into the next?")
    return "right."


def my_times_fewer(answer, variant: Variant) -> str:
    sent, elements, whole = my_warm_up(variant)
    spent = 4 * whole + np.minimum(8 * sent, 4 * elements)
    found = number(answer, "as how many times fewer")
    expect(
        np.isclose(found, 4 * (elements + whole) / spent.mean(), rtol=1e-3),
        f"for your training it is not {found:.5g} times. How many bytes is it in all?",
    )
    return "right: the warm-up and what goes whole weigh most."


def my_training(variant: Variant) -> tuple[np.ndarray, float, float]:
    """The student's own gradients (steps, elements), a momentum and a threshold.

    The gradients are eighths, so that no rounding decides what passes.

    Example:
        >>> gradients, momentum, threshold = my_training(Variant(0))
        >>> gradients.shape, momentum, threshold
        ((20, 12), 0.5, 1.5)
    """
    gradients = np.random.default_rng(variant.seed("my_training")).integers(-8, 9, size=(20, 12)) / 8
    return gradients, variant.choice("my_momentum", (0.5, 0.75)), variant.whole("my_threshold", 20, 60) / 16


def my_warm_up(variant: Variant) -> tuple[np.ndarray, int, int]:
    """The student's own elements to be sent in each step (steps,), of how many, and how many more go whole.

    Example:
        >>> sent, elements, whole = my_warm_up(Variant(0))
        >>> sent.shape, int(sent[0]), elements, whole
        ((376,), 37737, 50316, 1146)
    """
    elements, whole = variant.whole("my_elements", 20_000, 60_000), variant.whole("my_whole", 200, 2000)
    shares = (variant.choice("my_first_share", (0.25, 0.4, 0.75)), 0.0625, 0.015625, 0.004, 0.001)
    steps = [variant.whole("my_stage", 5, 20)] * 4 + [variant.whole("my_steps", 200, 400)]
    return (elements * np.repeat(shares, steps)).astype(int), elements, whole
