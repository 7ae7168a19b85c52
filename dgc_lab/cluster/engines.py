"""The processes behind the ranks: ipyparallel engines and their controller, started so that nothing of them is left.

`LocalEngines` runs them on this machine, on the loopback interface; `ForeignEngines` are those of a cluster that the
user configured or started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from dgc_lab.cluster.calls import ProcessDied
from dgc_lab.cluster.engine_host import WAIT
from dgc_lab.common import LabError

SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_FOR_SOCKETS = 5
# Threads in place of processes where ipyparallel leaves the choice, and no record of past calls.
CONTROLLER = [
    "--IPController.ip=127.0.0.1",
    "--IPController.use_threads=True",
    "--IPController.db_class=nodb",
    "--IPController.broadcast_scheduler_depth=0",
    # An engine is taken for dead after 5 silent seconds. Its heart beats in a thread that needs no Python.
    "--HeartMonitor.period=1000",
    "--HeartMonitor.max_heartmonitor_misses=5",
]


def run_in_thread(function: Callable):
    """Run one of ipyparallel's blocking functions; beside a running event loop, in a thread of its own.

    In a notebook such a loop runs, and ipyparallel would start a thread for itself there, which never ends.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


class RankDied(ProcessDied):
    """The process of a rank is gone.

    Attributes:
        ranks: which ones, at least one.
    """

    def __init__(self, ranks: list[int]):
        super().__init__([f"rank {rank}" for rank in ranks])
        self.ranks = ranks


class Engines:
    """Some of a client's engines.

    Attributes:
        size: number of engines.
        client: ipyparallel's client, after `start`.
        ids: the engines' numbers in it, in rank order.
        lost: ranks whose call ended with ipyparallel's word that the engine died; it can come before `dead` knows.
        broken: why the engines were put down; None as long as they were not.
    """

    what = "ranks"
    stage = "starting engines"

    def __init__(self, size: int):
        self.size, self.client, self.ids, self.lost, self.broken = size, None, [], set(), None

    @property
    def closed(self) -> bool:
        """Whether all was stopped."""
        return self.client is None

    def dead(self) -> list[int]:
        """Ranks whose engine is gone, in order. ipyparallel's nanny, a process beside each engine, tells."""
        alive = self.client.ids if self.client else self.ids
        return [rank for rank, number in enumerate(self.ids) if number not in alive or rank in self.lost]

    def signal(self, number: int) -> None:
        """Send a signal to every engine that lives; does not wait."""
        alive = set(self.ids) & set(self.client.ids) if self.client else ()
        if alive:
            self.client.send_signal(int(number), targets=sorted(alive), block=False)

    def terminate(self, reason: str) -> None:
        """End the engines at once, whatever they do, and keep the reason."""
        self.broken = reason
        self.kill()

    def hosts(self) -> list[str]:
        """Each engine's host, in rank order."""
        return self.client[self.ids].apply_sync(socket.gethostname)

    def orphaned(self) -> bool:
        """Whether the controller is gone, without which no engine can be reached."""
        return False

    def look_for_dead(self) -> None:
        """Put all engines down when one of them, or the controller, is gone.

        Raises:
            RankDied: an engine is gone.
            LabError: the controller is gone, or all was stopped.
        """
        if self.client is None:
            raise LabError("the ranks were stopped. start() starts them")
        if dead := self.dead():
            error = RankDied(dead)
            self.terminate(str(error).split(";")[0])
            raise error
        if self.orphaned():
            self.terminate("ipyparallel's controller died, the ranks were put down")
            raise LabError(f"{self.broken}. restart() brings them back")

    def _await_engines(self, deadline, say, ended=lambda: False, printed=lambda: ""):
        said = None
        while (here := len(self.client.ids)) < self.size:
            if here != said:
                say(f"{self.stage}: {here} of {self.size}")
                said = here
            if ended() or time.monotonic() > deadline:
                what = "a process ended" if ended() else "the time limit passed"
                raise LabError(f"{what} when {here} of {self.size} engines were there.\n{printed()}")
            time.sleep(SECONDS_BETWEEN_LOOKS)
        self.ids = sorted(self.client.ids)[: self.size]


