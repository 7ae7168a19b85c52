"""Checks for exercise 05, accumulation: residuals, momentum, three bugs and bytes."""

from __future__ import annotations

import numpy as np

from dgc_lab.exercises.checking import array_like, asked, asked_arrays, asked_number, expect, number, parts
from dgc_lab.exercises.training import my_digits, softmax_gradient, softmax_loss, zero_weights
from dgc_lab.exercises.variants import Variant


def accumulate(answer, variant: Variant) -> str:
    gradient = np.array([0.5, -0.25, 2.0, 0.0], np.float32)
    residual = np.array([0.5, -1.0, -1.5, 0.25], np.float32)
    about = "for gradient [0.5, -0.25, 2, 0], residual [0.5, -1, -1.5, 0.25] and threshold 1"
    sent, left = asked_arrays(
        answer, gradient, residual, 1.0, names=("sent", "residual"), pattern=gradient, about=about
    )
    expect(
        np.array_equal(sent + left, gradient + residual),
        f"{about}, sent + residual must be the accumulated values [1, -1.25, 0.5, 0.25], got {(sent + left).tolist()}.",
    )
    expect(sent[1] != 0, "the threshold applies to the accumulated value: -1 and -0.25 make -1.25, which is sent.")
    expect(sent[2] == 0, "2 alone reaches the threshold of 1, but with the residual of -1.5 only 0.5 has accumulated.")
    expect(sent[0] != 0, "a value equal to the threshold is sent: 0.5 + 0.5 reaches 1.")
    expect(not np.any(sent * left), "an element is either sent or kept; here one is in both.")
    return "right: sent + residual is the accumulated gradient, to the last bit."


def correct_momentum(answer, variant: Variant) -> str:
    gradient, velocity = np.array([1.0, -2.0], np.float32), np.array([2.0, 4.0], np.float32)
    residual = np.array([10.0, 0.0], np.float32)
    about = "for gradient [1, -2], velocity [2, 4], residual [10, 0] and momentum 0.5"
    wanted = {"names": ("velocity", "residual"), "pattern": gradient}
    new, left = asked_arrays(answer, gradient, velocity, residual, 0.5, about=about, **wanted)
    expect(
        np.allclose(new, [2.0, 0.0]),
        f"{about}, the new velocity is half of the old one plus the gradient; got {new.tolist()}.",
    )
    expect(
        np.allclose(left, residual + new),
        f"{about}, the new velocity is added to the residual, not the gradient; got {left.tolist()}.",
    )
    new, left = asked_arrays(answer, gradient, velocity, residual, 0.0, about="for momentum 0", **wanted)
    expect(
        np.allclose(new, gradient) and np.allclose(left, residual + gradient),
        "for momentum 0, the gradient is simply added to the residual.",
    )
    return "right: velocities accumulate, not gradients."


def dgc_step(answer, variant: Variant) -> str:
    gradient, velocity = np.array([1.0, 0.25], np.float32), np.array([2.0, 1.0], np.float32)
    residual = np.array([3.0, 0.0], np.float32)
    about = "for gradient [1, 0.25], velocity [2, 1], residual [3, 0], momentum 0.5 and threshold 4"
    wanted = {"names": ("sent", "velocity", "residual"), "pattern": gradient}
    sent, new, left = asked_arrays(answer, gradient, velocity, residual, 0.5, 4.0, about=about, **wanted)
    expect(
        np.allclose(sent, [5.0, 0.0]),
        f"{about}, 3 + (0.5 * 2 + 1) reaches the threshold and 0.75 does not; your function sent {sent.tolist()}.",
    )
    expect(
        np.allclose(left, [0.0, 0.75]),
        f"{about}, sent elements are cleared from the residual and the others stay; got {left.tolist()}.",
    )
    expect(new[0] == 0, "momentum factor masking: the velocity of a sent element is cleared, too.")
    expect(np.isclose(new[1], 0.75), f"the velocity of an unsent element stays 0.5 * 1 + 0.25; got {new[1]:g}.")
    about = "for gradient [1, 0.25], velocity [2, 1], residual [0, 0], momentum 0.5 and threshold 0"
    nothing = np.zeros(2, np.float32)
    sent, new, left = asked_arrays(answer, gradient, velocity, nothing, 0.5, 0.0, about=about, **wanted)
    expect(
        np.allclose(sent, [2.0, 0.75]) and not np.any(left),
        f"{about}, all elements are sent: [2, 0.75], and no residual is left; got {sent.tolist()} and {left.tolist()}.",
    )
    expect(
        np.allclose(new, [2.0, 0.75]),
        f"{about}, no element is delayed, so the velocity stays [2, 0.75], as in momentum SGD; got {new.tolist()}.",
    )
    return "right: sent elements leave the residual and the velocity; at threshold 0, the velocity stays."


