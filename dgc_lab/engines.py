"""The processes behind the ranks: ipyparallel engines and their controller, started so that nothing of them is left.

`LocalEngines` runs them on this machine, on the loopback interface. `ForeignEngines` uses those of a cluster that the
user configured or started.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from dgc_lab.errors import LabError

SECONDS_BETWEEN_LOOKS = 0.05
# Threads in place of processes where ipyparallel leaves the choice, and nothing that the lab does not use.
CONTROLLER = [
    "--IPController.ip=127.0.0.1",
    "--IPController.use_threads=True",
    "--IPController.db_class=nodb",
    "--IPController.broadcast_scheduler_depth=0",
    # An engine is taken for dead after 5 silent seconds. Its heart beats in a thread that needs no Python.
    "--HeartMonitor.period=1000",
    "--HeartMonitor.max_heartmonitor_misses=5",
]


def aside(function: Callable):
    """Run one of ipyparallel's blocking functions in a thread of its own.

    Where an event loop runs already, as it does in a notebook, ipyparallel would start a thread that never ends.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


class LocalEngines:
    """Engines on this machine; files in a private temporary folder.

    Args:
        size: number of engines, at least 1.
        variables: environment of every engine, over that of this process.

    Attributes:
        client: ipyparallel's client, after `start`.
        ids: the engines' numbers in it, in rank order.
    """

    local = True

    def __init__(self, size: int, variables: Mapping[str, str]):
        self.size, self.variables = size, dict(variables)
        self.client, self.ids = None, []
        self._owner = os.getpid()
        self._cluster = self._folder = None

    def start(self, deadline: float, say: Callable[[str], None]) -> None:
        """Start everything and wait for the engines.

        Args:
            deadline: on the clock of ``time.monotonic``.
            say: gets a line for each stage.

        Raises:
            LabError: the deadline passed, or a process ended; the message holds what it printed.
        """
        import ipyparallel
        from traitlets.config import Config

        self._folder = tempfile.mkdtemp(prefix="dgc_lab-")
        guarded = [sys.executable, "-m", "dgc_lab.guard", str(os.getpid()), self._folder]
        config = Config()
        config.LocalControllerLauncher.controller_cmd = [*guarded, "ipyparallel.controller"]
        config.LocalEngineSetLauncher.engine_cmd = [*guarded, "ipyparallel.engine"]
        # The processes find what the notebook finds, this package first of all.
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        config.LocalControllerLauncher.environment = path
        config.LocalEngineSetLauncher.environment = self.variables | path
        config.LocalEngineSetLauncher.delay = 0
        log = logging.getLogger("dgc_lab.ipyparallel")
        log.setLevel(logging.CRITICAL)  # ipyparallel warns of every process that was killed, with all it ever printed
        self._cluster = ipyparallel.Cluster(
            n=self.size, profile_dir=self._folder, load_profile=False, config=config, log=log, delay=0,
            controller_args=CONTROLLER, shutdown_atexit=False,
        )  # fmt: skip
        say("starting the controller")
        aside(self._cluster.start_cluster_sync)
        self.client = aside(self._cluster.connect_client_sync)
        said = None
        while (here := len(self.client.ids)) < self.size:
            if here != said:
                say(f"starting engines: {here} of {self.size}")
                said = here
            ended = [process for process in self._leaders() if not process.is_running()]
            if ended or time.monotonic() > deadline:
                what = "a process ended" if ended else "the time limit passed"
                raise LabError(f"{what} before {self.size} engines were there.\n{self._printed()}")
            time.sleep(SECONDS_BETWEEN_LOOKS)
        self.ids = sorted(self.client.ids)

    def dead(self) -> list[int]:
        """Ranks whose engine is gone, in order."""
        return [rank for rank, number in enumerate(self.ids) if number not in self.client.ids]

    def signal(self, number: int) -> None:
        """Send a signal to every engine that lives; does not wait."""
        alive = [number for number in self.ids if number in self.client.ids]
        if alive:
            self.client.send_signal(int(number), targets=alive, block=False)

    def kill(self) -> None:
        """End the engines at once, whatever they do; the controller stays."""
        kill([launcher.process for launcher in self._engine_launchers()])

    def close(self) -> None:
        """End everything that was started, and remove its files. Harmless when called again."""
        if os.getpid() != self._owner or self._folder is None:
            return  # a fork of the notebook's process must not stop what it does not own
        leaders = self._leaders()
        self.kill()
        if self.client is not None:
            self.client.close(linger=0)
        kill(leaders)
        if self._cluster is not None:
            aside(self._cluster.stop_cluster_sync)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._cluster = self._folder = self.client = None
        self.ids = []

    def _engine_launchers(self):
        sets = self._cluster.engines.values() if self._cluster else ()
        return [launcher for engines in sets for launcher in list(engines.launchers.values()) if launcher.process]

    def _leaders(self) -> list[psutil.Process]:
        """The processes that ipyparallel started: the engines and, last, the controller."""
        controller = self._cluster.controller if self._cluster else None
        launchers = [*self._engine_launchers(), *([controller] if controller and controller.process else [])]
        return [launcher.process for launcher in launchers]

    def _printed(self) -> str:
        """Last lines of what the processes printed."""
        files = sorted(Path(self._folder, "log").glob("*.log"))
        return "\n".join(f"{file.name}:\n{file.read_text(errors='replace')[-1500:]}" for file in files)


def kill(leaders: list[psutil.Process]) -> None:
    """Kill processes that lead a group of their own, with their groups and all their children, and wait for them."""
    family = []
    for leader in leaders:
        try:
            family += [leader, *leader.children(recursive=True)]
        except psutil.NoSuchProcess:
            family.append(leader)
    for leader in leaders:
        # A group outlives its leader, and its number is not given away before it is empty.
        if leader.is_running() or not psutil.pid_exists(leader.pid):
            try:
                os.killpg(leader.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=5)
