"""The widget of lesson 3: workers on real parameter servers, one of them slow, in four modes, live."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import pandas as pd
from ipywidgets import Checkbox, Dropdown, FloatSlider, FloatText, IntSlider, IntText

from dgc_lab.cluster import ParameterServers
from dgc_lab.cluster.tensorflow_roles import dead_workers
from dgc_lab.install.launch_env import cores
from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.events import Training
from dgc_lab.parameter_server.live_figure import StragglerPicture
from dgc_lab.parameter_server.metrics import figures, stalenesses
from dgc_lab.parameter_server.schedule import MODES, GradientEvent, Schedule, Straggler
from dgc_lab.parameter_server.tasks import Classifier
from dgc_lab.parameter_server.training_loop import train
from dgc_lab.ui.live_run import LiveRun
from dgc_lab.ui.widget import wide
from dgc_lab.workloads.data import load
from dgc_lab.workloads.dataset import Task
from dgc_lab.workloads.models import wide_digits_cnn

ONLY_IN = {"bound": "bounded staleness", "backup": "backup workers"}
COLUMNS = (
    *("run", "mode", "workers", "slowdown", "rate", "gradients/s", "mean staleness", "max staleness"),
    *("idle share", "loss", "accuracy", "gradients"),
)


class StragglerLab(LiveRun):
    """Train on parameter servers in one of four modes with the last worker slowed down, and watch it live.

    Run starts the servers if they are not there (some seconds, once for each number of workers), and adds a row; Stop
    keeps what there is of it. ``close()`` ends the servers.

    Args:
        task: what is trained, as `dgc_lab.parameter_server.train` takes it; digits by `wide_digits_cnn` if None.
        reachable: as in `dgc_lab.cluster.ParameterServers`, for machines that allow no private network.
        settings: first values of the controls: mode, workers (1 to 4), slowdown (1 to 10), bound, backup,
            learning_rate, momentum, staleness_aware, batch, gradients, seed.

    Attributes:
        rows: a dictionary for each finished or stopped run: what the table shows, its ``name`` in ``records``, and all
            of `dgc_lab.parameter_server.summary`. The scores, as ``loss`` and ``accuracy``, are those at the end.
        records: by the name of the run, the list of its `dgc_lab.parameter_server.GradientEvent`.
        servers: the `ParameterServers`; None before the first run.

    Raises:
        ValueError: a keyword is not the name of a control, or its value is none that the control takes.

    Example:
        >>> lab = StragglerLab(mode="asynchronous", slowdown=5)
        >>> lab.settings().schedule.stragglers
        (Straggler(worker=1, slowdown=5.0, delay=0.0, tail=None),)
    """

    redraw_share: ClassVar = 0.02

    def __init__(self, task: Task | None = None, *, reachable: bool = False, **settings):
        self.task, self.reachable, self.servers = task, reachable, None
        super().__init__(**settings)

    def _columns(self):
        self.mode = wide(Dropdown, "Mode", options=MODES)
        self.workers = wide(IntSlider, "Workers", value=2, min=1, max=4)
        self.slowdown = wide(FloatSlider, "Last worker ×", value=1, min=1, max=10, step=0.5, readout_format=".1f")
        self.bound = wide(IntText, "Bound", value=2)
        self.backup = wide(IntText, "Backup", value=1)
        self.learning_rate = wide(FloatText, "Learning rate", value=0.05)
        self.momentum = wide(FloatText, "Momentum", value=0)
        self.staleness_aware = wide(Checkbox, "Staleness-aware learning rate", value=False, indent=False)
        self.batch = wide(IntText, "Batch", value=128)
        self.gradients = wide(IntText, "Gradients", value=240)
        self.seed = wide(IntText, "Seed", value=0)
        self.mode.observe(lambda _: self._show_what_the_mode_has(), "value")
        self._show_what_the_mode_has()
        return [
            [self.mode, self.workers, self.slowdown, self.bound, self.backup],
            [self.learning_rate, self.momentum, self.staleness_aware],
            [self.batch, self.gradients, self.seed],
        ]

    def _show_what_the_mode_has(self):
        for name, mode in ONLY_IN.items():
            getattr(self, name).layout.display = None if self.mode.value == mode else "none"

    def _new_curves(self):
        self.records = {}
        return StragglerPicture()

    def settings(self):
        """The controls as `dgc_lab.parameter_server.AsyncConfig`; a ValueError names what is wrong."""
        values = self._values()
        workers, slowdown, mode = (values.pop(name) for name in ("workers", "slowdown", "mode"))
        # What the mode does not have is not shown, and not checked.
        own = {name: values.pop(name) for name in ONLY_IN}
        stragglers = (Straggler(workers - 1, slowdown=slowdown),) if slowdown > 1 else ()
        schedule = Schedule(mode, stragglers=stragglers, **{n: own[n] for n in own if ONLY_IN[n] == mode})
        settings = AsyncConfig(schedule, **values, score_every=max(1, values["gradients"]))
        settings.check(workers)
        return settings

    def frame(self):
        """The rows as a table."""
        return pd.DataFrame(self.rows, columns=COLUMNS)

    # The work ----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop: end the training within a second or so, once the servers are up. A second call changes nothing."""
        super().stop()
        if (servers := self.servers) is not None:  # the thread that trains may change them
            servers.request_stop()

    def _job(self):
        self._say("Starting.")
        return self.settings(), self.workers.value

    def _train(self, failures, settings, workers):
        self.progress.value = 0
        self._start_servers(workers)
        if self._stopping.is_set():
            return "Stopped before the training began. The servers are up."
        slow = f", {slowdown_of(settings):g}x" * bool(settings.schedule.stragglers)
        label = f"{len(self.curves.runs) + 1} {settings.schedule.mode}{slow}"
        self.curves.begin(label, workers)
        self._say("Building the model on the servers.")
        self._draw()  # axes and legend are drawn while the servers build
        if self.task is None:
            self.task = Classifier(wide_digits_cnn, load("digits"))
        try:
            with contextlib.closing(self.servers.stream(train, self.task, settings)) as events:
                return self._follow(events, settings, workers, label)
        except BaseException:
            self.curves.rename(f"{label} (broken off)")
            raise

    def _start_servers(self, workers):
        """Servers for that many workers: those that are there, or new ones where they do not fit or have died."""
        if self.servers is not None and self.servers.workers != workers:
            self.servers.stop()
            self.servers = None
        if self.servers is None:
            self.servers = ParameterServers(
                workers, reachable=self.reachable, progress=lambda text: self._say(f"Parameter servers: {text}.")
            )
        # Never started, or dead. Servers go on without a worker, so that it is the coordinator that knows.
        if not self.servers.ready or self.servers.run(dead_workers):
            self._start_alone(self.servers)

    def _follow(self, events, settings, workers, label) -> str:
        """Show the events of a training as they come, and keep what it was; returns the last message."""
        training, asked = Training(), False
        who = f"{workers} {'worker' if workers == 1 else 'workers'}"
        who += f" on {cores()} cores" * (workers > cores()) + f", {settings.schedule.mode}"
        if settings.schedule.stragglers:
            who += f", worker {workers - 1} slowed {slowdown_of(settings):g} times"

        def tell():
            self.progress.value = len(training.records) / settings.gradients
            return f"{who}: {in_words(training, settings.gradients)}" if training.records else ""

        for event in self._live(events, tell):
            if self._stopping.is_set() and not asked:  # a word from `stop` can come before the training hears it
                asked = True
                self.servers.request_stop()
            training.take(event)
            if isinstance(event, GradientEvent):
                self.curves.add(event)
        told, stopped = tell(), len(training.records) < settings.gradients
        if stopped:
            label += " (stopped)"
            self.curves.rename(label)
        if not told:
            return "Stopped before the first gradient."
        self.records[label] = training.records
        self.rows.append(self._row(label, settings, workers, training))
        return f"{'Stopped' if stopped else 'Done'}: {told}"

    def _row(self, label, settings, workers, training) -> dict:
        schedule = settings.schedule
        own = [f", {name} {getattr(schedule, name)}" for name, mode in ONLY_IN.items() if schedule.mode == mode]
        rate = f"{settings.learning_rate:g}" + " / staleness" * settings.staleness_aware
        rate += f", momentum {settings.momentum:g}" * (settings.momentum > 0)
        return {
            **figures(training.records, settings.batch),
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

    def close(self):
        """End the training, the widget, and the servers that it started."""
        super().close()
        if getattr(self, "servers", None) is not None:  # one that refused a setting has none yet
            self.servers.stop()


def slowdown_of(settings: AsyncConfig) -> float:
    """How many times as long the one slow worker computes; 1 without one."""
    return next((straggler.slowdown for straggler in settings.schedule.stragglers), 1.0)


def in_words(training, total: int) -> str:
    """How far a training with a record or more is, how quick, how stale its gradients are, and who died.

    Example:
        >>> from dgc_lab.parameter_server.events import WorkerDied
        >>> one = GradientEvent(0, 0, 0.0, 0.1, 0.2, 0.5, version=0, update=0, loss=2.3)
        >>> in_words(Training([one], deaths=[WorkerDied(1, 0.4)]), 8)
        '1 of 8 gradients, 2.0 gradients/s, mean staleness 0.00. Worker 1 died; the others went on.'
    """
    records = training.records
    stale = stalenesses(records)
    dropped = f", {len(records) - len(stale)} dropped" if len(stale) < len(records) else ""
    deaths = "".join(f" Worker {death.worker} died; the others went on." for death in training.deaths)
    return (
        f"{len(records)} of {total} gradients{dropped}, {len(records) / records[-1].done:.1f} gradients/s, "
        f"mean staleness {sum(stale) / max(len(stale), 1):.2f}.{deaths}"
    )