def mended_clipping(answer, variant: Variant) -> str:
    """Check the clipping with one worker, where the other two bugs have no effect."""
    residual = np.array([[3.0, 1.0]])
    for gradient, right, hint in (
        ([[0.3, 0.4]], [3.3, 1.4], "the gradient has a norm of 0.5, so nothing is clipped"),
        ([[6.0, 8.0]], [3.6, 1.8], "the gradient has a norm of 10, and only the gradient is clipped"),
    ):
        about = f"for one worker with gradient {gradient[0]}, residual {residual[0].tolist()} and clip_norm 1"
        moved, kept = _run_step(answer, np.array(gradient), residual, 1.0, about)
        expect(
            np.allclose(kept[0] - moved, right),
            f"{about}, {hint}. The sent and the kept values must add up to {right}, "
            f"got {(kept[0] - moved).round(3).tolist()}.",
        )
    return "right: the gradient is clipped before it is added, and the residual is not clipped."


def mended_update(answer, variant: Variant) -> str:
    """Check the update of a first step without clipping, for any residuals."""
    gradients = np.array([[4.0, 1.0, 0.5], [0.5, 8.0, 1.0], [2.0, 7.0, 1.0], [1.0, 0.5, 0.25]])
    about = "for four workers that send 4 at position 0, 8 at 1, 7 at 1 and 1 at 0, with a rate of 1"
    moved, _ = _run_step(answer, gradients, np.zeros_like(gradients), 1e9, about)
    expect(
        np.allclose(moved, [-1.25, -3.75, 0]),
        f"{about}, the weights move by [-1.25, -3.75, 0], a quarter of the sums; got {moved.tolist()}.",
    )
    return "right: the update is the mean over all workers."


def mended_residuals(answer, variant: Variant) -> str:
    """Check the residuals of a step without clipping, for any weights."""
    for gradients, right, hint in (
        ([[4.0, 1.0, 2.0], [1.0, 5.0, 2.0]], [[0, 1, 2], [1, 0, 2]], "each sends one element and keeps its other two"),
        ([[3.0, 1.0, 1.0], [-3.0, 1.0, 1.0]], [[0, 1, 1], [0, 1, 1]], "3 and -3 are both sent, and neither is kept"),
    ):
        about = f"for two workers with gradients {gradients[0]} and {gradients[1]}, and count 1"
        _, kept = _run_step(answer, np.array(gradients), np.zeros((2, 3)), 1e9, about)
        expect(np.allclose(kept, right), f"{about}, {hint}. The residuals are not {kept.tolist()}.")
    return "right: a worker keeps every element that it did not send itself."


