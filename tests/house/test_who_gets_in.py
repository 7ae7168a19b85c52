"""Another local user and a neighbouring network probe every open port and file while everything runs.

JupyterLab runs as ``make lab`` starts it, with Horovod ranks and parameter servers in a printing kernel, while a
submission is graded in its sandbox. ``tests/install/test_hub.py`` covers a hub's servers.
"""

import contextlib
import http.client
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from browser import free_port
from instructor import CAN_GRADE, PYTHON, answered, needs_instructor, write
from kernels import until
from outside import (
    answering,
    as_nobody,
    entered,
    listening_ports,
    open_files,
    ports_in_all_networks,
    sockets_with_names,
    without_key,
)

ROOT = Path(__file__).resolve().parents[2]
EXERCISE, TOKEN = "01_aggregation", "a token of this test"
SLEEPS = "import time\ntime.sleep(800)"  # a submission that is graded for as long as the tests run
IN_THE_KERNEL = """
import threading, time
from dgc_lab.cluster import HorovodRanks, ParameterServers
ranks = HorovodRanks(2, progress=None).start()
servers = ParameterServers(1, 1, progress=None).start()
def tell():
    while True:
        print("what a student does", flush=True)
        time.sleep(0.1)
threading.Thread(target=tell, daemon=True).start()
"""
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.alone,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


class Running:
    """Everything under test: the root processes, and where they may leave files."""

    def __init__(self, place):
        self.place, self.roots, self.shared = place, [], set(Path("/dev/shm").glob("*"))

    def family(self):
        """Return all processes, descendants included."""
        roots = [root for root in self.roots if root.is_running()]
        return [*roots, *(child for root in roots for child in root.children(recursive=True))]

    def kernels(self):
        """Return the Jupyter kernels: the student's and the sandboxed one."""
        found = []
        for process in self.family():
            with contextlib.suppress(psutil.Error):  # the process has exited
                command = " ".join(process.cmdline())
                if any(name in command for name in ("ipykernel", "marking.kernel")):
                    found.append(process)
        return found

    def places(self):
        """Return session paths: temporary, socket, and connection files, shared memory, grades."""
        graded = [file for file in Path("/tmp").glob("dgc-*") if file.stat().st_mtime > self.place.stat().st_ctime - 1]
        folders = [self.place / "tmp", self.place / "home" / ".local" / "share" / "jupyter" / "runtime"]
        return [*folders, self.place / "grading", *graded, *(set(Path("/dev/shm").glob("*")) - self.shared)]


def ask(address, path, body=None):
    """Query JupyterLab's API with the token."""
    headers = {"Authorization": f"token {TOKEN}"}
    request = urllib.request.Request(f"{address}{path}", data=body, headers=headers)
    return json.loads(urllib.request.urlopen(request, timeout=60).read())


def make_lab(port):
    """Return the ``make lab`` command with this Python, its own port, a token, and no browser."""
    said = subprocess.check_output(["make", "-n", "lab", "GPU=0"], cwd=ROOT, text=True).replace("\\\n", "")
    [line] = [line for line in said.splitlines() if "jupyter lab " in line]
    _, _, *options, _ = shlex.split(line)
    own = [f"--ServerApp.port={port}", "--no-browser", f"--IdentityProvider.token={TOKEN}", "--allow-root"]
    return [sys.executable, "-m", "jupyterlab", *options, *own, "--ServerApp.port_retries=0"]


@pytest.fixture(scope="module")
def running():
    """Start everything in folders that other users may enter, like many homes and /tmp."""
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="who-", dir="/tmp")))
        for folder, mode in ((place, 0o755), (place / "home", 0o755), (place / "tmp", 0o1777), (place / "work", 0o755)):
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)
        all_of_it = Running(place)
        environment = os.environ | {"HOME": str(place / "home"), "TMPDIR": str(place / "tmp")}

        def start(command, name):
            log = stack.enter_context((place / f"{name}.log").open("w"))
            options = {"cwd": place / "work", "env": environment, "stdout": log, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, **options)
            all_of_it.roots.append(psutil.Process(process.pid))
            stack.callback(end, process)
            return process

        port = free_port()
        address = f"http://127.0.0.1:{port}"
        lab = start(make_lab(port), "lab")

        def up():
            assert lab.poll() is None, (place / "lab.log").read_text()
            with contextlib.suppress(OSError):
                return ask(address, "/api/status")

        until(up, 120)
        number = ask(address, "/api/kernels", b"{}")["id"]
        [file] = place.glob(f"home/.local/share/jupyter/runtime/kernel-{number}.json")
        all_of_it.client = BlockingKernelClient(connection_file=str(file))
        all_of_it.client.load_connection_file()
        all_of_it.client.start_channels()
        stack.callback(all_of_it.client.stop_channels)
        all_of_it.client.wait_for_ready(timeout=120)
        all_of_it.file = file
        reply = all_of_it.client.execute(IN_THE_KERNEL, reply=True, timeout=300)
        assert reply["content"]["status"] == "ok", reply["content"]
        if CAN_GRADE:
            write(
                answered(EXERCISE, dict.fromkeys(ids_of(EXERCISE), SLEEPS)),
                place / "handed_in" / "Ann" / f"{EXERCISE}.ipynb",
            )
            what = [EXERCISE, place / "handed_in", "--folder", place / "grading", "--minutes", 30]
            more = ["--cell-seconds", 900, "--source", ROOT / "notebooks" / "exercises" / "source"]
            graded = start([PYTHON, "-m", "dgc_lab_grading", "grade", *map(str, [*what, *more])], "grade")

            def fenced():
                assert graded.poll() is None, (place / "grade.log").read_text()
                return {psutil.Process(graded.pid)} & {up for each in all_of_it.kernels() for up in each.parents()}

            until(fenced, 180)
        yield all_of_it


