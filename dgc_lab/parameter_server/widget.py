"""The widget of lesson 3: live training on parameter servers in four modes, with one slow worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import pandas as pd
from ipywidgets import Checkbox, Dropdown, FloatSlider, FloatText, IntSlider, IntText

from dgc_lab.cluster import ParameterServers
from dgc_lab.cluster.tensorflow_roles import dead_workers
from dgc_lab.common import check_flag
from dgc_lab.install.launch_env import cores
from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.events import Training
from dgc_lab.parameter_server.live_figure import StragglerPicture
from dgc_lab.parameter_server.metrics import stalenesses, summary_row
from dgc_lab.parameter_server.schedule import MODES, GradientEvent, Schedule, Straggler
from dgc_lab.parameter_server.tasks import Classifier
from dgc_lab.parameter_server.training_loop import train
from dgc_lab.ui.live_panel import LivePanel, start_alone
from dgc_lab.ui.widget import wide
from dgc_lab.workloads.data import load
from dgc_lab.workloads.dataset import Task
from dgc_lab.workloads.models import wide_digits_cnn

ONLY_IN = {"bound": "bounded staleness", "backup": "backup workers"}
COLUMNS = (
    *("run", "mode", "workers", "slowdown", "rate", "gradients/s", "mean staleness", "max staleness"),
    *("idle share", "loss", "accuracy", "gradients"),
)


class StragglerLab(LivePanel):
    """Widget that shows training on parameter servers live, in one of four modes and with the last worker slowed.

    Run starts the servers if necessary (some seconds, once for each number of workers) and adds a row, even after Stop.
    ``close()`` stops the servers.

    Args:
        task: the task, as in `dgc_lab.parameter_server.train`; `wide_digits_cnn` on digits if None.
        reachable: as in `dgc_lab.cluster.ParameterServers`, for machines that allow no private network.
        settings: initial values of the controls: mode, workers (1 to 4), slowdown (1 to 10), bound, backup,
            learning_rate, momentum, staleness_aware, batch, gradients, seed.

    Attributes:
        rows: a dictionary for each finished or stopped run: the columns of the table, its ``name`` in ``records``, and
            all columns of `dgc_lab.parameter_server.summary`. ``loss`` and ``accuracy`` are those at the end.
        records: list of `dgc_lab.parameter_server.GradientEvent` for each run, by its name.
        servers: the `ParameterServers`; None before the first run.

    Raises:
        ValueError: a setting is not the name of a control, or its value is not accepted.

    Example:
        >>> lab = StragglerLab(mode="asynchronous", slowdown=5)
        >>> lab.settings().schedule.stragglers
        (Straggler(worker=1, slowdown=5.0, delay=0.0, tail=None),)
    """

    def __init__(self, task: Task | None = None, *, reachable: bool = False, **settings):
        check_flag("reachable", reachable)
        controls = {
            "mode": wide(Dropdown, "Mode", options=MODES),
            "workers": wide(IntSlider, "Workers", value=2, min=1, max=4),
            "slowdown": wide(FloatSlider, "Last worker ×", value=1, min=1, max=10, step=0.5, readout_format=".1f"),
            "bound": wide(IntText, "Bound", value=2),
            "backup": wide(IntText, "Backup", value=1),
            "learning_rate": wide(FloatText, "Learning rate", value=0.05),
            "momentum": wide(FloatText, "Momentum", value=0),
            "staleness_aware": wide(Checkbox, "Staleness-aware learning rate", value=False, indent=False),
            "batch": wide(IntText, "Batch", value=128),
            "gradients": wide(IntText, "Gradients", value=240),
            "seed": wide(IntText, "Seed", value=0),
        }
        controls["mode"].observe(lambda _: self._show_controls_of_mode(), "value")
        runs = StragglerRuns(lambda: (self.settings(), self.workers.value), task, reachable, self._say)
        columns = ["mode workers slowdown bound backup", "learning_rate momentum staleness_aware"]
        super().__init__(runs, controls, [*columns, "batch gradients seed"], settings)
        self._show_controls_of_mode()

    redraw_share = 0.02  # its training runs in other processes
    records = property(lambda self: self.experiment.records)
    servers = property(lambda self: self.experiment.servers)

    def settings(self) -> AsyncConfig:
        """Return the controls as `dgc_lab.parameter_server.AsyncConfig`; a ValueError for an invalid one names it."""
        values = self._values()
        workers, slowdown, mode = (values.pop(name) for name in ("workers", "slowdown", "mode"))
        own = {name: values.pop(name) for name in ONLY_IN}  # bound and backup; other modes neither show nor check them
        stragglers = (Straggler(workers - 1, slowdown=slowdown),) if slowdown > 1 else ()
        schedule = Schedule(mode, stragglers=stragglers, **{n: own[n] for n in own if ONLY_IN[n] == mode})
        settings = AsyncConfig(schedule, **values, score_every=max(1, values["gradients"]))
        settings.check(workers)
        return settings

    def stop(self) -> None:
        """End the training within about a second, once the servers are up. A second call has no effect."""
        super().stop()
        if (servers := self.servers) is not None:  # the training thread may replace them meanwhile
            servers.request_stop()

    def _show_controls_of_mode(self):
        for name, mode in ONLY_IN.items():
            self.controls[name].layout.display = None if self.mode.value == mode else "none"


class StragglerRuns:
    """Experiment of a `dgc_lab.ui.live_panel.LivePanel`. A job (settings, number of workers) is one training run."""

    note = ""

    def __init__(self, job: Callable, task: Task | None, reachable: bool, say: Callable[[str], None]):
        self.job, self.task, self.reachable, self.say = job, task, reachable, say
        self.servers = self.curves = None

    def clear(self) -> None:
        self.rows, self.records, self.curves = [], {}, StragglerPicture()

    def close(self) -> None:
        self.curves = None
        if self.servers is not None:
            self.servers.stop()

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.rows, columns=COLUMNS)

    def prepare(self) -> tuple[tuple[AsyncConfig, int], str]:
        settings, workers = self.job()
        self.progress = RunProgress(who_trains(settings, workers), settings.gradients)
        return (settings, workers), "Starting."

    def train(self, job, stopping):
        settings, workers = job
        self._start_servers(workers)
        if stopping.is_set():
            self.progress.stopped = True
            return
        slow = f", {slowdown_of(settings):g}x" * bool(settings.schedule.stragglers)
        label, training = f"{len(self.curves.runs) + 1} {settings.schedule.mode}{slow}", self.progress.training
        self.curves.begin(label, workers)
        self.say("Building the model on the servers.")
        self.task = self.task or Classifier(wide_digits_cnn, load("digits"))
        try:
            with contextlib.closing(self.servers.stream(train, self.task, settings)) as events:
                for event in events:
                    if stopping.is_set():  # `stop` may have sent its request before the stream began
                        self.servers.request_stop()
                    training.take(event)
                    if isinstance(event, GradientEvent):
                        self.curves.add(event)
                        yield
        except BaseException:
            self.curves.rename(f"{label} (failed)")
            raise
        self.progress.stopped = self.progress.share < 1
        if self.progress.stopped:
            label += " (stopped)"
            self.curves.rename(label)
        if training.records:
            self.records[label] = training.records
            self.rows.append(row_of(label, settings, workers, training))

    def _start_servers(self, workers):
        if self.servers is None or self.servers.workers != workers:
            if self.servers:
                self.servers.stop()
            self.servers = ParameterServers(
                workers, reachable=self.reachable, progress=lambda text: self.say(f"Parameter servers: {text}.")
            )
        # Never started, or dead. Servers continue without a dead worker, so only the coordinator notices its death.
        if not self.servers.ready or self.servers.run(dead_workers):
            start_alone(self.servers)


@dataclass
class RunProgress:
    """Progress of a training run of ``total`` gradients; ``who`` describes the workers."""

    who: str
    total: int
    training: Training = field(default_factory=Training)
    stopped: bool = False
    failure = None  # an error ends the run, and leaves no row

    @property
    def share(self) -> float:
        return len(self.training.records) / self.total

    def message(self) -> str:
        records = self.training.records
        if not records:
            return "Stopped before the first gradient. The servers are up." if self.stopped else ""
        stale = stalenesses(records)
        dropped = f", {len(records) - len(stale)} dropped" if len(stale) < len(records) else ""
        deaths = "".join(f" Worker {death.worker} died; the others continued." for death in self.training.deaths)
        end = "Stopped: " if self.stopped else "Done: " if self.training.end else ""
        return (
            f"{end}{self.who}: {len(records)} of {self.total} gradients{dropped}, "
            f"{len(records) / records[-1].done:.1f} gradients/s, "
            f"mean staleness {sum(stale) / max(len(stale), 1):.2f}.{deaths}"
        )


def row_of(label: str, settings: AsyncConfig, workers: int, training: Training) -> dict:
    schedule = settings.schedule
    own = [f", {name} {getattr(schedule, name)}" for name, mode in ONLY_IN.items() if schedule.mode == mode]
    rate = f"{settings.learning_rate:g}" + " / staleness" * settings.staleness_aware
    rate += f", momentum {settings.momentum:g}" * (settings.momentum > 0)
    return {
        **summary_row(training.records, settings.batch),
        "run": label.split()[0] + ", stopped" * (len(training.records) < settings.gradients),
        "name": label,
        "mode": "".join([schedule.mode, *own]),
        "workers": workers,
        "slowdown": slowdown_of(settings),
        "rate": rate,
        "batch": settings.batch,
        "seed": settings.seed,
        **training.scores[-1].values,
    }


def slowdown_of(settings: AsyncConfig) -> float:
    """Return the slow worker's slowdown, or 1 if there is none."""
    return next((straggler.slowdown for straggler in settings.schedule.stragglers), 1.0)


def who_trains(settings: AsyncConfig, workers: int) -> str:
    who = f"{workers} {'worker' if workers == 1 else 'workers'}"
    who += f" on {cores()} cores" * (workers > cores()) + f", {settings.schedule.mode}"
    if settings.schedule.stragglers:
        who += f", worker {workers - 1} slowed {slowdown_of(settings):g} times"
    return who
