"""The ring allreduce of lesson 1, step by step: a picture of each step, and a table of all messages.

Both run `dgc_lab.aggregation.allreduce_topologies.ring_steps`, once on the gradients and once on ones. The second run
counts how many workers' gradients a part contains.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
from matplotlib.patches import FancyArrowPatch, Rectangle
from numpy.typing import ArrayLike

from dgc_lab.aggregation.allreduce_topologies import bytes_by_link, check_gradients, ring_steps
from dgc_lab.common import check_whole
from dgc_lab.ui.charts import PALETTE, Picture, grid

MOST_WORKERS = 4  # more do not fit into the picture
CELL, BEND = 0.56, 0.25  # inches; height of an arrow's arc as a share of its length
LEGEND = "thick frame: arrived in this step\ndarker: from more workers\nkB or bytes: on this link so far"


def ring_step(gradients: list[ArrayLike], step: int) -> Picture:
    """Draw the workers of a ring after a step, the parts that they hold, and the messages of this step.

    Each cell is a part of the gradient and shows its first element. A darker cell contains the gradients of more
    workers, and a thick frame marks a part that has just arrived. Arrows name the part that was sent, and the bytes
    that the link has carried so far.

    Args:
        gradients: arrays of 2 to 4 workers, of the same shape and dtype, with at least one element per worker.
        step: number of the step, from 1 to 2 (k - 1) for k workers; 0 is the state before the first step.

    Raises:
        ValueError: an argument is not allowed; the message names it.

    Example:
        >>> ring_step([np.array([1, 10]), np.array([2, 20])], step=1).alt.split(". ")[1]
        'Worker 0 sends part 0 to worker 1, which then has 3 there, from 2 of 2 workers; 8 bytes on this link so far'

    References:
        Patarasuk, Yuan, as in `dgc_lab.aggregation.allreduce_topologies`.
    """
    states = _states(gradients)
    last = len(states) - 1
    messages, parts, counts = states[check_whole("step", step, 0, last)]
    carried = bytes_by_link(message for sent, _, _ in states[: step + 1] for message in sent)
    workers = len(parts)
    figure, [axes] = grid(1, 1, 8, 4.7)
    angles = np.pi / 2 - 2 * np.pi * np.arange(workers) / workers
    centres = np.stack([2.6 * np.cos(angles), 1.65 * np.sin(angles)], axis=1)
    arrived = {(message.receiver, message.part) for message in messages}
    boxes = [
        _draw_worker(axes, worker, centre, parts[worker], counts[worker], arrived)
        for worker, centre in enumerate(centres)
    ]
    for worker in range(workers):
        _draw_arrow(axes, centres, boxes, worker, (worker + 1) % workers)
    said = []
    for m in messages:
        sent = f"part {m.part}\n{_size(carried[m.sender, m.receiver])} so far"
        _label_arrow(axes, centres[m.sender], centres[m.receiver], sent)
        said.append(
            f"Worker {m.sender} sends part {m.part} to worker {m.receiver}, which then has "
            f"{parts[m.receiver][m.part][0]:.4g} there, from {counts[m.receiver][m.part][0]:.0f} of {workers} workers; "
            f"{_size(carried[m.sender, m.receiver])} on this link so far."
        )
    if not messages:
        said = [
            f"Worker {worker} has {', '.join(f'{part[0]:.4g}' for part in held)}." for worker, held in enumerate(parts)
        ]
    if messages:
        axes.text(0, 0, LEGEND, ha="center", va="center", fontsize=8)
    title = _title(step, last)
    axes.set_title(title, fontsize=10)
    axes.set(xlim=(-4, 4), ylim=(-2.15, 2.15), aspect="equal")
    axes.set_axis_off()
    return Picture(figure, " ".join([f"{title}.", *said]))


def ring_table(gradients: list[ArrayLike]) -> pd.DataFrame:
    """Return a row for each message of a ring allreduce, with its content and the bytes on its link so far.

    Args:
        gradients: as in `ring_step`.

    Returns:
        Columns: ``step``, ``from``, ``to``, ``part``; ``first element`` of the array sent; ``workers``, whose gradients
        it contains; ``bytes``; ``bytes on this link``, with all earlier messages.

    Raises:
        ValueError: ``gradients`` are not allowed.

    Example:
        >>> ring_table([np.array([1, 10]), np.array([2, 20])])["first element"].tolist()
        [1, 20, 30, 3]

    References:
        Patarasuk, Yuan, as in `dgc_lab.aggregation.allreduce_topologies`.
    """
    rows, carried = [], Counter()
    states = _states(gradients)
    for step, (messages, _, _) in enumerate(states):
        _, before, counts = states[step - 1]  # messages carry the parts that the senders held before the step
        for m in messages:
            carried[m.sender, m.receiver] += m.bytes
            rows.append(
                {
                    "step": step,
                    "from": m.sender,
                    "to": m.receiver,
                    "part": m.part,
                    "first element": before[m.sender][m.part][0],
                    "workers": int(counts[m.sender][m.part][0]),
                    "bytes": m.bytes,
                    "bytes on this link": carried[m.sender, m.receiver],
                }
            )
    return pd.DataFrame(rows)


def _states(gradients) -> list[tuple]:
    """Return each step's messages, and the parts that each worker holds after it: of the gradients, and of ones."""
    gradients = check_gradients(gradients)
    check_whole("the number of gradients", len(gradients), 2, MOST_WORKERS)
    check_whole("the number of elements of gradients", gradients[0].size, len(gradients))
    ones = [np.ones(gradient.size) for gradient in gradients]
    return [
        (messages, parts, counts)
        for (messages, parts), (_, counts) in zip(ring_steps(gradients), ring_steps(ones), strict=True)
    ]


