"""The figures of lessons 4, 5 and 7: gradients and masks, accuracy by ratio, training curves, Horovod's timeline."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from dgc_lab.common import check_instance, check_number, check_some
from dgc_lab.distributed.timeline import by_phase
from dgc_lab.training.run_comparison import check_runs, evaluations_of, steps_of
from dgc_lab.ui.charts import BESIDE, PALETTE, Picture, grid, lines, stacked_rows
from dgc_lab.ui.curves import Curves

# Plain words for Horovod's phases, by the start of their names; any other phase is a whole collective.
KINDS = {
    "NEGOTIATE": "waiting until all ranks are ready",
    "MEMCPY": "copying",
    "ALLOCATE": "copying",
    "GLOO": "exchanging",
    "MPI": "exchanging",
    "NCCL": "exchanging",
}
COLLECTIVE = "rest of the collective"
LOOKS = {
    kind: {"color": colour} for kind, colour in zip(dict.fromkeys((*KINDS.values(), COLLECTIVE)), PALETTE, strict=False)
}
MAX_ROWS = 12  # per panel, where dozens of tensors do not fit


def masked_vector(vector: ArrayLike, threshold: float) -> Picture:
    """Draw a short gradient as bars: kept elements in full colour, dropped ones hatched, the threshold as two lines.

    The mask keeps elements with an absolute value of at least ``threshold``. Raises ValueError if ``vector`` does not
    have shape (n,), or if ``threshold`` is negative.

    Example:
        >>> masked_vector([0.5, -1.0, 0.1], 0.4).alt
        '3 gradient elements as bars; kept at threshold 0.4: 0, 1.'
    """
    vector = np.asarray(vector, dtype=float)
    if vector.ndim != 1:
        raise ValueError(f"vector must have one dimension, got shape {vector.shape}")
    check_number("threshold", threshold, "at least 0")
    kept = np.abs(vector) >= threshold
    figure = Figure(figsize=(7, 2.6), dpi=90, layout="constrained")
    axes = figure.subplots()
    positions = np.arange(len(vector))
    axes.bar(positions[kept], vector[kept], color=PALETTE[0], label="kept")
    axes.bar(positions[~kept], vector[~kept], color="white", edgecolor=PALETTE[1], hatch="///", label="dropped")
    for side in (threshold, -threshold):
        axes.axhline(side, color="black", linestyle="--", linewidth=1)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set(xlabel="element", ylabel="gradient", xticks=positions)
    axes.legend(**BESIDE)
    names = ", ".join(str(position) for position in positions[kept]) or "none"
    return Picture(figure, f"{len(vector)} gradient elements as bars; kept at threshold {threshold:.3g}: {names}.")


def gradient_histograms(gradients: dict, limits: dict | None = None) -> Picture:
    """Draw a histogram of log10 ``|gradient|`` for each tensor, with its threshold as a vertical line.

    ``gradients`` are arrays of any shape and ``limits`` their thresholds, both by tensor name; None draws no lines.
    Zeros have no logarithm; the title counts them. Raises ValueError if ``gradients`` is not a dict or is empty, a
    gradient is empty or not finite, or a threshold is missing.

    Example:
        >>> gradient_histograms({"kernel": [0.5, -1.0, 0.1, 0.0]}, {"kernel": 0.4}).alt.split(". ", 1)[1]
        'kernel: 4 elements, 25% zero, 50.00% kept (median size 3.0e-01, largest 1.0e+00).'
    """
    check_some("gradients", check_instance("gradients", gradients, dict))
    if limits is not None and (not isinstance(limits, dict) or gradients.keys() - limits.keys()):
        raise ValueError(f"limits must hold a threshold for each of {list(gradients)}, got {limits!r}")
    figure, panels = grid(len(gradients), 2, 4.5, 1.9, sharex=True)
    said = []
    for axes, (name, gradient) in zip(panels, gradients.items(), strict=True):
        sizes = np.abs(check_some(f"gradients[{name!r}]", np.asarray(gradient).ravel()))
        if not np.isfinite(sizes).all():
            raise ValueError(f"gradients[{name!r}] must be finite, got NaN or infinity")
        axes.hist(np.log10(sizes[sizes > 0]), bins=60, color=PALETTE[4])
        title = f"{name}: {sizes.size:,} elements, {np.mean(sizes == 0):.0%} zero"
        if limits is not None:
            if limits[name] > 0:  # at 0 all elements are kept
                axes.axvline(np.log10(limits[name]), color=PALETTE[1], linewidth=2)
            title += f", {np.mean(sizes >= limits[name]):.2%} kept"
        axes.set_title(title, fontsize=9)
        axes.set_yticks([])
        said.append(f"{title} (median size {np.median(sizes):.1e}, largest {sizes.max():.1e})")
    figure.supxlabel("log10 of the absolute gradient", fontsize=9)
    return Picture(figure, "Histograms of gradient sizes by tensor. " + "; ".join(said) + ".")


def errors_by_share(tables: dict) -> Picture:
    """Draw the test error against the share of the elements that was sent, one line per table, on logarithmic axes.

    ``tables`` are sequences of ``(share, accuracy)``, by label; the axis has a tick for a share of 0. Raises ValueError
    if ``tables`` is not a dict, or if it or one of its members is empty.

    Example:
        >>> errors_by_share({"sampled": [(1, 0.98), (0.01, 0.9), (0, 0.1)]}).alt
        'Test error by the share of elements sent. sampled: 2.0 % at 100%, 10.0 % at 1%, 90.0 % at 0%.'
    """
    for label, points in check_some("tables", check_instance("tables", tables, dict)).items():
        check_some(f"tables[{label!r}]", points)
    every = [share for points in tables.values() for share, _ in points]
    smallest = min((share for share in every if share > 0), default=1)
    zero = 10.0 ** (np.ceil(np.log10(smallest)) - 1)  # the tick below, because a logarithmic axis has no 0
    curves, said = {}, {}
    for label, points in tables.items():
        shares, accuracies = zip(*sorted(points), strict=True)
        errors = [max(0.01, 100 * (1 - accuracy)) for accuracy in accuracies]  # likewise
        curves[label] = [share or zero for share in shares], errors
        pairs = zip(reversed(shares), reversed(errors), strict=True)
        said[label] = ", ".join(f"{error:.1f} % at {percent(share)}" for share, error in pairs)
    title, options = "Test error by the share of elements sent", {"xscale": "log", "yscale": "log"}
    picture = lines(title, curves, said, "share of elements sent", "test error, %", **options)
    [axes] = picture.figure.axes
    stands_for_0 = 1.01 * zero if 0 in every else 0  # the largest tick that does
    axes.xaxis.set_major_formatter(lambda share, _: percent(share if share > stands_for_0 else 0))
    axes.yaxis.set_major_formatter("{x:g}")
    return picture


def percent(share: float) -> str:
    """Return a share as a percentage with two digits.

    Example:
        >>> percent(1.0), percent(0.0038123)
        ('100%', '0.38%')
    """
    return f"{float(f'{100 * share:.2g}'):g}%"


def loss_and_accuracy(runs: dict) -> Picture:
    """Draw training loss and test accuracy by step, one line per run.

    ``runs`` are as in `comparison`. Raises ValueError if it is not a dict, has no runs, or a run has no evaluation.

    Example:
        >>> from dgc_lab.training import DistributedStep, Evaluation
        >>> step = DistributedStep(1, 2.3, np.array([0.01]), 0.01, 0.1, bytes_sent=400, dense_bytes=40_000)
        >>> loss_and_accuracy({"dense": [step, Evaluation(1, accuracy=0.4, loss=2.1)]}).alt.split(". ", 1)[1]
        'dense: loss 2.300 at step 1, test accuracy 0.400.'
    """
    check_runs(runs)
    drawing = Curves(max(step.step for events in runs.values() for step in steps_of(events)))
    for label, events in runs.items():
        drawing.begin(label)
        for step in steps_of(events):
            drawing.add_loss(step.step, step.loss)
        for evaluation in evaluations_of(events):
            drawing.add_accuracy(evaluation.step, evaluation.accuracy)
    best = max(evaluation.accuracy for events in runs.values() for evaluation in evaluations_of(events))
    top = min(1.02, max(0.05, 1.3 * best))  # a quarter of the masked words is a good result
    drawing.accuracy_axes.set_ylim(0, top)
    return drawing.picture()


def timelines(frames: dict[str, pd.DataFrame]) -> Picture:
    """Draw timelines on one scale: a row per tensor, a bar per phase, a tick where a rank was ready.

    ``frames`` are results of `dgc_lab.distributed.timeline.read`, by label. If there are many tensors, only the first
    ones are drawn, and the alternative text says so. Raises ValueError if ``frames`` is not a dict or is empty.

    Example:
        >>> columns = ["tensor", "phase", "depth", "start ms", "ms"]
        >>> timelines({"dense": pd.DataFrame([("kernel", "ALLREDUCE", 0, 0.0, 2.5)], columns=columns)}).alt[52:]
        'dense: 1 tensor, 2.5 ms; longest in total: ALLREDUCE 2.50 ms.'
    """
    check_some("frames", check_instance("frames", frames, dict))
    titles = {}
    for label, frame in frames.items():
        tensors = list(dict.fromkeys(frame["tensor"]))
        some = f", {MAX_ROWS} of them drawn" * (len(tensors) > MAX_ROWS)
        end = (frame["start ms"] + frame["ms"]).max()
        title = f"{label}: {len(tensors)} tensor{'s' * (len(tensors) > 1)}, {end:.1f} ms"
        titles[title + some] = tensors[:MAX_ROWS]
    names = {title: [tensor.rpartition("/")[-1][-28:] for tensor in tensors] for title, tensors in titles.items()}
    figure, panels = stacked_rows(names, LOOKS, "a rank is ready", "ms since the first event", left=1.9)
    said = []
    for axes, (title, tensors), frame in zip(panels, titles.items(), frames.values(), strict=True):
        for tensor, phase, depth, start, ms in frame[frame["tensor"].isin(tensors)].itertuples(index=False):
            row = tensors.index(tensor)
            height = 0.8 * 0.6**depth  # nested phases are drawn inside each other
            kind = next((words for beginning, words in KINDS.items() if phase.startswith(beginning)), COLLECTIVE)
            if ms > 0:
                axes.broken_barh([(start, ms)], (row - height / 2, height), **LOOKS[kind])
            else:
                axes.plot([start] * 2, [row - 0.5, row + 0.5], color="black", linewidth=1)
        longest = by_phase(frame).nlargest(3, "ms")
        phases = ", ".join(f"{phase} {ms:.2f} ms" for phase, ms in longest["ms"].items())
        said.append(f"{title}; longest in total: {phases}")
    return Picture(figure, "Timelines of Horovod's collectives, phase by phase. " + "; ".join(said) + ".")