def times_fewer(answer, variant: Variant) -> str:
    cases = (
        ([10], 1000, 0, 50, "10 of 1000 elements at 8 bytes each replace 4000 bytes"),
        ([10, 10], 1000, 100, 4400 / 480, "both runs send 100 more elements uncompressed in every step"),
        ([600], 1000, 0, 1, "600 elements with positions would take 4800 bytes, all 1000 values take 4000"),
        ([250, 10, 10, 10], 1000, 0, 4000 / 560, "2240 bytes in four steps replace 16 000"),
    )
    for sent, elements, uncompressed, right, hint in cases:
        about = f"for {elements} elements, {uncompressed} more sent uncompressed, and {sent} sent"
        found = asked_number(answer, np.array(sent), elements, uncompressed, about=about)
        expect(np.isclose(found, right), f"{about}, the factor is not {found:.4g}: {hint}.")
    return "right: all bytes of one run divided by all bytes of the other."


def break_even_workers(answer, variant: Variant) -> str:
    for ratio, entry, right in ((0.25, 8, 3), (0.25, 6, 5), (0.001, 8, 999), (0.01, 6, 133)):
        about = f"for a ratio of {ratio} and {entry} bytes per entry"
        found = asked_number(answer, ratio, entry, about=about)
        expect(
            found == right,
            f"{about}, your answer is {found:g} workers. An allgather passes "
            f"{_allgather_bytes(found, ratio, entry):.4g} bytes per element and a ring allreduce "
            f"{_allreduce_bytes(found):.4g}; with one more worker, {_allgather_bytes(found + 1, ratio, entry):.4g} and "
            f"{_allreduce_bytes(found + 1):.4g}. Find the largest number for which the first is below the second.",
        )
    return "right: with more workers, compression no longer saves bytes."


def my_workers(answer, variant: Variant) -> str:
    ratio, entry = my_cluster(variant)
    found = number(answer, "for your number of workers")
    expect(
        found == _max_workers(ratio, entry),
        f"for your ratio of {ratio} and {entry} bytes per entry, the number is different. "
        "What does your `break_even_workers` return?",
    )
    return "right."


def my_cluster(variant: Variant) -> tuple[float, int]:
    """Return the student's own ratio and bytes per entry.

    Example:
        >>> my_cluster(Variant(0))
        (0.043, 8)
    """
    return variant.whole("my_ratio", 2, 60) / 1000, variant.choice("my_entry", (4, 6, 8))


def _run_step(answer, gradients, residuals, clip_norm, about):
    """Run a step from zero weights, at rate 1 and with one element per worker."""
    weights = np.zeros(gradients.shape[1])
    result = asked(answer, weights, gradients, residuals, 1, 1.0, clip_norm, about=about)
    moved, kept = parts(result, ("weights", "residuals"), about)
    return array_like(moved, weights, about), array_like(kept, gradients, about)


def _allgather_bytes(workers, ratio, entry):
    return (workers - 1) * ratio * entry


def _allreduce_bytes(workers):
    return 8 * (workers - 1) / workers if workers else 0.0


def _max_workers(ratio, entry):
    """Return the largest N with ratio * N * entry < 8, exact for whole thousandths."""
    return (8000 - 1) // (round(1000 * ratio) * entry)


def my_sent(answer, variant: Variant) -> str:
    gradients, momentum, threshold = my_training(variant)
    velocity, residual, count = np.zeros(gradients.shape[1]), np.zeros(gradients.shape[1]), 0
    for gradient in gradients:
        velocity = momentum * velocity + gradient
        mask = np.abs(residual + velocity) >= threshold
        residual, velocity = np.where(mask, 0, residual + velocity), np.where(mask, 0, velocity)
        count += int(mask.sum())
    found = number(answer, "for your number of elements")
    expect(found == count, f"your steps do not send {found:g} elements. Does each step start from the last state?")
    return "right."


def my_times_fewer(answer, variant: Variant) -> str:
    sent, elements, uncompressed = my_warm_up(variant)
    spent = 4 * uncompressed + np.minimum(8 * sent, 4 * elements)
    found = number(answer, "for your factor")
    expect(
        np.isclose(found, 4 * (elements + uncompressed) / spent.mean(), rtol=1e-3),
        f"for your training, the factor is not {found:.5g}. How many bytes does it send in total?",
    )
    return "right: the warm-up and the uncompressed elements dominate."