class ForeignEngines(Engines):
    """Engines of a cluster of the user's.

    Args:
        size: number of engines to use.
        cluster: an ``ipyparallel.Cluster`` to start and, in the end, to stop; or None.
        client: an ``ipyparallel.Client`` of running engines, which are left running; or None.
    """

    def __init__(self, size, cluster=None, client=None):
        super().__init__(size)
        self._cluster, self._given = cluster, client

    def start(self, deadline: float, say: Callable[[str], None]) -> None:
        """Start the cluster, where there is one to start, and wait for its engines; see `LocalEngines.start`."""
        if self._cluster is not None:
            say("starting the cluster")
            run_in_thread(lambda: self._cluster.start_cluster_sync(n=self.size))
            self.client = run_in_thread(self._cluster.connect_client_sync)
        elif len(self._given.ids) < self.size:
            raise LabError(f"{self.size} ranks need as many engines, the client has {len(self._given.ids)}")
        else:
            self.client = self._given
        self._await_engines(deadline, say)

    def kill(self) -> None:
        """End the engines at once, whatever they do."""
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Stop the cluster if `start` started it. Harmless when called again."""
        if self._cluster is not None and self.client is not None:
            self.client.close(linger=0)
            run_in_thread(self._cluster.stop_cluster_sync)
        self.client, self.ids = None, []


class LocalEngines(Engines):
    """Engines on this machine; their files are in a private temporary folder.

    Args:
        size: number of engines, at least 1.
        variables: environment of every engine, over that of this process.
    """

    stage = "importing TensorFlow and Horovod, starting engines"

    def __init__(self, size: int, variables: Mapping[str, str]):
        super().__init__(size)
        self._variables, self._owner = dict(variables), os.getpid()
        self._cluster = self._folder = self._context = None

    def start(self, deadline: float, say: Callable[[str], None]) -> None:
        """Start everything and wait for the engines.

        Args:
            deadline: on the clock of ``time.monotonic``.
            say: gets a line for each stage.

        Raises:
            LabError: the deadline passed, or a process ended; the message holds what it printed.
        """
        import ipyparallel
        import zmq

        self._folder = tempfile.mkdtemp(prefix="dgc_lab-")
        log = logging.getLogger("dgc_lab.ipyparallel")
        log.setLevel(logging.CRITICAL)  # ipyparallel warns of every process that was killed, with all it ever printed
        self._cluster = ipyparallel.Cluster(
            n=1,  # the engines' host
            profile_dir=self._folder,
            load_profile=False,
            config=self._config(deadline - time.monotonic()),
            controller_args=CONTROLLER,
            delay=0,
            log=log,
            shutdown_atexit=False,
        )
        say("starting the controller")
        try:
            run_in_thread(self._cluster.start_cluster_sync)
        except (RuntimeError, TimeoutError) as error:
            raise LabError(f"ipyparallel's controller did not start: {error}\n{self._printed()}") from error
        self._context = zmq.Context()  # of our own, so that its threads and descriptors end with the ranks
        self.client = run_in_thread(lambda: self._cluster.connect_client_sync(context=self._context))
        self._await_engines(deadline, say, self._one_ended, self._printed)

    def _config(self, seconds):
        from traitlets.config import Config

        config = Config()
        guarded = [sys.executable, "-m", "dgc_lab.cluster.watchdog", str(os.getpid()), self._folder]
        # The processes find what the notebook finds, this package first of all.
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        config.LocalControllerLauncher.controller_cmd = [*guarded, "ipyparallel.controller"]
        config.LocalControllerLauncher.environment = path
        config.LocalControllerLauncher.connection_info_timeout = max(seconds, 0.0)
        config.LocalEngineSetLauncher.engine_cmd = [
            *guarded,
            "dgc_lab.cluster.engine_host",
            *guarded[3:],
            str(self.size),
        ]
        # TensorFlow and others leave temporary files where they are killed: those go with the folder.
        config.LocalEngineSetLauncher.environment = self._variables | path | {"TMPDIR": self._folder}
        config.LocalEngineSetLauncher.delay = 0
        return config

    def hosts(self) -> list[str]:
        return ["127.0.0.1"] * self.size

    def orphaned(self) -> bool:
        return not is_running(self._cluster.controller.process)

    def _one_ended(self):
        """Whether the controller, the engines' host or an engine that was there is gone.

        The host has all its engines, and no other children, from when it waits; imports start some that soon end.
        """
        if not all(map(is_running, self._leaders())):
            return True
        try:
            return any(len(host.children()) < self.size for host in self._hosts() if WAIT in host.cmdline())
        except psutil.NoSuchProcess:
            return True

    def kill(self) -> None:
        """End the engines at once, whatever they do; the controller stays."""
        kill(self._hosts())

    def close(self) -> None:
        """End everything that was started, and remove its files. Harmless when called again."""
        if os.getpid() != self._owner or self._folder is None:
            return  # a fork of the notebook's process must not stop what it does not own
        leaders = self._leaders()
        try:
            self.kill()
            if self.client is not None:
                self.client.close(linger=0)
            if self._context is not None:
                # In a thread: once, after the controller's death, a socket was left open, and this waited for ever.
                ending = threading.Thread(target=self._context.destroy, kwargs={"linger": 0}, daemon=True)
                ending.start()
                ending.join(SECONDS_FOR_SOCKETS)
        finally:
            # Before the controller ends: should this process be killed here, the controller's guard cleans up.
            shutil.rmtree(self._folder, ignore_errors=True)
            kill(leaders)
        try:
            if self._cluster is not None:
                run_in_thread(self._cluster.stop_cluster_sync)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)  # what controller and ipyparallel still wrote
        self._cluster = self._folder = self._context = self.client = None
        self.ids = []

    def _hosts(self) -> list[psutil.Process]:
        """The engines' host, as ipyparallel knows it; none before it was started."""
        sets = self._cluster.engines.values() if self._cluster else ()
        launchers = [launcher for engines in sets for launcher in list(engines.launchers.values())]
        return [launcher.process for launcher in launchers if launcher.process]

    def _leaders(self) -> list[psutil.Process]:
        """The processes that ipyparallel started: the engines' host and, last, the controller."""
        controller = self._cluster.controller if self._cluster else None
        return [*self._hosts(), *([controller.process] if controller and controller.process else [])]

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
    end = time.monotonic() + 5
    while any(map(is_running, family)) and time.monotonic() < end:
        time.sleep(0.01)


def is_running(process: psutil.Process) -> bool:
    """Whether a process is there and more than a zombie; a grandchild's zombie is the system's to take away."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