def _title(step: int, last: int) -> str:
    if step == 0:
        return "Before the first step: each worker has its own gradient"
    adding = "sends a part, and its neighbour adds it to its own"
    copying = "sends a complete part, and its neighbour stores a copy"
    return f"Step {step} of {last}: each worker {adding if step <= last // 2 else copying}"


def _draw_worker(axes, worker: int, centre, parts, counts, arrived) -> Rectangle:
    """Draw a worker's name and a cell for each part, and return the box around them."""
    left, bottom = centre[0] - CELL * len(parts) / 2, centre[1] - 0.33
    box = Rectangle((left - 0.07, bottom - 0.07), CELL * len(parts) + 0.14, 0.74, facecolor="white", edgecolor="black")
    axes.add_patch(box)
    axes.text(centre[0], bottom + 0.5, f"worker {worker}", ha="center", va="center", fontsize=9)
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        new = (worker, number) in arrived
        edge = {"edgecolor": PALETTE[1] if new else "black", "linewidth": 3 if new else 0.8}
        place = (left + CELL * number, bottom)
        axes.add_patch(Rectangle(place, CELL, 0.36, facecolor="white", zorder=2))
        shade = (PALETTE[0], 0.6 * count[0] / len(parts))
        axes.add_patch(Rectangle(place, CELL, 0.36, facecolor=shade, zorder=4 if new else 3, **edge))
        axes.text(
            place[0] + CELL / 2, place[1] + 0.17, f"{part[0]:.4g}", ha="center", va="center", fontsize=9, zorder=5
        )
    return box


def _draw_arrow(axes, centres, boxes, sender: int, receiver: int) -> None:
    clipped = {"patchA": boxes[sender], "patchB": boxes[receiver], "shrinkA": 2, "shrinkB": 2}
    look = {"arrowstyle": "-|>", "mutation_scale": 14, "color": PALETTE[0], "linewidth": 1.5}
    arc = f"arc3,rad={-BEND}"  # to the left of the arrow, which is the outside of the ring
    axes.add_patch(FancyArrowPatch(centres[sender], centres[receiver], connectionstyle=arc, **clipped, **look))


def _label_arrow(axes, start, end, text: str) -> None:
    """Write a text outside of the ring, next to the middle of an arrow."""
    along = np.subtract(end, start)
    outwards = np.array([-along[1], along[0]]) / np.hypot(*along)
    x, y = np.add(start, end) / 2 + outwards * (BEND / 2 * np.hypot(*along) + 0.12 + 0.15 * abs(outwards[1]))
    side = "left" if outwards[0] > 0.1 else "right" if outwards[0] < -0.1 else "center"
    axes.text(x, y, text, ha=side, va="center", fontsize=9, zorder=6)


def _size(size: int) -> str:
    return f"{size} bytes" if size < 1000 else f"{size / 1e3:.4g} kB"