def my_training(variant: Variant) -> tuple[np.ndarray, float, float]:
    """Return the student's own gradients (steps, elements), momentum and threshold.

    The gradients are multiples of 1/8, so that rounding cannot decide which elements are sent.

    Example:
        >>> gradients, momentum, threshold = my_training(Variant(0))
        >>> gradients.shape, momentum, threshold
        ((20, 12), 0.5, 1.5)
    """
    gradients = np.random.default_rng(variant.seed("my_training")).integers(-8, 9, size=(20, 12)) / 8
    return gradients, variant.choice("my_momentum", (0.5, 0.75)), variant.whole("my_threshold", 20, 60) / 16


def my_warm_up(variant: Variant) -> tuple[np.ndarray, int, int]:
    """Return the student's own elements: sent per step (steps,), all, uncompressed.

    Example:
        >>> sent, elements, uncompressed = my_warm_up(Variant(0))
        >>> sent.shape, int(sent[0]), elements, uncompressed
        ((376,), 37737, 50316, 1146)
    """
    elements, uncompressed = variant.whole("my_elements", 20_000, 60_000), variant.whole("my_whole", 200, 2000)
    shares = (variant.choice("my_first_share", (0.25, 0.4, 0.75)), 0.0625, 0.015625, 0.004, 0.001)
    steps = [variant.whole("my_stage", 5, 20)] * 4 + [variant.whole("my_steps", 200, 400)]
    return (elements * np.repeat(shares, steps)).astype(int), elements, uncompressed


def dgc_training(answer, variant: Variant) -> str:
    images, labels = my_digits(variant, workers=3)
    for threshold, steps, hint in (
        (0.0, 3, "with threshold 0, this is momentum SGD with the mean gradient"),
        (0.1, 1, "in the first step, velocity and residual are 0 on every worker"),
        (0.1, 6, "each worker keeps its own velocity and residual from step to step"),
    ):
        about = f"for {steps} steps of 3 workers at rate 0.2, momentum 0.9 and threshold {threshold}"
        result = asked(answer, images, labels, 0.2, 0.9, threshold, steps, about=about)
        weights, sent = parts(result, ("weights", "sent"), about)
        weights = array_like(weights, zero_weights(), about)
        right, count = _trained(images, labels, 0.2, 0.9, threshold, steps)
        loss = softmax_loss(weights, images.reshape(-1, images.shape[2]), labels.ravel())
        expect(
            np.allclose(weights, right, atol=1e-6), f"{about}, the weights differ (their loss is {loss:.3f}): {hint}."
        )
        sent = number(sent, about)
        expect(sent == count, f"{about}, the workers send {count} elements together, got {sent:g}.")
    images, labels = my_digits(variant, workers=4)
    every, figures = (images.reshape(-1, images.shape[2]), labels.ravel()), []
    for threshold in (0, 0.05, 1):
        weights, count = _trained(images, labels, 0.2, 0.9, threshold, 60)
        figures.append(f"{softmax_loss(weights, *every):.2f} with {count} elements sent at threshold {threshold}")
    return f"right: after 60 steps, the loss is {', '.join(figures)}."


def _trained(images, labels, rate, momentum, threshold, steps):
    """Return the weights after training with DGC, and the number of elements sent."""
    weights, count = zero_weights(), 0
    velocities = np.zeros((len(images), *weights.shape))
    residuals = np.zeros_like(velocities)
    for _ in range(steps):
        gradients = [softmax_gradient(weights, *own) for own in zip(images, labels, strict=True)]
        velocities = momentum * velocities + gradients
        residuals += velocities
        sent = np.where(np.abs(residuals) >= threshold, residuals, 0)
        residuals -= sent
        if threshold > 0:
            velocities[sent != 0] = 0
        weights = weights - rate * sent.mean(0)
        count += np.count_nonzero(sent)
    return weights, count