def ids_of(name):
    """List the ids of an exercise's answer cells."""
    from dgc_lab_grading.course import sources
    from instructor import EXERCISES

    found = sources.notebook(EXERCISES / "source", name).cells
    return [c.metadata.nbgrader.grade_id for c in found if c.metadata.get("nbgrader", {}).get("solution")]


def family_of(process):
    return psutil.Process(process.pid).children(recursive=True)


def end(process):
    """Terminate a process and its descendants."""
    family = family_of(process)
    process.terminate()
    process.wait(60)
    for each in psutil.wait_procs(family, 30)[1]:
        each.kill()


# The tests ---------------------------------------------------------------------------------------------------------


def test_the_key_gives_access_to_the_kernel(running):
    """Without this check, the other tests would mistake silence for safety."""
    message = running.client.get_iopub_msg(timeout=60)
    assert message["msg_type"] in ("stream", "status")
    assert len(listening_ports(running.family())) > 4
    assert len(ports_in_all_networks(running.family())) > len(listening_ports(running.family()))


def test_processes_listen_locally_and_reveal_nothing_to_others(running):
    listening = listening_ports(running.family())
    assert {ip for ips in listening.values() for ip in ips} <= {"127.0.0.1", "::1"}
    assert without_key(listening) == {}


def test_neighbouring_network_cannot_reach_any_port(running, neighbour):
    here = psutil.net_connections("tcp")
    others = {e.laddr.port for e in here if e.status == psutil.CONN_LISTEN} - set(listening_ports(running.family()))
    ports = sorted(ports_in_all_networks(running.family()) - others)  # ports that other programs opened are not ours
    assert neighbour.answering([(address, port) for address in neighbour.here for port in ports]) == []


def test_sockets_refuse_connections_from_another_user(running):
    names = sockets_with_names(running.family())
    assert any(name.startswith(str(running.place)) for name in names), names
    assert as_nobody(entered, sorted(names)) == []


def test_session_files_are_readable_by_their_owner_only(running):
    places = list(map(str, running.places()))
    assert open_files(places), "root must be able to read them"
    common = str(running.place / "tmp")  # world-writable, like /tmp
    assert [path for path in as_nobody(open_files, places) if path != common] == []
    for folder in (running.place / "tmp").iterdir():
        assert folder.stat().st_mode & 0o077 == 0, folder


@needs_instructor
def test_sandboxed_kernel_has_its_own_network(running):
    own = os.readlink("/proc/self/ns/net")
    networks = {os.readlink(f"/proc/{kernel.pid}/ns/net") for kernel in running.kernels()}
    assert len(networks - {own}) == 1, "only the submission's network may differ from ours"


def test_probes_detect_open_resources(running, tmp_path, neighbour):
    """Probes an unencrypted kernel, an open server, a page without a token, and public sockets and files."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager()
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    folder = running.place / "tmp" / "open"
    folder.mkdir()
    with (
        contextlib.closing(socket.create_server(("", 0), backlog=20)) as server,
        contextlib.closing(socket.socket(socket.AF_UNIX)) as local,
        contextlib.closing(socket.socket(socket.AF_UNIX)) as abstract,
    ):
        pages = subprocess.Popen([sys.executable, "-m", "http.server", str(free := free_port())], cwd=ROOT / "docs")
        try:
            client.wait_for_ready(timeout=120)
            client.execute("import time\nfor _ in range(600):\n    print('open', flush=True); time.sleep(0.1)")
            until(lambda: answering([("127.0.0.1", free)]), 30)
            port = server.getsockname()[1]
            said = without_key({port, free, manager.iopub_port, manager.shell_port})
            assert said.keys() == {port, free, manager.iopub_port} | (said.keys() & {manager.shell_port})
            assert "takes a connection" in said[port]
            assert "is shown" in said[free] or "takes" in said[free]
            assert "hears" in said[manager.iopub_port]
            assert neighbour.answering([(neighbour.here[0], port)]) == [(neighbour.here[0], port)]
            assert port in listening_ports([psutil.Process()])
            local.bind(str(folder / "socket"))
            local.listen()
            (folder / "socket").chmod(0o777)
            abstract.bind("\0who-gets-in")
            abstract.listen()
            names = sockets_with_names([psutil.Process()])
            assert {str(folder / "socket"), "@who-gets-in"} <= names
            assert set(as_nobody(entered, sorted(names))) >= {str(folder / "socket"), "@who-gets-in"}
            (folder / "rows.jsonl").write_text("{}")
            assert str(folder / "rows.jsonl") in as_nobody(open_files, [str(folder)])
        finally:
            pages.kill()
            pages.wait()
            client.stop_channels()
            manager.shutdown_kernel(now=True)
            shutil.rmtree(folder)


def test_wrong_tokens_are_rejected(running):
    [port] = [port for port, ips in listening_ports(running.roots[:1]).items() if "127.0.0.1" in ips]
    for token in ("", "another token", TOKEN[:-1]):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/api/kernels", headers={"Authorization": f"token {token}"})
        assert connection.getresponse().status == 403
        connection.close()
