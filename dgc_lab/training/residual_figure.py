"""The figure of lesson 5 that shows residuals fill up, pass the threshold, and become empty again."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from dgc_lab.common import check_instance, check_whole
from dgc_lab.ui.charts import BESIDE, MARKERS, PALETTE, Picture, label_panel

NO_ELEMENTS = ("step", "threshold", "sent")  # the other columns of a history


def residual_step(history: pd.DataFrame, step: int) -> Picture:
    """Draw the residuals of a few elements up to a step: as lines over time, and as bars below the threshold.

    A line drops to 0 where its element is sent. Residuals are drawn as magnitudes, which the threshold applies to.

    Args:
        history: a result of `dgc_lab.training.residual_history`.
        step: number of the step; 0 is the state before the first step.

    Raises:
        ValueError: ``history`` lacks a column or has no elements; or ``step`` is out of range.

    Example:
        >>> history = pd.DataFrame({"step": [1], "threshold": [2.0], "a": [-3.0], "b": [0.5], "sent": ["a"]})
        >>> residual_step(history, step=1).alt
        'Step 1 of 1, threshold 2. a: 3, sent; b: 0.5, waits.'

    References:
        arXiv:1712.01887, Algorithm 1.
    """
    missing = [name for name in NO_ELEMENTS if name not in check_instance("history", history, pd.DataFrame)]
    elements = [name for name in history if name not in NO_ELEMENTS]
    if missing or not elements:
        wanted = ", ".join(NO_ELEMENTS)
        raise ValueError(f"history must have the columns {wanted} and one for each element, got {list(history)}")
    check_whole("step", step, 0, len(history))
    now = history.iloc[:step]
    highest = 1.1 * max(history[elements].abs().to_numpy().max(), history["threshold"].max())
    figure = Figure(figsize=(8.5, 3.3), dpi=90, layout="constrained")
    over_time, bars = figure.subplots(1, 2, width_ratios=(5, 2), sharey=True)
    for number, name in enumerate(elements):
        _draw_element(over_time, now, name, number)
    over_time.step(now["step"], now["threshold"], where="mid", color="black", linestyle="--", linewidth=1)
    over_time.set(xlim=(0, len(history) + 0.5), ylim=(0, highest))
    label_panel(over_time, "residuals over time", "step")
    over_time.set_ylabel("magnitude", fontsize=9)
    latest = history.iloc[step - 1] if step else None
    said = [_draw_bar(bars, latest, name, number) for number, name in enumerate(elements)]
    if step:
        bars.axhline(latest["threshold"], color="black", linestyle="--", linewidth=1, label="threshold")
    label_panel(bars, f"step {step}, before sending", "")
    bars.set_xticks([])
    bars.legend(**BESIDE)
    threshold = f", threshold {latest['threshold']:.3g}" if step else ""
    return Picture(figure, f"Step {step} of {len(history)}{threshold}. {'; '.join(said)}.")


def _draw_element(axes, now: pd.DataFrame, name: str, number: int) -> None:
    """Draw an element's magnitude over time: with a mark and a drop to 0 where it is sent."""
    x, y = [0], [0.0]
    color, mark = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
    for row in now.itertuples():
        value = abs(now.at[row.Index, name])
        sent = name in row.sent.split(", ")
        x += [row.step] * (1 + sent)
        y += [value, 0.0][: 1 + sent]
        if sent:
            axes.plot(row.step, value, mark, color=color, markersize=7)
    axes.plot(x, y, color=color, linewidth=1.6)


def _draw_bar(axes, latest, name: str, number: int) -> str:
    """Draw an element's magnitude before sending, and return it as text."""
    value = abs(latest[name]) if latest is not None else 0.0
    sent = latest is not None and name in latest["sent"].split(", ")
    color = PALETTE[number % len(PALETTE)]
    bar = axes.bar(number, value, color=color if sent else "white", edgecolor=color, linewidth=2)
    bar.set_label(name)
    axes.text(number, value, "sent" if sent else "", ha="center", va="bottom", fontsize=9)
    return f"{name}: {value:.3g}, {'sent' if sent else 'waits'}"
