"""The contest of exercise 8: who reads the digits best when a worker may send so few bytes a step?

Four workers train one layer, softmax regression on 8 x 8 digits, in numpy. What is sent, and what comes of it, are the
student's two functions; the bytes are counted here, and what is decompressed has nothing but the message to go by.
"""

from __future__ import annotations

import functools

import numpy as np

from dgc_lab.exercises.checking import NotYet, afresh, array_like, asked, expect, parts

REPLAYED = 60  # messages that are decompressed once more, by a process that has not seen the gradients
WORKERS, STEPS, BATCH, RATE, SEEDS = 4, 30, 16, 1.0, (0, 1, 2)
PIXELS, CLASSES = 64, 10
ELEMENTS = (PIXELS + 1) * CLASSES  # weights, and a bias for each class
BUDGET = 32  # bytes that a worker may send in a step; the whole gradient has 2 600
MOST_ARRAYS = 4  # in a message: their number, kinds and shapes are no place to hide anything in


def contest_accuracy(compress, decompress, order: int = 0) -> float:
    """Accuracy on the test set that two functions reach, in the mean of three seeds.

    Args:
        compress: function of a gradient float32 (650,), of what it returned as memory in the step before (zeros at
            first) and of a seed (an int, the same for all workers, another one each step): ``(message, memory)``, the
            message a list of up to four arrays of numbers, one-dimensional, none empty.
        decompress: function of such a list and the seed: what the message stands for, (650,).
        order: with another one the classes are numbered otherwise, and weights known beforehand are of no use.

    Raises:
        NotYet: a message has more than `BUDGET` bytes, is of another kind, does not stand for finite numbers, or stands
            for something else where nobody has seen the gradients.

    Example:
        >>> def largest(gradient, memory, seed):
        ...     gradient = gradient + memory
        ...     places = np.argsort(-np.abs(gradient))[:5].astype(np.uint16)
        ...     rest = gradient.copy()
        ...     rest[places] = 0
        ...     return [places, gradient[places]], rest
        >>> def in_places(message, seed):
        ...     whole = np.zeros(650, np.float32)
        ...     whole[message[0]] = message[1]
        ...     return whole
        >>> 0.8 < contest_accuracy(largest, in_places) < 1
        True
    """
    messages: list[tuple] = []
    accuracy = float(np.mean([_train(compress, decompress, seed, order, messages) for seed in SEEDS]))
    again, about = afresh(decompress), "decompress, asked once more,"
    for message, seed, received in messages[:: max(1, len(messages) // REPLAYED)]:
        found = asked(again, [np.copy(one) for one in message], seed, about=about)
        expect(
            np.array_equal(array_like(found, received, about), received),
            f"{about} makes something else of the same message: it must not go by anything but message and seed.",
        )
    return accuracy


def _train(compress, decompress, seed: int, order: int, messages: list[tuple]) -> float:
    """Accuracy after one training."""
    (images, labels), (test_images, test_labels) = digits(order)
    rng, weights = np.random.default_rng(seed), np.zeros(ELEMENTS, np.float32)
    memories = [np.zeros(ELEMENTS, np.float32) for _ in range(WORKERS)]
    for step in range(STEPS):
        draw, update = int(rng.integers(2**31)), np.zeros(ELEMENTS)
        for worker in range(WORKERS):
            chosen = rng.integers(len(images), size=BATCH)
            gradient = _gradient(weights, images[chosen], labels[chosen])
            about = f"in step {step}, for worker {worker},"
            message, memories[worker] = parts(
                asked(compress, gradient, memories[worker], draw, about=f"compress {about}"),
                ("a message", "a memory"),
                f"compress {about}",
            )
            sent = _sent(message, about)
            received = asked(decompress, [np.copy(one) for one in sent], draw, about=f"decompress {about}")
            received = array_like(received, gradient, f"decompress {about}").copy()
            messages.append((sent, draw, received))
            expect(np.all(np.isfinite(received)), f"decompress {about} gave NaN or infinity.")
            update += received / WORKERS
        weights = (weights - RATE * update).astype(np.float32)
    return float(np.mean(_scores(weights, test_images).argmax(1) == test_labels))


def _sent(message, about: str) -> list[np.ndarray]:
    """The message as it arrives: copies of its arrays, counted."""
    if not isinstance(message, list | tuple) or not message:
        raise NotYet(f"compress {about} must give a list of arrays as message, got {type(message).__name__}.")
    arrays = [np.array(one) for one in message]
    if wrong := [one.dtype for one in arrays if one.dtype.kind not in "iufb"]:
        raise NotYet(f"compress {about} must send arrays of numbers, got {wrong[0]}.")
    if len(arrays) > MOST_ARRAYS or not all(one.ndim == 1 and one.size for one in arrays):
        raise NotYet(f"compress {about} must send up to {MOST_ARRAYS} arrays of one dimension, and none that is empty.")
    size = sum(one.nbytes for one in arrays)
    expect(size <= BUDGET, f"compress {about} sent {size} bytes, and {BUDGET} are allowed.")
    return arrays


def _scores(weights, images):
    """Logits float32 (images, classes)."""
    weights = weights.reshape(PIXELS + 1, CLASSES)
    return images @ weights[:-1] + weights[-1]


def _gradient(weights, images, labels) -> np.ndarray:
    """That of the mean cross-entropy, float32 (650,)."""
    scores = _scores(weights, images)
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    whole = np.concatenate([images.T @ shares, shares.sum(0, keepdims=True)]) / len(labels)
    return whole.ravel().astype(np.float32)


@functools.cache
def digits(order: int = 0):
    """Images float32 (n, 64) in [0, 1] and labels, for training and for the test; another order renames the classes."""
    from dgc_lab.workloads.data import load

    data = load("digits")
    flat = [np.asarray(images, np.float32).reshape(len(images), -1) for images in (data.x_train, data.x_test)]
    names = np.random.default_rng(order).permutation(CLASSES) if order else np.arange(CLASSES)
    return (flat[0], names[np.asarray(data.y_train)]), (flat[1], names[np.asarray(data.y_test)])
