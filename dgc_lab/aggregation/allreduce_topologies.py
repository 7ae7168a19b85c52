"""Lesson 1, section 5: add up one gradient per worker over links, every message counted: central, tree and ring.

Each topology takes a numpy array per worker (1 to 64), all of one shape and dtype, else a ValueError; it gives the sum
as each worker holds it, and a list of `Message` in the order of sending. What a worker adds, a message has brought it.

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

MOST_WORKERS = 64


@dataclass(frozen=True)
class Message:
    """One array sent, in which step from and to which worker; messages of one step travel at the same time."""

    step: int
    sender: int
    receiver: int
    bytes: int


def central(gradients):
    """Everyone sends to worker 0, which adds up and sends the sum back."""
    gradients = check_gradients(gradients)
    messages, total = [], gradients[0]
    for worker, gradient in enumerate(gradients[1:], 1):
        messages.append(Message(0, worker, 0, gradient.nbytes))
        total = total + gradient
    messages += [Message(1, 0, worker, total.nbytes) for worker in range(1, len(gradients))]
    return [total.copy() for _ in gradients], messages


def tree(gradients):
    """Pairs, then pairs of pairs, up to worker 0, and the same way down again.

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
    """Each worker sends a part to its right neighbour, 2 (k - 1) times: k - 1 to add up, k - 1 to hand round.

    With k workers each array is cut into k parts. After k - 1 steps every worker holds one finished part.
    """
    gradients = check_gradients(gradients)
    shape, workers = gradients[0].shape, len(gradients)
    parts = [np.array_split(gradient.ravel(), workers) for gradient in gradients]
    messages = []
    for step in range(2 * (workers - 1)):
        adding = step < workers - 1
        places = [(sender - step) % workers for sender in range(workers)]  # of the parts that the workers send now
        sent = [parts[sender][place] for sender, place in enumerate(places)]
        for sender, (place, part) in enumerate(zip(places, sent, strict=True)):
            receiver = (sender + 1) % workers
            parts[receiver][place] = parts[receiver][place] + part if adding else part.copy()
            messages.append(Message(step, sender, receiver, part.nbytes))
    return [np.concatenate(part).reshape(shape) for part in parts], messages


#: Ways over the links, by name; `exchange` takes the name.
TOPOLOGIES = {"central": central, "tree": tree, "ring": ring}


def exchange(gradients: list[ArrayLike], topology: str):
    """Add up one array per worker by `central`, `tree` or `ring`.

    Args:
        gradients: numpy arrays of 1 to 64 workers, of one shape and dtype.
        topology: one of `TOPOLOGIES`.

    Returns:
        ``(sums, messages)``: the sum as each worker holds it, and each `Message` in the order of sending.

    Raises:
        ValueError: an argument is outside what is said above.

    Example:
        >>> sums, messages = exchange([np.array([1.0, 10.0]), np.array([2.0, 20.0])], "ring")
        >>> [total.tolist() for total in sums], [message.bytes for message in messages]
        ([[3.0, 30.0], [3.0, 30.0]], [8, 8, 8, 8])
    """
    return TOPOLOGIES[check_choice("topology", topology, TOPOLOGIES)](gradients)


def check_gradients(gradients) -> list[np.ndarray]:
    """The arrays as a list; a ValueError when there are none, too many, or they differ in shape or dtype."""
    gradients = [np.asarray(gradient) for gradient in check_list("gradients", gradients)]
    if not 1 <= len(gradients) <= MOST_WORKERS:
        raise ValueError(f"gradients must be of 1 to {MOST_WORKERS} workers, got {len(gradients)}")
    for what in ("shape", "dtype"):
        seen = {str(getattr(gradient, what)) for gradient in gradients}
        if len(seen) > 1:
            raise ValueError(f"gradients must have one {what}, got {', '.join(sorted(seen))}")
    return gradients


def bytes_by_link(messages) -> dict[tuple[int, int], int]:
    """Bytes that each link carried in all, by ``(sender, receiver)``."""
    links = Counter()
    for message in messages:
        links[message.sender, message.receiver] += message.bytes
    return links


def summary(messages: Iterable[Message]) -> dict[str, int]:
    """Steps of ``messages`` that wait for one another, bytes in all, of the busiest link (one way) and worker (both).

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
