"""The figures of lesson 2, with alternative texts: a variable's copies before and after an assignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from dgc_lab.common import check_list, check_number, check_text
from dgc_lab.ui.charts import BESIDE, GREY, PALETTE, Picture

if TYPE_CHECKING:
    from dgc_lab.replicas.mirrored_variable import AssignmentResult


def copies_before_and_after(outcome: AssignmentResult, values: Sequence[float], title: str) -> Picture:
    """Draw each replica's copy before, assigned value and copy after as bars, and the value of a read as a line.

    Args:
        outcome: a `dgc_lab.replicas.AssignmentResult`.
        values: the values that the replicas assigned, one number each.
        title: title of the figure.

    Raises:
        ValueError: there are not as many values as copies, or an argument has the wrong type.

    Example:
        >>> from dgc_lab.replicas import AssignmentResult
        >>> copies_before_and_after(AssignmentResult((0.0, 0.0), (1.5, 1.5), 1.5), [1, 2], "MEAN").alt[30:]
        'Copies before: 0, 0. Copies after: 1.5, 1.5. A read outside the replicas gives 1.5.'
    """
    check_text("title", title)
    for value in check_list("values", values):
        check_number("values", value, "a number")
    if outcome.before and len(values) != len(outcome.before):
        raise ValueError(f"values must be one for each of the {len(outcome.before)} copies, got {len(values)}")
    figure = Figure(figsize=(9, 2.9), dpi=84, layout="constrained")
    axes = figure.subplots()
    positions = np.arange(len(values))
    groups = {
        "copy before": (outcome.before, {"color": GREY}),
        "value given": (values, {"color": "white", "edgecolor": PALETTE[0], "hatch": "///"}),
        "copy after": (outcome.after, {"color": PALETTE[1]}),
    }
    for number, (label, (heights, look)) in enumerate(groups.items()):
        if len(heights):
            bars = axes.bar(positions + 0.27 * (number - 1), heights, 0.25, label=label, **look)
            axes.bar_label(bars, [f"{height:g}" for height in heights], fontsize=8, padding=2)
    if outcome.read is not None:
        axes.axhline(outcome.read, color="black", linestyle="--", linewidth=1, label="read outside the replicas")
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xticks(positions, [f"replica {replica}" for replica in positions], fontsize=8)
    axes.margins(y=0.15)
    axes.set_title(title, fontsize=10)
    axes.legend(**BESIDE)
    return Picture(figure, f"{title}. {in_words(outcome, values)}")


def in_words(outcome, values) -> str:
    """Describe the result in sentences."""
    assigned = ", ".join(f"{value:g}" for value in values)
    said = f"The replicas gave {assigned}. "
    if outcome.before:
        said += f"Copies before: {', '.join(f'{copy:g}' for copy in outcome.before)}. "
    if outcome.after:
        said += f"Copies after: {', '.join(f'{copy:g}' for copy in outcome.after)}. "
    if outcome.read is not None:
        said += f"A read outside the replicas gives {outcome.read:g}."
    else:
        actions = {"create": "make the variable", "assign": "assign", "read": "read it outside the replicas"}
        said += f"TensorFlow refused to {actions[outcome.stage]}: {outcome.error}"
    return said
