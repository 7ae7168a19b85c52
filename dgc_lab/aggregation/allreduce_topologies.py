"""Lesson 1, section 5: allreduce of one gradient per worker over a central worker, a tree or a ring.

Each topology takes a numpy array per worker (1 to 64), all of the same shape and dtype, and raises ValueError
otherwise. It returns each worker's copy of the sum, and a list of every `Message` in the order of sending. A worker
adds only its own array and arrays that it received in messages.

Source for the ring: P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
Journal of Parallel and Distributed Computing 69 (2), 2009.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dgc_lab.common import check_choice, check_list

MAX_WORKERS = 64


@dataclass(frozen=True)
class Message:
    """Array that one worker sends to another in a step; messages of the same step travel at the same time.

    In a ring, ``part`` is the number of the part of the gradient that the array belongs to.
    """

    step: int
    sender: int
    receiver: int
    bytes: int
    part: int = 0


def central(gradients):
    """Sum on worker 0: all workers send their arrays to it, and it sends the sum back."""
    gradients = check_gradients(gradients)
    messages, total = [], gradients[0]
    for worker, gradient in enumerate(gradients[1:], 1):
        messages.append(Message(0, worker, 0, gradient.nbytes))
        total = total + gradient
    messages += [Message(1, 0, worker, total.nbytes) for worker in range(1, len(gradients))]
    return [total.copy() for _ in gradients], messages


def tree(gradients):
    """Sum in a binary tree: first pairs, then pairs of pairs, up to worker 0; the sum returns the same way.

    Example:
        >>> sums, messages = tree([np.array([1.0]), np.array([2.0]), np.array([3.0])])
        >>> [(message.sender, message.receiver) for message in messages]
        [(1, 0), (2, 0), (0, 2), (0, 1)]
    """
    held = [gradient.copy() for gradient in check_gradients(gradients)]
    messages, distance, step = [], 1, 0
    while distance < len(held):
        for receiver in range(0, len(held) - distance, 2 * distance):
            sender = receiver + distance
            messages.append(Message(step, sender, receiver, held[sender].nbytes))
            held[receiver] = held[receiver] + held[sender]
        distance, step = 2 * distance, step + 1
    last = 2 * step - 1
    down = [Message(last - up.step, up.receiver, up.sender, up.bytes) for up in reversed(messages)]
    for message in down:
        held[message.receiver] = held[message.sender].copy()
    return held, messages + sorted(down, key=lambda message: message.step)


def ring(gradients):
    """Sum in a ring: in each of 2 (k - 1) steps, each of k workers sends a part to its right neighbour.

    Each array is split into k parts. In the first k - 1 steps workers add the parts that they receive; then every
    worker has one part of the sum. In the other k - 1 steps these parts travel around the ring.
    """
    gradients, messages = check_gradients(gradients), []
    for sent, held in ring_steps(gradients):
        messages, parts = messages + sent, held
    return [np.concatenate(own).reshape(gradients[0].shape) for own in parts], messages


def ring_steps(gradients):
    """Yield each step's messages in a ring, and the list of parts that each worker holds after it.

    The first pair is the state before the first step, without messages.

    Example:
        >>> for messages, parts in ring_steps([np.array([1, 10]), np.array([2, 20])]):
        ...     print([message.part for message in messages], [[int(part[0]) for part in held] for held in parts])
        [] [[1, 10], [2, 20]]
        [0, 1] [[1, 30], [3, 20]]
        [1, 0] [[3, 30], [3, 30]]
    """
    gradients = check_gradients(gradients)
    workers = len(gradients)
    parts = [np.array_split(gradient.ravel(), workers) for gradient in gradients]
    yield [], [list(held) for held in parts]
    for step in range(2 * (workers - 1)):
        adding, messages = step < workers - 1, []
        indices = [(sender - step) % workers for sender in range(workers)]  # of the parts sent in this step
        sent = [parts[sender][index] for sender, index in enumerate(indices)]
        for sender, (index, part) in enumerate(zip(indices, sent, strict=True)):
            receiver = (sender + 1) % workers
            parts[receiver][index] = parts[receiver][index] + part if adding else part.copy()
            messages.append(Message(step, sender, receiver, part.nbytes, index))
        yield messages, [list(held) for held in parts]


#: Topologies of the links, by name, as in the argument of `exchange`.
TOPOLOGIES = {"central": central, "tree": tree, "ring": ring}


def exchange(gradients: list[ArrayLike], topology: str):
    """Sum one array per worker over a `central` worker, a `tree` or a `ring`.

    Args:
        gradients: numpy arrays of 1 to 64 workers, of the same shape and dtype.
        topology: one of `TOPOLOGIES`.

    Returns:
        ``(sums, messages)``: each worker's copy of the sum, and each `Message` in the order of sending.

    Raises:
        ValueError: ``topology`` is unknown, there are not 1 to 64 arrays, or they differ in shape or dtype.

    Example:
        >>> sums, messages = exchange([np.array([1.0, 10.0]), np.array([2.0, 20.0])], "ring")
        >>> [total.tolist() for total in sums], [message.bytes for message in messages]
        ([[3.0, 30.0], [3.0, 30.0]], [8, 8, 8, 8])
    """
    return TOPOLOGIES[check_choice("topology", topology, TOPOLOGIES)](gradients)


def check_gradients(gradients) -> list[np.ndarray]:
    """Return the arrays as a list; raise ValueError if there are none, too many, or they differ in shape or dtype."""
    gradients = [np.asarray(gradient) for gradient in check_list("gradients", gradients)]
    if not 1 <= len(gradients) <= MAX_WORKERS:
        raise ValueError(f"gradients must be arrays of 1 to {MAX_WORKERS} workers, got {len(gradients)}")
    for what in ("shape", "dtype"):
        seen = {str(getattr(gradient, what)) for gradient in gradients}
        if len(seen) > 1:
            raise ValueError(f"gradients must have one {what}, got {', '.join(sorted(seen))}")
    return gradients


def bytes_by_link(messages) -> dict[tuple[int, int], int]:
    """Return the total bytes over each link, by ``(sender, receiver)``."""
    links = Counter()
    for message in messages:
        links[message.sender, message.receiver] += message.bytes
    return links


def summary(messages: Iterable[Message]) -> dict[str, int]:
    """Count the sequential steps of ``messages`` and their bytes: total, busiest link (one way), busiest worker (both).

    Example:
        >>> summary(central([np.zeros(10, np.float32)] * 4)[1])
        {'steps': 2, 'bytes': 240, 'busiest link': 40, 'busiest worker': 240}
    """
    messages, workers = list(messages), Counter()
    for message in messages:
        workers[message.sender] += message.bytes
        workers[message.receiver] += message.bytes
    return {
        "steps": len({message.step for message in messages}),
        "bytes": sum(message.bytes for message in messages),
        "busiest link": max(bytes_by_link(messages).values(), default=0),
        "busiest worker": max(workers.values(), default=0),
    }
