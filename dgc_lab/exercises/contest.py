"""The contest of exercise 08: the most accuracy on digits for 32 bytes per step.

Four workers train one layer, softmax regression on 8 x 8 digits, in numpy. The student's two functions compress and
decompress the gradients. This module counts the bytes and gives the decompressor nothing but the message and a seed.
"""

from __future__ import annotations

import functools

import numpy as np

from dgc_lab.exercises.checking import NotYet, afresh, array_like, asked, expect, parts

REPLAYED = 60  # messages that are decompressed again, by a process that has not seen the gradients
WORKERS, STEPS, BATCH, RATE, SEEDS = 4, 30, 16, 1.0, (0, 1, 2)
PIXELS, CLASSES = 64, 10
ELEMENTS = (PIXELS + 1) * CLASSES  # weights, and a bias for each class
BUDGET = 32  # bytes that a worker may send per step; the uncompressed gradient has 2 600
MAX_ARRAYS = 4  # per message, because the number, types and shapes of arrays could carry information uncounted


def contest_accuracy(compress, decompress, order: int = 0) -> float:
    """Return the test accuracy that two functions reach, averaged over three seeds.

    Args:
        compress: function of a gradient float32 (650,), of the memory that it returned in the previous step (zeros at
            first) and of a seed (an int, equal for all workers, different in each step); returns
            ``(message, memory)``. The message is a list of up to four non-empty one-dimensional arrays of numbers.
        decompress: function of a message and the seed; returns the gradient (650,) that the message encodes.
        order: any value but 0 permutes the class labels, so that weights computed in advance are useless.

    Raises:
        NotYet: a message has more than `BUDGET` bytes or is malformed, or it decompresses to values that are not
            finite, or to other values in a process that has not seen the gradients.

    Example:
        >>> def largest(gradient, memory, seed):
        ...     gradient = gradient + memory
        ...     positions = np.argsort(-np.abs(gradient))[:5].astype(np.uint16)
        ...     rest = gradient.copy()
        ...     rest[positions] = 0
        ...     return [positions, gradient[positions]], rest
        >>> def scatter(message, seed):
        ...     dense = np.zeros(650, np.float32)
        ...     dense[message[0]] = message[1]
        ...     return dense
        >>> 0.8 < contest_accuracy(largest, scatter) < 1
        True
    """
    messages: list[tuple] = []
    accuracy = float(np.mean([_train(compress, decompress, seed, order, messages) for seed in SEEDS]))
    again, about = afresh(decompress), "in a second call of decompress"
    for message, seed, received in messages[:: max(1, len(messages) // REPLAYED)]:
        found = asked(again, [np.copy(array) for array in message], seed, about=about)
        expect(
            np.array_equal(array_like(found, received, about), received),
            f"{about}, the same message gives another result: it must depend on the message and the seed alone.",
        )
    return accuracy


def _train(compress, decompress, seed: int, order: int, messages: list[tuple]) -> float:
    """Return the test accuracy after one training run."""
    (images, labels), (test_images, test_labels) = digits(order)
    rng, weights = np.random.default_rng(seed), np.zeros(ELEMENTS, np.float32)
    memories = [np.zeros(ELEMENTS, np.float32) for _ in range(WORKERS)]
    for step in range(STEPS):
        step_seed, update = int(rng.integers(2**31)), np.zeros(ELEMENTS)
        for worker in range(WORKERS):
            chosen = rng.integers(len(images), size=BATCH)
            gradient = _gradient(weights, images[chosen], labels[chosen])
            where = f"in step {step} of worker {worker}"
            message, memories[worker] = parts(
                asked(compress, gradient, memories[worker], step_seed, about=f"for compress {where}"),
                ("message", "memory"),
                f"for compress {where}",
            )
            sent = _validated(message, where)
            received = asked(decompress, [np.copy(array) for array in sent], step_seed, about=f"for decompress {where}")
            received = array_like(received, gradient, f"for decompress {where}").copy()
            messages.append((sent, step_seed, received))
            expect(np.all(np.isfinite(received)), f"decompress {where} returned NaN or infinity.")
            update += received / WORKERS
        weights = (weights - RATE * update).astype(np.float32)
    return float(np.mean(_logits(weights, test_images).argmax(1) == test_labels))


def _validated(message, where: str) -> list[np.ndarray]:
    """Validate a message and return copies of its arrays."""
    if not isinstance(message, list | tuple) or not message:
        raise NotYet(f"compress {where} must return a list of arrays as message, got {type(message).__name__}.")
    arrays = [np.array(array) for array in message]
    if wrong := [array.dtype for array in arrays if array.dtype.kind not in "iufb"]:
        raise NotYet(f"compress {where} must send arrays of numbers, got {wrong[0]}.")
    if len(arrays) > MAX_ARRAYS or not all(array.ndim == 1 and array.size for array in arrays):
        raise NotYet(f"compress {where} must send at most {MAX_ARRAYS} one-dimensional arrays, none of them empty.")
    size = sum(array.nbytes for array in arrays)
    expect(size <= BUDGET, f"compress {where} sent {size} bytes, but only {BUDGET} are allowed.")
    return arrays


def _logits(weights, images):
    """Return the logits, float32 (images, classes)."""
    weights = weights.reshape(PIXELS + 1, CLASSES)
    return images @ weights[:-1] + weights[-1]


def _gradient(weights, images, labels) -> np.ndarray:
    """Return the gradient of the mean cross-entropy, float32 (650,)."""
    logits = _logits(weights, images)
    errors = np.exp(logits - logits.max(1, keepdims=True))
    errors /= errors.sum(1, keepdims=True)
    errors[np.arange(len(labels)), labels] -= 1
    gradient = np.concatenate([images.T @ errors, errors.sum(0, keepdims=True)]) / len(labels)
    return gradient.ravel().astype(np.float32)


@functools.cache
def digits(order: int = 0):
    """Return the training set and the test set, each as (images, labels).

    Images are float32 (n, 64) in [0, 1]. An ``order`` other than 0 permutes the labels.
    """
    from dgc_lab.workloads.data import load

    data = load("digits")
    flat = [np.asarray(images, np.float32).reshape(len(images), -1) for images in (data.x_train, data.x_test)]
    names = np.random.default_rng(order).permutation(CLASSES) if order else np.arange(CLASSES)
    return (flat[0], names[np.asarray(data.y_train)]), (flat[1], names[np.asarray(data.y_test)])
