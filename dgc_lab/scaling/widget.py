"""Widget of lesson 6: when does gradient compression pay, by workers, link, model and ratio? It trains nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ipywidgets import Dropdown, FloatText, SelectionSlider

from dgc_lab.compression.break_even import break_even_ratio
from dgc_lab.scaling.cost_model import METHODS, Estimate, break_even_bandwidth, step
from dgc_lab.scaling.figures import bandwidth_label, scale_curves
from dgc_lab.scaling.model_widget import ModelExplorer
from dgc_lab.scaling.network import GBIT, LATENCY, Link
from dgc_lab.scaling.tables import timed_steps
from dgc_lab.ui.explorer import wider

if TYPE_CHECKING:
    from dgc_lab.scaling.timing import StepTimes

WORKERS = tuple(2**power for power in range(11))
BANDWIDTHS = tuple(gbit * GBIT for gbit in (0.1, 0.25, 1, 2.5, 10, 25, 40, 100, 200))
RATIOS = (1.0, 0.25, 0.0625, 0.01, 0.004, 0.001, 0.0001)
ENDS = ("protocol headers", "fitted to measurements")
OVERLAPS = (0.0, 0.25, 0.5, 0.75, 1.0)
COMPRESSING = ("after the backward pass", "tensor by tensor")
TABLE_WORKERS = (4, 32, 256, 1024)  # numbers of workers with a speed-up in the table


class ScaleExplorer(ModelExplorer):
    """Widget that redraws speed-up, bytes and break-even when the workers, the link, the model or the ratio change.

    Curves are modelled, marks are measured. The message states whether each time was measured, scaled, assumed, or set
    by the user.

    Args:
        here: times of ``mnist_cnn`` on this machine (`dgc_lab.scaling.timing.measured`); if None, they are measured
            now, which takes a few seconds.
        fit: link fitted to measured exchanges (`dgc_lab.scaling.tables.fit_links`). It adds an option for
            endpoint costs, with the efficiency and the time per byte of the fit. The fit's latency is not used, because
            between two ranks most of it does not come from the link.
        link_rows: steps of ``mnist_cnn`` measured over real links (`dgc_lab.scaling.tables.link_rows`). They are drawn
            if bandwidth, ratio, values and indices match the controls.
        settings: initial values of the controls: model, workers (a power of two up to 1 024), bandwidth (bytes per
            second), latency (microseconds per hop), ends, ratio, values, indices, overlap (share of the backward pass
            that can hide an exchange), compressing, compute and selection (ms).

    Raises:
        ValueError: a setting has no control, or its control rejects the value.

    Example:
        >>> from dgc_lab.scaling.timing import StepTimes
        >>> explorer = ScaleExplorer(StepTimes(0.05, 0.01, 1e-8), model="ResNet-50", workers=32)
        >>> explorer.frame["method"].tolist()
        ['no exchange', 'dense', 'float16', 'sparse', 'switching']
    """

    def __init__(
        self, here: StepTimes | None = None, fit: Link | None = None, link_rows: Sequence[dict] = (), **settings
    ):
        from dgc_lab.compression.wire_format import INDEX_TYPES, VALUE_TYPES
        from dgc_lab.scaling.named_shapes import SHAPES
        from dgc_lab.scaling.timing import measured, times_of

        here = measured() if here is None else here
        self.fit, self.link_rows = fit, list(link_rows)
        self.times = {model: times_of(model, here) for model in SHAPES}
        bandwidths = [(bandwidth_label(bandwidth), bandwidth) for bandwidth in BANDWIDTHS]
        ratios = [(f"{ratio:.4g}", ratio) for ratio in RATIOS]
        controls = {
            "model": wider(Dropdown, "Model", options=list(SHAPES)),
            "workers": wider(SelectionSlider, "Workers", options=WORKERS, value=8),
            "bandwidth": wider(SelectionSlider, "Bandwidth", options=bandwidths, value=GBIT),
            "latency": wider(FloatText, "Latency, µs per hop", value=1e6 * LATENCY),
            "ends": wider(Dropdown, "Endpoint costs", options=ENDS[: 1 if fit is None else 2]),
            "ratio": wider(SelectionSlider, "Ratio", options=ratios, value=0.001),
            "values": wider(Dropdown, "Values", options=VALUE_TYPES),
            "indices": wider(Dropdown, "Indices", options=list(INDEX_TYPES)),
            "overlap": wider(SelectionSlider, "Overlap", options=[(f"{share:g}", share) for share in OVERLAPS]),
            "compressing": wider(Dropdown, "Compressing", options=COMPRESSING),
            "compute": wider(FloatText, "Compute, ms"),
            "selection": wider(FloatText, "Selection, ms"),
        }
        super().__init__(controls, 6, settings)

    def _fill_in(self, controls):
        times = self.times[controls["model"].value]
        controls["compute"].value = round(1e3 * times.compute, 3)
        controls["selection"].value = round(1e3 * times.selection, 3)

    def result(
        self, model, workers, bandwidth, latency, ends, ratio, values, indices, overlap, compressing, compute, selection
    ):
        """Return the cost model's picture, table and message for these values, without training or timing."""
        import pandas as pd

        from dgc_lab.scaling.timing import workload

        for name, value, least in (("latency", latency, "at least 0 µs"), ("selection", selection, "at least 0 ms")):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be {least}, got {value:g}")
        if not 0 < compute < math.inf:
            raise ValueError(f"compute must be above 0 ms, got {compute:g}")
        times = dataclasses.replace(self.times[model], compute=compute / 1e3, selection=selection / 1e3)
        work = workload(model, times, values, indices)
        work = dataclasses.replace(work, overlap=overlap, by_tensor=compressing == COMPRESSING[1])
        link = Link(bandwidth, latency / 1e6)
        if ends == ENDS[1]:
            link = dataclasses.replace(link, efficiency=self.fit.efficiency, per_byte=self.fit.per_byte)
        curves = {method: [step(work, link, number, method, ratio) for number in WORKERS] for method in METHODS}
        timed = timed_steps(self.link_rows, values, indices) if model == "mnist_cnn" else []
        points = [
            point
            for point in timed
            if math.isclose(point.bandwidth, bandwidth) and (point.method != "sparse" or point.ratio == ratio)
        ]
        here = {method: next(e for e in estimates if e.workers == workers) for method, estimates in curves.items()}
        rows = [row(here[method], curves[method]) for method in METHODS] + [row(point, []) for point in points]
        picture = scale_curves(curves, points, workers, ratio, work.entry_bytes)
        return picture, pd.DataFrame(rows), self._summary(model, work, link, here, ratio)

    def _summary(self, model, work, link, here, ratio) -> str:
        """Return the message: the most important numbers, and the sources of the times."""
        switching, dense = here["switching"], here["dense"]
        break_even = break_even_bandwidth(work, link, switching.workers, ratio)
        if math.isnan(break_even):
            faster = "sparse steps are faster than dense ones on some faster links only"
        elif break_even == 0:
            faster = "sparse steps are faster on no link"
        elif break_even == math.inf:
            faster = "sparse steps are faster on every link"
        else:
            faster = f"sparse steps are faster than dense ones on links below {bandwidth_label(break_even)}"
        times = self.times[model]
        shorter = break_even_ratio(switching.workers, work.entry_bytes)
        return (
            f"Modelled: {model}, {switching.workers} workers, {bandwidth_label(link.bandwidth)}, ratio {ratio:g}. "
            f"Speed-up over one worker: switching {switching.speed_up:.3g}, dense {dense.speed_up:.3g}. "
            f"Values and indices are smaller below a ratio of {shorter:.3g}; {faster}. "
            f"The backward pass hides up to {1e3 * work.hides:.4g} ms of an exchange. "
            f"Compute {1e3 * work.compute:.4g} ms: {source_of(work.compute, times.compute, times.compute_is)}. "
            f"Selection {1e3 * work.selection:.4g} ms: "
            f"{source_of(work.selection, times.selection, times.selection_is)}."
        )


def source_of(now: float, known: float, source: str) -> str:
    """Return the source of a time: that of the known time, unless the user has changed the control's value."""
    return source if round(1e3 * now, 3) == round(1e3 * known, 3) else "set by you"


def row(estimate: Estimate, curve: list[Estimate]) -> dict:
    """Return a row of the table: an estimate, and the speed-up of the same curve with other numbers of workers."""
    return {
        "method": estimate.method,
        "source": estimate.source,
        "workers": estimate.workers,
        "ms per step": 1e3 * estimate.seconds,
        "speed-up": estimate.speed_up,
        "MB sent per worker": estimate.payload_bytes / 1e6,
        "MB per link": estimate.passed / 1e6,
        **{f"speed-up with {e.workers}": e.speed_up for e in curve if e.workers in TABLE_WORKERS},
    }
