"""The figures of lesson 2, with alternative texts: copies of a variable, and losses next to those of one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from dgc_lab.common import check_list, check_number, check_some, check_text
from dgc_lab.ui.charts import BESIDE, GREY, PALETTE, Picture, grid, label_panel

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
        >>> copies_before_and_after(AssignmentResult((0.0, 0.0), (1.5, 1.5), 1.5), [1, 2], "MEAN").alt[34:]
        'Copies before: 0, 0. Copies after: 1.5, 1.5. A read outside the replicas gives 1.5.'
    """
    check_text("title", title)
    values = [check_number("values", value, "a number") for value in check_list("values", values)]
    if outcome.before and len(values) != len(outcome.before):
        raise ValueError(f"values must be one for each of the {len(outcome.before)} copies, got {len(values)}")
    figure = Figure(figsize=(9, 2.9), dpi=84, layout="constrained")
    axes = figure.subplots()
    positions = np.arange(len(values))
    groups = {
        "copy before": (outcome.before, {"color": GREY}),
        "value assigned": (values, {"color": "white", "edgecolor": PALETTE[0], "hatch": "///"}),
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
    said = f"The replicas assigned {assigned}. "
    if outcome.before:
        said += f"Copies before: {', '.join(f'{copy:g}' for copy in outcome.before)}. "
    if outcome.after:
        said += f"Copies after: {', '.join(f'{copy:g}' for copy in outcome.after)}. "
    if outcome.read is not None:
        said += f"A read outside the replicas gives {outcome.read:g}."
    else:
        actions = {"create": "create the variable", "assign": "assign the values"}
        action = actions.get(outcome.stage, "read it outside the replicas")
        said += f"TensorFlow refused to {action}: {outcome.error}"
    return said


def losses_over_reference(runs: dict, reference: ArrayLike, name: str) -> Picture:
    """Draw the training loss of each run in a panel of its own, on top of a wide line for the reference.

    Args:
        runs: losses by label, of shape (steps,), or (steps, replicas) to draw the mean over replicas.
        reference: losses of the run that every panel repeats, of the same number of steps.
        name: name of the reference in the legend.

    Raises:
        ValueError: `runs` is empty, or a run and the reference differ in their number of steps.

    Example:
        >>> losses_over_reference({"SUM": [3.0, 1.0]}, [[2.0, 4.0], [2.0, 2.0]], "one").alt
        'Training loss by step. one: from 3.000 to 2.000; SUM: from 3.000 to 1.000, at most 1.000 from one.'
    """
    check_text("name", name)
    wide, said = mean_losses(check_some("reference", reference)), []
    figure, panels = grid(len(check_some("runs", runs)), 2, 4, 2, sharex=True, sharey=True)
    steps = range(1, len(wide) + 1)
    for axes, (label, losses) in zip(panels, runs.items(), strict=True):
        if len(losses) != len(wide):
            raise ValueError(f"runs[{label!r}] must have {len(wide)} steps like {name}, got {len(losses)}")
        thin = mean_losses(losses)
        handles = axes.plot(steps, wide, color=GREY, linewidth=6) + axes.plot(steps, thin, color="black", linewidth=1.2)
        label_panel(axes, label, "step")
        said.append(f"{label}: {from_to(thin)}, at most {np.abs(thin - wide).max():.3f} from {name}")
    axes.set_ylim(0, None)
    figure.supylabel("training loss", fontsize=9)
    figure.legend(handles, [name, "training loop in the title"], loc="outside lower center", ncols=2, fontsize=8)
    return Picture(figure, f"Training loss by step. {name}: {from_to(wide)}; " + "; ".join(said) + ".")


def mean_losses(losses) -> np.ndarray:
    """Return the mean over replicas of each step's losses."""
    return np.reshape(np.asarray(losses, float), (len(losses), -1)).mean(axis=1)


def from_to(losses) -> str:
    """Describe the first and last loss."""
    return f"from {losses[0]:.3f} to {losses[-1]:.3f}"
