"""The picture of Horovod's timelines: what each tensor waited for, phase by phase."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dgc_lab.distributed.timeline import by_phase
from dgc_lab.ui.charts import PALETTE, Picture

# What Horovod's names of phases begin with, in plain words; whatever else there is, is a collective as a whole.
KINDS = {
    "NEGOTIATE": "waiting until all ranks are ready",
    "MEMCPY": "copying",
    "ALLOCATE": "copying",
    "GLOO": "exchanging",
    "MPI": "exchanging",
    "NCCL": "exchanging",
}
COLLECTIVE = "the rest of the collective"
COLOURS = dict(zip(dict.fromkeys((*KINDS.values(), COLLECTIVE)), PALETTE, strict=False))
MOST_ROWS = 12  # of a panel; a gradient of dozens of tensors does not fit


def timelines(frames: dict[str, pd.DataFrame]) -> Picture:
    """Timelines one under the other, on one scale: a row per tensor, a bar per phase, a tick where a rank was ready.

    Args:
        frames: by label, what `dgc_lab.distributed.timeline.read` gives. Of many tensors the first ones are drawn, and
            the alternative text says so.
    """
    shown = {label: list(dict.fromkeys(frame["tensor"]))[:MOST_ROWS] for label, frame in frames.items()}
    heights = [1 + len(tensors) for tensors in shown.values()]
    figure = Figure(figsize=(9, 1.2 + 0.3 * sum(heights)), dpi=84, layout="constrained")
    panels = figure.subplots(len(frames), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    said = []
    for axes, (label, frame) in zip(panels, frames.items(), strict=True):
        number = frame["tensor"].nunique()
        places = {tensor: place for place, tensor in enumerate(shown[label])}
        for row in frame[frame["tensor"].isin(places)].itertuples(index=False):
            _, phase, depth, start, ms = row
            height = 0.8 * 0.6**depth  # what is in another phase is drawn in it
            if ms > 0:
                axes.broken_barh([(start, ms)], (places[row.tensor] - height / 2, height), color=COLOURS[kind(phase)])
            else:
                axes.plot([start] * 2, [places[row.tensor] - 0.5, places[row.tensor] + 0.5], color="black", linewidth=1)
        some = f", {len(places)} of them drawn" if len(places) < number else ""
        end = (frame["start ms"] + frame["ms"]).max()
        title = f"{label}: {number} tensor{'s' * (number > 1)}, {end:.1f} ms{some}"
        axes.set(title=title, yticks=range(len(places)))
        axes.set_yticklabels([tensor.rpartition("/")[-1][-28:] for tensor in places], fontsize=7)
        axes.set_ylim(len(places) - 0.5, -0.5)
        longest = by_phase(frame).nlargest(3, "ms")
        told = ", ".join(f"{phase} {ms:.2f} ms" for phase, ms in longest["ms"].items())
        said.append(f"{title}; longest in all: {told}")
    panels[-1].set_xlabel("ms since the first event")
    handles = [Patch(color=colour) for colour in COLOURS.values()]
    figure.legend(handles, list(COLOURS), loc="outside lower center", ncols=2, fontsize=8)
    return Picture(figure, "Timelines of Horovod's collectives, phase by phase. " + "; ".join(said) + ".")


def kind(phase: str) -> str:
    """What a phase is, in plain words.

    Example:
        >>> kind("NEGOTIATE_ALLGATHER"), kind("ALLREDUCE")
        ('waiting until all ranks are ready', 'the rest of the collective')
    """
    return next((words for start, words in KINDS.items() if phase.startswith(start)), COLLECTIVE)
