"""Widget of lesson 3 that shows what a slow worker costs in three modes, by arithmetic and at once."""

from __future__ import annotations

from ipywidgets import FloatSlider, IntSlider

from dgc_lab.parameter_server.figures import timelines
from dgc_lab.parameter_server.metrics import summary, update_times
from dgc_lab.parameter_server.schedule import Schedule, Straggler
from dgc_lab.parameter_server.simulation import StepCosts, simulate
from dgc_lab.ui.explorer import Explorer, wider
from dgc_lab.ui.widget import side_by_side

COMPARED = ("synchronous", "backup workers", "asynchronous")
COSTS = StepCosts(computing=0.09, dispatch=0.01)  # seconds: 0.1 for a gradient of a fast worker
COUNTED, DRAWN = 15.0, 2.0  # seconds that the table counts, and that the picture shows
SHOWN = ["updates/s", "gradients/s in updates", "gradients/s dropped", "mean staleness", "max staleness", "idle share"]


class StragglerExplorer(Explorer):
    """Widget that redraws the timelines of three modes when the last worker becomes slower or faster.

    All times are modelled (`dgc_lab.parameter_server.simulate`), not measured. A worker needs 90 ms for a gradient, the
    last one several times as long, and 10 ms to get the next batch. `StragglerLab` trains on real servers.

    Args:
        settings: initial values of the controls: slowdown (1 to 10), workers (4 to 8), and backup (1 to 3 workers).

    Raises:
        ValueError: a setting has no control, or its control rejects the value.

    Example:
        >>> explorer = StragglerExplorer(slowdown=5, workers=4)
        >>> explorer.frame.set_index("mode")["updates/s"].round().to_dict()
        {'synchronous': 2.0, 'backup workers': 10.0, 'asynchronous': 32.0}

    References:
        arXiv:1604.00981 (backup workers).
    """

    def __init__(self, **settings):
        controls = {
            "slowdown": wider(FloatSlider, "Last worker ×", value=3, min=1, max=10, step=0.5, readout_format=".1f"),
            "workers": wider(IntSlider, "Workers", value=4, min=4, max=8),
            "backup": wider(IntSlider, "Backup workers", value=1, min=1, max=3),
        }
        super().__init__(controls, [side_by_side([[control] for control in controls.values()])], settings)

    @staticmethod
    def result(slowdown: float, workers: int, backup: int):
        """Simulate the three modes, draw the first two seconds, and count what happens in 15 seconds."""
        runs, titles = {}, {}
        for mode in COMPARED:
            schedule = Schedule(mode, backup=backup, stragglers=(Straggler(workers - 1, slowdown),))
            order = simulate(schedule, workers, round(10 * COUNTED * workers), COSTS)
            ends = update_times(order)  # an update that is incomplete in the end does not count
            runs[mode] = [record for record in order if ends.get(record.update, record.done) < COUNTED + 0.05]
            averaged = schedule.gradients_per_update(workers)
            titles[mode] = f"{mode}, modelled: an update averages {averaged} gradient{'s' * (averaged > 1)}"
        found = summary(runs, batch_size=1)
        found["gradients/s dropped"] = found["dropped"] / found["seconds"]
        frame = found.rename(columns={"samples/s": "gradients/s in updates"})[SHOWN]
        picture = timelines({titles[mode]: run for mode, run in runs.items()}, DRAWN)
        used = ", ".join(f"{mode} {row['gradients/s in updates']:.3g}" for mode, row in frame.iterrows())
        pace = f"takes {slowdown:g} times as long" if slowdown > 1 else "is as fast as the others"
        said = f"Of {workers} workers, worker {workers - 1} {pace}. Gradients in updates per second: {used}."
        return picture, frame.rename_axis("mode").reset_index(), said
